"""Colours and line styles of marks and devices. Imports `diagram` only.

The colours are those of Okabe and Ito, which people who see few colours tell apart; every mark is also a line
style and a sentence.
"""

import msgspec

from graphlint.report.drawing.diagram import Diagram, Mark

INK, GREY, FAINT = "#1a1a1a", "#5c5c5c", "#9a9a9a"
BLUE, ORANGE, VERMILION, PURPLE = "#0072B2", "#E69F00", "#D55E00", "#AA4499"
DARK_ORANGE, DARK_VERMILION = "#8A5A00", "#B34700"
"""Shades of the lighter colours that can be read as text."""

TINTS = ("#DCEBF7", "#DDF2E8", "#FBF3D0", "#F3E1EE", "#FBE5D6")
CPU_TINT = "#F1F1F1"


class Look(msgspec.Struct, frozen=True):
    """How a mark is drawn: border colour, that of its text, width and dashes; its words in the legend."""

    color: str
    ink: str
    width: float
    dashes: str
    words: str


_REENTERED = "already freed by an earlier backward, and entered again here"
_CUT = "the path of the gradient was cut here (detach, no_grad, …)"
_FREED_LATER = "freed by this backward, and entered again by a later one"
_DISCARDED = "gradients computed here are zeroed before any step uses them"
_RETAINED = "kept by an earlier backward, and entered again here"
_NOT_EXECUTED = "in the graph, but this backward does not execute it"

MARKS: tuple[tuple[Mark, Look], ...] = (
    ("reentered", Look(VERMILION, DARK_VERMILION, 3.0, "", _REENTERED)),
    ("cut", Look(VERMILION, DARK_VERMILION, 2.0, "7 4", _CUT)),
    ("freed-later", Look(ORANGE, DARK_ORANGE, 3.0, "9 3", _FREED_LATER)),
    ("discarded", Look(PURPLE, PURPLE, 2.5, "2 3", _DISCARDED)),
    ("retained-again", Look(BLUE, BLUE, 2.5, "10 3 2 3", _RETAINED)),
    ("not-executed", Look(FAINT, GREY, 1.2, "2 2", _NOT_EXECUTED)),
    ("freed", Look(ORANGE, DARK_ORANGE, 0, "", "freed when this backward ended")),
    ("kept", Look(BLUE, BLUE, 0, "", "kept by retain_graph or create_graph")),
)
"""Strongest first: a box with several marks takes the border of the first; width 0 is a stripe."""


def look_of(marks: tuple[Mark, ...]) -> Look | None:
    """Returns how the strongest of some marks is drawn, the stripes left out."""
    return next((look for mark, look in MARKS if look.width and mark in marks), None)


def tints(diagram: Diagram) -> dict[str, str]:
    """Returns the fill of each device in a diagram, in a fixed order; a box on several devices has none."""
    devices = sorted({box.device for box in diagram.boxes if box.device and "," not in box.device})
    others = [device for device in devices if device != "cpu"]
    fills = {device: TINTS[number % len(TINTS)] for number, device in enumerate(others)}
    if "cpu" in devices:
        fills["cpu"] = CPU_TINT
    return fills
