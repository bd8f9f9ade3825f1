"""The values between what is drawn and how: boxes, frames around them, arrows. Imports nothing of graphlint.

Text is final here; only placing and painting remain. Positions are in points, y downwards.
"""

from typing import Literal

import msgspec

Mark = Literal[
    "reentered", "freed-later", "retained-again", "discarded", "cut", "not-executed", "freed", "kept"
]
"""What befell a part of a graph; see `MARKS` in `palette` for the words of the legend."""

BoxKind = Literal["call", "ops", "leaf", "input", "cut", "loss", "transfer"]

EdgeKind = Literal["flow", "input", "cut", "crossing"]


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One box.

    Attributes:
        key: unique within the diagram.
        title: the bold first line.
        lines: further lines.
        code: a line of source, set in a fixed pitch; empty for none.
        says: the marks in words, where the frame around doesn't say them already.
        device: device of the nodes in it, `a, b` where there are several; empty where torch doesn't say.
        nodes: how many autograd nodes it stands for.
        frame: key of the frame that holds it; empty for none.
        tags: codes of the findings that touch its lines.
        tooltip: lines of text for the pointer.
    """

    key: str
    kind: BoxKind
    title: str
    lines: tuple[str, ...] = ()
    code: str = ""
    says: tuple[str, ...] = ()
    device: str = ""
    nodes: int = 0
    frame: str = ""
    marks: tuple[Mark, ...] = ()
    tags: tuple[str, ...] = ()
    tooltip: tuple[str, ...] = ()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled frame around boxes: a module call, or one of `times` equal parts.

    `parent` is the key of the frame around it, empty for none. `marks` and `says` hold for all that is in it.
    """

    key: str
    parent: str
    label: str
    times: int = 1
    marks: tuple[Mark, ...] = ()
    says: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tooltip: tuple[str, ...] = ()


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An arrow in the direction of the forward pass, between two boxes, by their keys."""

    tail: str
    head: str
    kind: EdgeKind = "flow"
    tooltip: tuple[str, ...] = ()


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """A picture before it is placed. `notes` say what isn't shown, or why it looks as it does."""

    title: str
    subtitle: tuple[str, ...]
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...] = ()
