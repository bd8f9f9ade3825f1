"""Which rules a user asked for, by code, prefix or name; may import `errors` and `lint.rule`."""

from collections.abc import Sequence

import msgspec

from graphlint.errors import UsageError
from graphlint.lint.finding import Finding
from graphlint.lint.rule import Rule


class Selection(msgspec.Struct, frozen=True):
    """Rules to run: all that `select` names (all when it is empty) without those that `ignore` names.

    An entry is a code (`GL101`), the beginning of codes (`GL1`) or a name (`freed-graph-reuse`); one entry
    may hold several, separated by commas.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def codes(self, rules: Sequence[Rule]) -> frozenset[str]:
        """Returns the codes of the chosen ones among `rules`.

        Raises:
            UsageError: an entry names no rule, or no rule is left; the text lists what would be right.
        """
        chosen = named(self.select, rules) if self.select else frozenset(rule.code for rule in rules)
        chosen -= named(self.ignore, rules)
        if not chosen:
            raise UsageError("no rule is left to check: everything selected is ignored too")
        return chosen


def matching(entry: str, rules: Sequence[Rule]) -> frozenset[str]:
    """Returns the codes of the rules that one entry names; none when it names no rule."""
    return frozenset(
        rule.code
        for rule in rules
        if entry and (rule.code.startswith(entry.upper()) or rule.name == entry.lower())
    )


def entry_names(entry: str, finding: Finding) -> bool:
    """Returns whether an entry, or one of several in it separated by commas, names the rule of a finding."""
    parts = (part.strip() for part in entry.split(","))
    return any(
        part and (finding.code.startswith(part.upper()) or finding.rule == part.lower()) for part in parts
    )


def named(entries: Sequence[str], rules: Sequence[Rule]) -> frozenset[str]:
    """Returns the codes of the rules that the entries name.

    Raises:
        UsageError: an entry names no rule; the text lists those that there are.
    """
    found: set[str] = set()
    for entry in (part.strip() for listed in entries for part in listed.split(",")):
        matches = matching(entry, rules)
        if not matches:
            known = ", ".join(f"{rule.code} {rule.name}" for rule in rules)
            raise UsageError(f"unknown rule {entry!r}; known rules: {known}")
        found |= matches
    return frozenset(found)
