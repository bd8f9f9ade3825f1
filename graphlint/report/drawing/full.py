"""The uncollapsed view: every node and leaf, in the graph that torchviz makes.

torchviz wants live `grad_fn` objects. It reads few of their attributes, so it is given light stand-ins made
from the record: the same view comes from a run and from a saved trace, and no autograd node is kept alive
for it. What torchviz links is then placed and painted like every other picture, with the same marks.

This is the one part of reporting that loads torch, because importing torchviz does. torchviz visits a
graph by recursion and fails at about 900 nodes in a row: then the caller draws the collapsed view. Imports
the other stages of drawing; torchviz inside a function, since it is an optional extra.
"""

import warnings
from collections.abc import Callable

import graphviz

from graphlint.errors import GraphlintError, UsageError
from graphlint.record.identity import TensorId
from graphlint.report.drawing.around import losses
from graphlint.report.drawing.boxes import node_box
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.diagram import Box, Diagram, Edge
from graphlint.report.drawing.layout import (
    NO_TORCHVIZ,
    POINTS_PER_INCH,
    Layout,
    curve_of,
    objects_of,
    places_of,
    run_program,
)
from graphlint.report.drawing.measure import box_size
from graphlint.report.drawing.scene import Scene
from graphlint.report.drawing.structure import is_leaf
from graphlint.report.drawing.subjects import Subject

MakeDot = Callable[[object], graphviz.Digraph]


class DeepGraphError(GraphlintError):
    """torchviz ran out of stack."""


class _Tensor:
    """Stands in for a tensor: a root, or a leaf's variable."""

    def __init__(self, shape: tuple[int, ...], grad_fn: "_Function | None" = None) -> None:
        self.grad_fn = grad_fn
        self._shape = shape

    def size(self) -> tuple[int, ...]:
        return self._shape

    def _is_view(self) -> bool:
        return False


class _Function:
    """Stands in for an autograd node; the name of its subclass is the node's."""

    def __init__(self) -> None:
        self.next_functions: list[tuple[_Function, int]] = []


class _Leaf(_Function):
    """Stands in for `AccumulateGrad`."""

    def __init__(self, variable: _Tensor) -> None:
        super().__init__()
        self.variable = variable


def load_torchviz() -> MakeDot:
    """Returns `torchviz.make_dot`, with torch imported.

    Raises:
        UsageError: torchviz is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from torchviz import make_dot
    except ImportError as error:
        raise UsageError(f"{NO_TORCHVIZ} ({error})") from error
    found: MakeDot = make_dot
    return found


def full_picture(
    make_dot: MakeDot, composer: Composer, subject: Subject, program: tuple[str, ...], timeout_s: float
) -> tuple[Diagram, Layout]:
    """Returns the uncollapsed picture of a backward.

    Raises:
        DeepGraphError: torchviz ran out of stack.
        SlowLayoutError: the layout ran past `timeout_s`.
    """
    scene = composer.scene(subject.backward, subject.graph)
    functions, roots = _stand_ins(subject)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            dot = make_dot(tuple(roots))
    except RecursionError:
        raise DeepGraphError("torchviz visits a graph by recursion and ran out of stack") from None
    boxes = _boxes(composer, scene, subject, functions, roots)
    for name, box in boxes.items():
        width, height = box_size(box)
        dot.node(
            name,
            label="",
            fixedsize="true",
            width=f"{width / POINTS_PER_INCH:.3f}",
            height=f"{height / POINTS_PER_INCH:.3f}",
        )
    dot.graph_attr.pop("size", None)
    return _placed(composer, subject, boxes, run_program(program, str(dot.source), timeout_s))


def _stand_ins(subject: Subject) -> tuple[list[_Function], list[_Tensor]]:
    """Returns a stand-in for each node, and one for each tensor that the backward starts at."""
    graph = subject.graph
    functions: list[_Function] = []
    for index, node in enumerate(graph.nodes):
        if is_leaf(graph, index):
            functions.append(_Leaf(_Tensor(node.shape)))
        else:
            kind: type[_Function] = type(node.custom or node.name, (_Function,), {})
            functions.append(kind())
    for giver, receiver in graph.edges:
        functions[giver].next_functions.append((functions[receiver], 0))
    return functions, [_Tensor(graph.nodes[root].shape, functions[root]) for root in graph.roots]


def _boxes(
    composer: Composer, scene: Scene, subject: Subject, functions: list[_Function], roots: list[_Tensor]
) -> dict[str, Box]:
    """Returns the box of each stand-in by the name under which torchviz knows it."""
    boxes: dict[str, Box] = {}
    for index, function in enumerate(functions):
        node = subject.graph.nodes[index]
        if isinstance(function, _Leaf):
            boxes[str(id(function))] = Box(key=f"n{index}", kind="leaf", title="AccumulateGrad", nodes=1)
            boxes[str(id(function.variable))] = _variable(
                composer, f"v{index}", node.leaf, scene.node_devices[index]
            )
        else:
            boxes[str(id(function))] = node_box(scene, index, f"n{index}")
    boxes_of_losses = losses(scene, subject.backward)
    for number, root in enumerate(roots):
        if number < len(boxes_of_losses):
            boxes[str(id(root))] = boxes_of_losses[number]
        else:
            boxes[str(id(root))] = Box(key=f"loss{number}", kind="loss", title="no variable's name")
    return boxes


def _variable(composer: Composer, key: str, leaf: TensorId | None, device: str) -> Box:
    row = composer.trace.tensors.get(leaf) if leaf is not None else None
    name = composer.words.tensor(leaf) if leaf is not None else ""
    shape = f"{tuple(row.shape)}" if row is not None else ""
    return Box(key=key, kind="leaf", title=name or "leaf", lines=(shape,) if shape else (), device=device)


def _placed(
    composer: Composer, subject: Subject, boxes: dict[str, Box], found: dict[str, object]
) -> tuple[Diagram, Layout]:
    """Reads torchviz's links and the places of its nodes back from the layout."""
    layout = places_of(found)
    names = {int(str(each["_gvid"])): str(each["name"]) for each in objects_of(found, "objects")}
    edges: list[Edge] = []
    curves = []
    for link in objects_of(found, "edges"):
        tail, head = (boxes[names[int(str(link[end]))]] for end in ("tail", "head"))
        crosses = "transfer" in (tail.kind, head.kind)
        edges.append(Edge(tail=tail.key, head=head.key, kind="crossing" if crosses else "flow"))
        curves.append(curve_of(str(link["pos"]), layout.height))
    known = {name: box for name, box in boxes.items() if name in layout.boxes}
    diagram = Diagram(
        title=subject.title,
        subtitle=composer.subtitle(subject),
        boxes=tuple(known.values()),
        frames=(),
        edges=tuple(edges),
        notes=composer.notes(subject),
    )
    places = {known[name].key: layout.boxes[name] for name in known}
    return diagram, Layout(layout.width, layout.height, places, {}, tuple(curves))
