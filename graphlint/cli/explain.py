"""`graphlint explain`: prints a rule's page; may import `lint`."""

import click

from graphlint.cli import options as shared
from graphlint.errors import UsageError
from graphlint.lint.discovery import SECTIONS, RuleFile, rule_files
from graphlint.lint.intent import HEADING, how_to_declare
from graphlint.lint.verdict import OK


@click.command(context_settings=dict(shared.CONTEXT), short_help="Print the page of a rule.")
@click.argument("code")
def explain(*, code: str) -> int:
    """Prints what the rule CODE (or a rule's name) proves, why it matters, and what to write instead."""
    file = _find(code)
    rule = file.rule
    title = f"{rule.code} {rule.name} ({rule.severity}, since {rule.since})"
    click.echo(click.style(title, bold=True) + "\n")
    for line in [*file.page.splitlines(), "", f"## {HEADING}", "", *how_to_declare(rule).splitlines()]:
        heading = line.strip().removeprefix("## ")
        click.echo(click.style(heading, bold=True) if heading in {*SECTIONS, HEADING} else line)
    return OK


def _find(code: str) -> RuleFile:
    files = rule_files()
    for file in files:
        if code.upper() == file.rule.code or code.lower() == file.rule.name:
            return file
    known = ", ".join(f"{file.rule.code} {file.rule.name}" for file in files)
    raise UsageError(f"unknown rule {code!r}; known rules: {known}")
