"""Draws one SVG per distinct backward of a trace; may import `lint`, `record` and `report.drawing`.

Works from a saved trace, without torch. `style="full"` is the exception: see `drawing.full`.
"""

from pathlib import Path
from typing import Literal

from graphlint.errors import UsageError
from graphlint.lint.rule import Report
from graphlint.record.trace import Trace
from graphlint.report.drawing.collapse import BOXES
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.diagram import Diagram
from graphlint.report.drawing.layout import Layout, TooSlow, find_program, place
from graphlint.report.drawing.paint import svg
from graphlint.report.drawing.subjects import Subject, subjects

Style = Literal["collapsed", "full"]

SCREEN_WIDTH, SCREEN_HEIGHT = 1900.0, 1350.0
"""What a drawing may take so that it is legible when a viewer fits it to a screen, in points."""

FEW, TOLERATED = 20, 1.4
"""A picture of fewer boxes than `FEW` gives way to one that is up to `TOLERATED` screens large."""

LAYOUT_SECONDS = 20.0
"""What one try at a layout may take before fewer boxes are tried."""


def draw(trace: Trace, report: Report, directory: Path, *, style: Style = "collapsed") -> list[Path]:
    """Writes an SVG for each distinct backward and `index.txt`; returns the paths of the SVGs."""
    program = find_program()
    composer = Composer(trace, report.findings)
    directory.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for subject in subjects(trace, composer.words):
        diagram, layout = _placed(composer, subject, program)
        path = directory / f"{subject.stem}.svg"
        path.write_text(svg(diagram, layout), encoding="utf-8")
        paths.append(path)
    return paths


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
        except TooSlow:
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
