"""How to declare a fault of some rule as meant, in words; may import `lint.rule`.

Said by `graphlint explain` and on every rule's page alike.
"""

from graphlint.lint.rule import Rule

HEADING = "If it is meant"


def how_to_declare(rule: Rule) -> str:
    """Returns the text, with code indented by four blanks as in a rule's page."""
    if rule.review is not None:
        return (
            f"A declaration that is of use on other machines or in longer runs names {rule.code} as well:\n\n"
            f"    optimizer.step()  # graphlint: ignore[GL301, {rule.code}] two GPUs only"
        )
    return (
        "Say so where it happens, with the reason; from then on it is counted as suppressed. In a comment\n"
        "at the line that is reported, or around a block of code:\n\n"
        f"    loss.backward()  # graphlint: ignore[{rule.code}] reason\n\n"
        f'    with graphlint.expect("{rule.code}", reason="..."):\n'
        "        ...\n\n"
        "`ignore` and `per-file-ignores` in `[tool.graphlint]` of a pyproject.toml leave the rule out\n"
        "everywhere, or in some files."
    )
