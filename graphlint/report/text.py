"""The report as text: each finding with the source lines that tell its story, then what was checked.

May import `lint`, `analysis`, `record` and the rest of `report`; rich is imported late, and only where
colour is wanted. The layout is made of values first (a line is pieces of text, each with a style) and painted
last, so that colour can't change a word of it. Source text and names are the user's: never wrapped, never
markup.
"""

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TextIO

from graphlint.analysis.sources import Sources
from graphlint.analysis.steps import Steps
from graphlint.lint.finding import SEVERITIES, Finding, Label, Severity
from graphlint.lint.places import Places
from graphlint.lint.rule import Report
from graphlint.record.header import Header
from graphlint.record.trace import Trace
from graphlint.report.aside import codes, put_aside
from graphlint.report.run import Run, summarize

Line = tuple[tuple[str, str], ...]
"""Pieces of text with their styles; the text of all pieces is the line without colour."""

_SEVERITY_STYLES: Mapping[Severity, str] = MappingProxyType(
    {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
)
_ENDINGS: Mapping[str, str] = MappingProxyType(
    {
        "finished": " finished",
        "steps": " was stopped after",
        "error": " ended in an exception",
        "exit": " ended with sys.exit",
        "interrupt": " was interrupted",
        "terminated": " was ended by SIGTERM",
        "unknown": ": how it ended is not in the trace",
    }
)
_GUTTER, _SECONDARY, _FIX, _STRONG, _PLAIN = "blue", "blue", "bold green", "bold", ""
_MIN_WIDTH = 40
_KEPT_INDENT = 4
_TAB = 4


def render(
    report: Report,
    trace: Trace,
    stream: TextIO,
    *,
    width: int = 100,
    color: bool = False,
    summary: bool = True,
    told: Collection[str] = (),
    show_info: bool = False,
) -> None:
    """Writes the findings, then the summary, to `stream`.

    Those of severity info are only counted, unless `show_info` is given. Findings whose fingerprints are
    `told` count in the summary and are not written again.
    `width` is in columns. Without `color` the text holds no escape sequence; what the stream's encoding
    can't hold is written as a backslash escape.
    """
    lines = list(layout(report, trace, width=width, summary=summary, told=told, show_info=show_info))
    if color:
        _paint(lines, stream, width)
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in lines:
        text = "".join(piece for piece, _ in line).rstrip()
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def layout(
    report: Report,
    trace: Trace,
    *,
    width: int,
    summary: bool = True,
    told: Collection[str] = (),
    show_info: bool = False,
) -> Iterator[Line]:
    """Yields the lines of the report; a rule that failed is shown even where no summary is wanted."""
    width = max(width, _MIN_WIDTH)
    places = Places(trace, Sources(trace))
    levels = _Levels(trace)
    shown = [finding for finding in report.findings if show_info or finding.severity != "info"]
    new = [finding for finding in shown if finding.fingerprint not in told]
    for number, finding in enumerate(new):
        if number:
            yield ()
        yield from _finding(finding, places, width)
        if finding.count > 1:
            yield from _paragraph(_sightings(finding, levels), width)
    if new and (summary or report.tracebacks):
        yield ()
    if summary:
        yield from _summary(report, trace, places, width, hidden=len(report.findings) - len(shown))
    yield from _failures(report)


def _paint(lines: Sequence[Line], stream: TextIO, width: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=stream,
        width=width,
        force_terminal=True,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in lines:
        pieces = ((text.encode(encoding, "backslashreplace").decode(encoding), style) for text, style in line)
        console.print(Text.assemble(*pieces), soft_wrap=True)


def _finding(finding: Finding, places: Places, width: int) -> Iterator[Line]:
    style = _SEVERITY_STYLES[finding.severity]
    where = f"{_printable(places.shown(finding.path))}:{finding.line}:"
    yield (
        (where, _STRONG),
        (" ", _PLAIN),
        (f"{finding.code} {finding.rule}", style),
        (f" ({finding.severity})", style),
    )
    yield from _paragraph(finding.message, width)
    yield from _excerpts(finding, places, width)
    if finding.fix:
        first, *rest = _paragraph(f"Fix: {finding.fix}", width)
        text = first[0][0].removeprefix("  Fix:")
        yield (("  ", _PLAIN), ("Fix:", _FIX), (text, _PLAIN))
        yield from rest


class _Levels:
    """Which steps of the run were recorded in full, and which only watched."""

    def __init__(self, trace: Trace) -> None:
        steps = Steps(trace)
        self._count = steps.count
        self._full = [step.number for step in steps.all if step.level == "full"]

    def remark(self, finding: Finding) -> str:
        """Returns why a fault may have been seen no later than it was; empty when it was looked for."""
        last = finding.last_step
        if last not in self._full or last + 1 in self._full or last + 1 >= self._count:
            return ""
        if (finding.first_step, last) == (self._full[0], self._full[-1]):
            return ": all that " + ("was" if len(self._full) == 1 else "were") + " recorded in full"
        return "; later ones were only watched"


def _sightings(finding: Finding, levels: _Levels) -> str:
    seen = f"Seen {finding.count} times"
    if finding.first_step is None:
        return f"{seen}."
    one = finding.first_step == finding.last_step
    steps = f"in step {finding.first_step}" if one else f"steps {finding.first_step} to {finding.last_step}"
    return f"{seen}, {steps}{levels.remark(finding)}."


def _excerpts(finding: Finding, places: Places, width: int) -> Iterator[Line]:
    """Yields the labelled lines, file by file (the primary's first), in the order of the file."""
    files: dict[str, dict[int, list[Label]]] = {}
    for label in finding.labels:
        files.setdefault(label.path, {}).setdefault(label.line, []).append(label)
    texts = {
        (label.path, label.line): _printable(places.text(label.path, label.line) or "").rstrip()
        for label in finding.labels
    }
    digits = max(len(str(label.line)) for label in finding.labels)
    for path, lines in files.items():
        if len(files) > 1:
            yield ((f"{' ' * (digits + 4)}--> ", _GUTTER), (_printable(places.shown(path)), _PLAIN))
        indents = [_indent(texts[path, line]) for line in lines if texts[path, line]]
        excess = max(min(indents, default=0) - _KEPT_INDENT, 0)
        for line in sorted(lines):
            text = texts[path, line][excess:]
            yield _source_line(f"{line:>{digits}}", text, width)
            for label in lines[line]:
                primary = label is finding.labels[0]
                style = _SEVERITY_STYLES[finding.severity] if primary else _SECONDARY
                yield from _caret(label.text, digits, _indent(text), style, width)


def _source_line(number: str, text: str, width: int) -> Line:
    room = width - len(number) - 7
    if len(text) > room:
        text = text[: room - 3] + "..."
    return ((f"    {number} | ", _GUTTER), (text, _PLAIN))


def _caret(words: str, digits: int, indent: int, style: str, width: int) -> Iterator[Line]:
    """Yields the caret under the start of a statement and what it says, wrapped beside the caret."""
    gutter = (f"    {' ' * digits} | ", _GUTTER)
    room = max(width - digits - 7 - indent - 2, 24)
    mark = "^ "
    for part in _wrapped(words, room) or [""]:
        yield (gutter, (" " * indent + mark + part, style))
        mark = "  "


def _summary(report: Report, trace: Trace, places: Places, width: int, *, hidden: int) -> Iterator[Line]:
    run = summarize(trace)
    yield _headline(report, run)
    rows: list[tuple[str, str]] = []
    if report.findings or run.ended != "finished":
        rows.append(("run", _ending(run, trace.header, places)))
    if run.devices and (report.findings or run.simulated):
        rows.append(("devices", _devices(run)))
    if hidden:
        infos = [finding.code for finding in report.findings if finding.severity == "info"]
        how = "--show-info" if run.script else "show-info = true in pyproject.toml"
        rows.append(("info", f"{hidden} not shown ({codes(infos)}); {how} prints them"))
    rows += put_aside(report)
    rows += [("not seen", what) for what in run.unseen]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for outcome in report.outcomes:
        if outcome.outcome in {"not-checked", "failed"}:
            heading = "not checked" if outcome.outcome == "not-checked" else "failed"
            by_reason.setdefault((heading, outcome.reason or "no reason given"), []).append(outcome.code)
    rows += [(heading, f"{', '.join(codes)}: {why}") for (heading, why), codes in by_reason.items()]
    for heading, text in rows:
        yield from _row(heading, text, width)


def _failures(report: Report) -> Iterator[Line]:
    for code, trace_text in report.tracebacks.items():
        yield (
            (
                f"graphlint: {code} failed by a fault of graphlint's own; please report it with the trace:",
                "bold red",
            ),
        )
        yield from (((f"  {_printable(line)}", _PLAIN),) for line in trace_text.splitlines())


def _headline(report: Report, run: Run) -> Line:
    total = len(report.outcomes)
    checked = sum(outcome.outcome in {"findings", "clean"} for outcome in report.outcomes)
    rules = _count(total, "rule") if checked == total else f"{checked} of {_count(total, 'rule')}"
    level = "all at full level" if run.full_steps == run.steps else f"{run.full_steps} at full level"
    steps = _count(run.steps, "step") + (f" ({level})" if run.steps else "")
    pieces: list[tuple[str, str]] = []
    for severity in SEVERITIES:
        number = sum(finding.severity == severity for finding in report.findings)
        if number:
            pieces += [(", " if pieces else "", _PLAIN)]
            word = f"{number} info" if severity == "info" else _count(number, severity)
            pieces += [(word, _SEVERITY_STYLES[severity])]
    if not checked:
        return (("graphlint: ", _STRONG), ("nothing was checked", "bold yellow"), (f" in {steps}", _PLAIN))
    if not pieces:
        pieces = [("no findings", "bold green")]
    if report.suppressed:
        pieces += [(f", {len(report.suppressed)} suppressed", _PLAIN)]
    return (("graphlint: ", _STRONG), *pieces, (f" in {steps}; {rules} checked", _PLAIN))


def _ending(run: Run, header: Header, places: Places) -> str:
    if not run.script and run.ended == "steps":
        asked = ", as asked" if header.steps_wanted == run.steps else ""
        first = "first step was" if run.steps == 1 else f"first {run.steps} steps were"
        return f"the audited code: its {first} recorded{asked}"
    script = " ".join((places.shown(run.script), *run.argv)) if run.script else "the audited code"
    return f"{script}{_ENDINGS[run.ended]}{_ending_detail(run, places)}"


def _ending_detail(run: Run, places: Places) -> str:
    match run.ended:
        case "steps":
            return f" {_count(run.steps, 'step')}, as asked"
        case "exit":
            return f"({'' if run.exit_code is None else run.exit_code})"
        case "error":
            return _error(run, places)
        case "finished" | "interrupt" | "terminated" | "unknown":
            return ""


def _error(run: Run, places: Places) -> str:
    if run.error is None:
        return ""
    where = "" if run.error.path is None else f" at {places.shown(run.error.path)}:{run.error.line}"
    # The traceback above the report has the whole message; one sentence is enough to know it again.
    first = (run.error.message.splitlines() or [""])[0].partition(". ")[0]
    return f"{where}: {run.error.type}: {first}" if first else f"{where}: {run.error.type}"


def _devices(run: Run) -> str:
    devices = ", ".join(run.devices)
    if not run.simulated:
        return devices
    # Asking for cuda:1 makes cuda:0 exist too, so that the names asked for are not all that is simulated.
    kinds = {name.partition(":")[0] for name in run.simulated}
    simulated = [device for device in run.devices if device.partition(":")[0] in kinds] or run.simulated
    return f"{devices}; {_listed(simulated)} simulated on the CPU"


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _row(heading: str, text: str, width: int) -> Iterator[Line]:
    column = len("  not checked  ")
    label = f"  {heading}".ljust(column)
    for part in _wrapped(text, width - column):
        yield ((label, _STRONG), (part, _PLAIN))
        label = " " * column


def _paragraph(text: str, width: int) -> list[Line]:
    return [((f"  {part}", _PLAIN),) for part in _wrapped(text, width - 2)]


def _wrapped(text: str, width: int) -> list[str]:
    words = " ".join(_printable(text.replace("\n", " ")).split())
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)


def _printable(text: str) -> str:
    """Returns text with tabs as blanks and every other invisible character as a backslash escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text.expandtabs(_TAB)
    )


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
