"""Writes the report of a command; may import everything that needs no torch.

Shared by `run` and `check`, so that a saved trace gives the very report of its run.
"""

import io
from pathlib import Path
from typing import Literal, cast

import msgspec

from graphlint.cli.outputs import Destination
from graphlint.cli.settings import Settings
from graphlint.errors import UsageError
from graphlint.lint.rule import Report
from graphlint.lint.verdict import OK, FailOn, exit_code, unchecked
from graphlint.record.trace import Trace

Format = Literal["text", "json"]
Style = Literal["collapsed", "full"]


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of a report."""

    format: Format
    fail_on: FailOn
    quiet: bool
    show_info: bool


def write_report(
    report: Report, trace: Trace, options: ReportOptions, destination: Destination, *, after: bytes = b""
) -> int:
    """Writes the report in the format asked for, and returns the exit code that it deserves.

    Args:
        report: what to write.
        trace: what it is about.
        options: what the user asked of it.
        destination: where it goes.
        after: what parts a text report from the output before it in the same stream.

    Raises:
        UsageError: no rule could judge and nothing was found, so that exit code 0 would read as a clean bill;
            or the destination can't be written.
    """
    code = exit_code(report, trace, options.fail_on)
    why = unchecked(report, trace) if code == OK else None
    if options.format == "json":
        destination.write(_rendered(report, trace, options, destination))
    elif why is None:  # else the error's one line says all that the text would
        text = _rendered(report, trace, options, destination)
        destination.write(after + text if text and destination.name is None else text)
    if why is not None:
        raise UsageError(why)
    return code


def _rendered(report: Report, trace: Trace, options: ReportOptions, destination: Destination) -> bytes:
    if options.format == "json":
        from graphlint.report.json import to_json

        return to_json(report, trace)
    from graphlint.report.text import render

    text = io.StringIO()
    render(
        report,
        trace,
        text,
        width=destination.width,
        color=destination.color,
        summary=not options.quiet,
        show_info=options.show_info,
    )
    encoding = "utf-8" if destination.name else (getattr(destination.stream, "encoding", None) or "utf-8")
    return text.getvalue().encode(encoding, "backslashreplace")


def report_options(format_: str, settings: Settings, *, quiet: bool) -> ReportOptions:
    """Returns the options from the words that click has checked."""
    return ReportOptions(
        format=cast("Format", format_), fail_on=settings.fail_on, quiet=quiet, show_info=settings.show_info
    )


def style(word: str) -> Style:
    """Returns the style of the drawings from the word that click has checked."""
    return cast("Style", word)


def draw_graphs(trace: Trace, report: Report, directory: Path, style: Style) -> list[Path]:
    """Draws the trace's backwards in the directory and returns the files."""
    from graphlint.report.svg import draw

    return draw(trace, report, directory, style=style)
