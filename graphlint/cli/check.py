"""`graphlint check`: judges a saved trace again, in a process without torch; may import everything else."""

import sys
from pathlib import Path
from typing import Unpack

import click

from graphlint.cli import options as shared
from graphlint.cli import outputs, reporting
from graphlint.cli.settings import Given, settle
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
    no_color: bool,
    quiet: bool,
    **given: Unpack[Given],
) -> int:
    """Judges the saved TRACE and reports on stdout, with the exit code that its run would have had."""
    settings = settle(given, [Path.cwd()])
    record = load(trace)
    read = [trace] if given["baseline"] is None else [trace, given["baseline"]]
    outputs.refuse_overwriting(read, [output] if output else [])
    outputs.refuse_overwriting([trace, *([output] if output else [])], settings.files_written)
    options = reporting.report_options(format_, settings, quiet=quiet)
    with outputs.open_output(output, sys.stdout, no_color=no_color) as destination:
        report, said = settings.judge(record)
        code = reporting.write_report(report, record, options, destination)
    if said is not None:
        outputs.Notes(sys.stderr).write(said, quiet=quiet)
    return code
