"""`graphlint check`: judges a saved trace again, in a process without torch; may import everything else."""

import sys
from pathlib import Path

import click

from graphlint.cli import options as shared
from graphlint.cli import outputs, reporting
from graphlint.lint.selection import Selection
from graphlint.record.codec import load


@click.command(context_settings=dict(shared.CONTEXT), short_help="Judge a saved trace again; needs no torch.")
@shared.report_options()
@shared.selection_options()
@click.argument("trace", type=click.Path(path_type=Path))
def check(
    *,
    trace: Path,
    format_: str,
    output: Path | None,
    fail_on: str,
    no_color: bool,
    quiet: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
) -> int:
    """Judges the saved TRACE and reports on stdout, with the exit code that its run would have had."""
    selection = reporting.check_selection(Selection(shared.split(select), shared.split(ignore)))
    record = load(trace)
    outputs.refuse_overwriting([trace], [output] if output else [])
    options = reporting.report_options(format_, fail_on, quiet=quiet)
    with outputs.open_output(output, sys.stdout, no_color=no_color) as destination:
        report = reporting.judge_trace(record, selection)
        return reporting.write_report(report, record, options, destination)
