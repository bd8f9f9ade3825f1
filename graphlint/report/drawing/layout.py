"""Places a diagram with a dot program: the system's `dot`, or the one that graphviz-pure installs.

The program is given sizes only and answers with positions; text is measured here, so that a picture looks the
same whichever program placed it. Imports `diagram`; graphviz inside a function.
"""

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graphlint.errors import GraphlintError, UsageError
from graphlint.report.drawing.diagram import Box, Diagram, Frame
from graphlint.report.drawing.measure import box_size, frame_label_width

if TYPE_CHECKING:
    import graphviz

NO_TORCHVIZ = "the full graph style needs the Python package torchviz; install it, or use the collapsed style"

POINTS_PER_INCH = 72.0


class SlowLayoutError(GraphlintError):
    """The layout program took longer than it was given."""


class Rect(msgspec.Struct, frozen=True):
    """A rectangle: its left, top, width and height in points, y downwards."""

    x: float
    y: float
    width: float
    height: float


class Curve(msgspec.Struct, frozen=True):
    """A chain of cubic Bezier curves through `points` (1 + 3n of them); `tip` is where the arrow ends."""

    points: tuple[tuple[float, float], ...]
    tip: tuple[float, float] | None


class Layout(msgspec.Struct, frozen=True):
    """Where everything lies: boxes and frames by key, curves in the order of the diagram's edges."""

    width: float
    height: float
    boxes: dict[str, Rect]
    frames: dict[str, Rect]
    curves: tuple[Curve | None, ...]


def find_program() -> tuple[str, ...]:
    """Returns the command of a layout program.

    Raises:
        UsageError: there is none.
    """
    dot = shutil.which("dot")
    if dot is not None:
        return (dot, "-Kdot")
    scripts = sysconfig.get_path("scripts")
    pure = shutil.which("graphviz-pure", path=scripts) or shutil.which("graphviz-pure")
    if pure is not None:
        return (pure, "-Kdot")
    raise UsageError(
        "drawing needs a layout program: install graphviz (`dot` on PATH) or the Python package graphviz-pure"
    )


def place(diagram: Diagram, program: tuple[str, ...], timeout_s: float) -> Layout:
    """Returns where the boxes, frames and arrows of a diagram lie.

    Raises:
        SlowLayoutError: the program ran past `timeout_s`.
        UsageError: it can't be run or failed.
    """
    return _read(run_program(program, _dot(diagram), timeout_s), diagram)


def run_program(program: tuple[str, ...], dot: str, timeout_s: float) -> dict[str, object]:
    """Returns the layout of DOT text as the program's `json0` output, parsed."""
    try:
        done = subprocess.run(
            [*program, "-Tjson0"], input=dot.encode(), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SlowLayoutError(f"{Path(program[0]).name} took more than {timeout_s:g} s") from error
    except OSError as error:
        raise UsageError(f"{program[0]} can't be run: {error.strerror or error}") from error
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if done.returncode or not isinstance(found, dict):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"{program[0]} failed ({done.returncode}): {said[-1] if said else 'no output'}")
    return found


def _dot(diagram: Diagram) -> str:
    """Returns the diagram as DOT text: sizes and links, no words."""
    import graphviz

    graph = graphviz.Digraph(
        graph_attr={"rankdir": "TB", "nodesep": "0.22", "ranksep": "0.24", "compound": "true"},
        node_attr={"shape": "box", "fixedsize": "true", "label": ""},
        edge_attr={"arrowsize": "0.7"},
    )
    inside: dict[str, list[Frame | Box]] = {}
    for frame in diagram.frames:
        inside.setdefault(frame.parent, []).append(frame)
    for box in diagram.boxes:
        inside.setdefault(box.frame, []).append(box)
    _fill(graph, inside, "")
    framed = {box.key for box in diagram.boxes if box.frame}
    for number, edge in enumerate(diagram.edges):
        # Data enters a frame at a box's corner: at its middle, the arrow would cross the frame's words.
        corner = {"headport": "nw"} if edge.kind in {"input", "cut"} and edge.head in framed else {}
        graph.edge(edge.tail, edge.head, id=str(number), **corner)
    return str(graph.source)


def _fill(graph: "graphviz.Digraph", inside: dict[str, list[Frame | Box]], frame: str) -> None:
    for member in inside.get(frame, ()):
        if isinstance(member, Box):
            width, height = box_size(member)
            graph.node(
                member.key,
                width=f"{width / POINTS_PER_INCH:.3f}",
                height=f"{height / POINTS_PER_INCH:.3f}",
            )
        else:
            # The label is only there to claim its space: x is about as wide as the mean letter.
            claim = "x" * int(frame_label_width(member) / 7 + 1) + "\n" * len(member.says)
            with graph.subgraph(
                name=f"cluster_{member.key}",
                graph_attr={"label": claim, "fontname": "Helvetica", "fontsize": "14", "margin": "10"},
            ) as inner:
                _fill(inner, inside, member.key)


def _read(found: dict[str, object], diagram: Diagram) -> Layout:
    layout = places_of(found)
    curves: list[Curve | None] = [None] * len(diagram.edges)
    for edge in objects_of(found, "edges"):
        if "pos" in edge:
            curves[int(str(edge["id"]))] = curve_of(str(edge["pos"]), layout.height)
    return Layout(layout.width, layout.height, layout.boxes, layout.frames, tuple(curves))


def places_of(found: dict[str, object]) -> Layout:
    """Reads where boxes and frames lie from `json0` output; the curves are left to the caller."""
    _, _, width, height = _numbers(str(found["bb"]))
    boxes: dict[str, Rect] = {}
    frames: dict[str, Rect] = {}
    for thing in objects_of(found, "objects"):
        name = str(thing["name"])
        if "pos" in thing:
            x, y = _numbers(str(thing["pos"]))
            wide = float(str(thing["width"])) * POINTS_PER_INCH
            high = float(str(thing["height"])) * POINTS_PER_INCH
            boxes[name] = Rect(x - wide / 2, height - y - high / 2, wide, high)
        elif "bb" in thing:
            left, low, right, top = _numbers(str(thing["bb"]))
            frames[name.removeprefix("cluster_")] = Rect(left, height - top, right - left, top - low)
    return Layout(width, height, boxes, frames, ())


def objects_of(found: dict[str, object], key: str) -> list[dict[str, object]]:
    """Returns the objects or the edges of `json0` output."""
    listed = found.get(key)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def curve_of(text: str, height: float) -> Curve:
    """Reads a spline as dot writes it: `e,x,y` first for the arrow's tip, then the points."""
    tip: tuple[float, float] | None = None
    points: list[tuple[float, float]] = []
    for part in text.split():
        values = part.split(",")
        if values[0] in ("e", "s"):
            if values[0] == "e":
                tip = (float(values[1]), height - float(values[2]))
        else:
            points.append((float(values[0]), height - float(values[1])))
    return Curve(tuple(points), tip)
