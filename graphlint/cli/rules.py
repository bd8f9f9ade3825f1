"""`graphlint rules`: lists the rules; may import `lint`."""

import click
import msgspec

from graphlint.cli import options as shared
from graphlint.lint.discovery import RuleFile, rule_files
from graphlint.lint.finding import Severity
from graphlint.lint.verdict import OK


class _Row(msgspec.Struct, frozen=True):
    """What the list says of a rule."""

    code: str
    name: str
    severity: Severity
    since: str
    summary: str


@click.command(context_settings=dict(shared.CONTEXT), short_help="List the rules.")
@click.option("--format", "format_", type=click.Choice(shared.FORMATS), default="text", help="Default: text.")
def rules(*, format_: str) -> int:
    """Lists the rules: code, name, severity, and what each one proves.

    `graphlint explain CODE` prints a rule's page, and how to declare a fault as meant: by a comment
    `# graphlint: ignore[CODE] reason`, in code with graphlint.expect, or in pyproject.toml.
    """
    rows = [_row(file) for file in rule_files()]
    if format_ == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        return OK
    names = max(len(row.name) for row in rows)
    for row in rows:
        click.echo(f"{row.code}  {row.name:<{names}}  {row.severity:<7}  {row.summary}")
    return OK


def _row(file: RuleFile) -> _Row:
    rule = file.rule
    summary = file.page.splitlines()[0].strip().rstrip(".")
    return _Row(rule.code, rule.name, rule.severity, rule.since, summary)
