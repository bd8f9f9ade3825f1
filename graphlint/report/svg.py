"""Draws one SVG per distinct backward of a trace; may import `lint`, `record` and `report.drawing`.

Works from a saved trace, without torch. `style="full"` is the exception: see `drawing.full`.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from graphlint.analysis.facts import Facts
from graphlint.errors import UsageError
from graphlint.lint.rule import Report
from graphlint.record.trace import Trace
from graphlint.report.drawing.collapse import BOXES
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.diagram import Diagram
from graphlint.report.drawing.layout import NO_TORCHVIZ, Layout, SlowLayoutError, find_program, place
from graphlint.report.drawing.paint import svg
from graphlint.report.drawing.subjects import Subject, subjects

Style = Literal["collapsed", "full"]

INDEX = "index.txt"

SCREEN_WIDTH, SCREEN_HEIGHT = 1900.0, 1350.0
"""What a drawing may take so that it is legible when a viewer fits it to a screen, in points."""

FEW, TOLERATED = 20, 1.4
"""A picture of fewer boxes than `FEW` gives way to one that is up to `TOLERATED` screens large."""

LAYOUT_SECONDS = 20.0
"""What one try at a layout may take before fewer boxes are tried."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A finished picture; `notes` are what it says of itself, for the index."""

    subject: Subject
    text: str
    notes: tuple[str, ...]


def draw(trace: Trace, report: Report, directory: Path, *, style: Style = "collapsed") -> list[Path]:
    """Writes an SVG for each distinct backward, and `index.txt` that lists them; returns the SVGs' paths.

    Raises:
        UsageError: there is no layout program, no torchviz for the full style, or no writing to `directory`.
    """
    pictures = list(_pictures(trace, report, style))
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            path = directory / f"{picture.subject.stem}.svg"
            path.write_text(picture.text, encoding="utf-8", newline="\n")
            paths.append(path)
        (directory / INDEX).write_text(_index(pictures), encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"can't write graphs to {directory}: {error.strerror or error}") from error
    return paths


def check(style: Style) -> None:
    """Finds out whether `draw` has what it needs, before a run whose pictures would be lost.

    Raises:
        UsageError: there is no layout program, or no torchviz for the full style.
    """
    find_program()
    if style == "full" and importlib.util.find_spec("torchviz") is None:
        raise UsageError(NO_TORCHVIZ)


def _pictures(trace: Trace, report: Report, style: Style) -> Iterator[Picture]:
    program = find_program()
    composer = Composer(Facts(trace), report.findings)
    full = _Full(composer, program) if style == "full" else None
    for subject in subjects(composer.facts, composer.words):
        why, found = full.place(subject) if full is not None else ("", None)
        diagram, layout = found if found is not None else _placed(composer, subject, program)
        if why:
            diagram = msgspec.structs.replace(diagram, notes=(why, *diagram.notes))
        yield Picture(subject=subject, text=svg(diagram, layout), notes=diagram.notes)


class _Full:
    """Draws uncollapsed pictures, or says why it can't."""

    def __init__(self, composer: Composer, program: tuple[str, ...]) -> None:
        # Loads torch, which the collapsed style must not.
        from graphlint.report.drawing import full

        self._full = full
        self._make_dot = full.load_torchviz()
        self._composer = composer
        self._program = program

    def place(self, subject: Subject) -> tuple[str, tuple[Diagram, Layout] | None]:
        """Returns the picture, or the reason for the collapsed one in its place."""
        try:
            found = self._full.full_picture(
                self._make_dot, self._composer, subject, self._program, LAYOUT_SECONDS
            )
        except (self._full.DeepGraphError, SlowLayoutError) as error:
            nodes = len(subject.graph.nodes)
            return f"Not the full style: {error} on these {nodes:,} nodes. Collapsed instead.", None
        return "", found


def _index(pictures: list[Picture]) -> str:
    """Returns the list of pictures as text: file, call, place, steps, and what each says of itself."""
    lines: list[str] = []
    for picture in pictures:
        subject = picture.subject
        lines.append(f"{subject.stem}.svg")
        lines.append(f"    {subject.title}, {subject.place}, {subject.when}")
        lines.extend(f"    {note}" for note in picture.notes)
    return "\n".join(lines) + "\n"


def _placed(composer: Composer, subject: Subject, program: tuple[str, ...]) -> tuple[Diagram, Layout]:
    """Returns the most detailed diagram that fits a screen and could be laid out in time.

    One that is somewhat too large is taken rather than one of very few boxes.
    """
    tried: list[tuple[Diagram, Layout]] = []
    for boxes in BOXES:
        diagram = composer.diagram(subject, boxes)
        if tried and len(diagram.boxes) >= len(tried[-1][0].boxes):
            continue
        try:
            layout = place(diagram, program, LAYOUT_SECONDS)
        except SlowLayoutError:
            continue
        tried.append((diagram, layout))
        if _screens(layout) <= 1:
            break
    if not tried:
        raise UsageError(f"{program[0]} could not lay out {subject.title} within {LAYOUT_SECONDS:g} s")
    if len(tried) > 1 and len(tried[-1][0].boxes) < FEW and _screens(tried[-2][1]) <= TOLERATED:
        return tried[-2]
    return tried[-1]


def _screens(layout: Layout) -> float:
    """Returns by how much a layout is larger than a screen."""
    return max(layout.width / SCREEN_WIDTH, layout.height / SCREEN_HEIGHT)
