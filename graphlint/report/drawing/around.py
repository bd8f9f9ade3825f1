"""What surrounds the nodes in a picture: leaves without a module, data, cuts, and the losses.

Imports `record` and the stages of drawing up to `boxes`.
"""

from graphlint.record.events import Backward
from graphlint.record.trace import Trace
from graphlint.report.drawing.boxes import Stage
from graphlint.report.drawing.diagram import Box, Edge, EdgeKind
from graphlint.report.drawing.inputs import Cut, Entry
from graphlint.report.drawing.scene import Scene, source_lines
from graphlint.report.drawing.structure import is_leaf
from graphlint.report.drawing.wording import CODE_WIDTH, clip, plural

MOST_INPUTS = 16


class Edges:
    """Arrows between boxes, each once; a crossing outranks a plain one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], EdgeKind] = {}

    def add(self, tail: str, head: str, kind: EdgeKind) -> None:
        """Adds an arrow; one that leads back to its own box is no arrow."""
        if tail != head and (kind == "crossing" or (tail, head) not in self._found):
            self._found[tail, head] = kind

    def all(self) -> tuple[Edge, ...]:
        """Returns the arrows in the order in which they were added."""
        return tuple(Edge(tail=tail, head=head, kind=kind) for (tail, head), kind in self._found.items())


class Surroundings:
    """Adds boxes around those of a stage, and arrows between them."""

    def __init__(self, trace: Trace, scene: Scene, stage: Stage, edges: Edges) -> None:
        self._trace = trace
        self._scene = scene
        self._stage = stage
        self._edges = edges

    def add_leaves(self) -> None:
        """Adds a box for each leaf that is no module's parameter; those with the same users share one."""
        scene, graph, at = self._scene, self._scene.graph, self._stage.at
        users: dict[int, set[str]] = {root: set() for root in graph.roots if is_leaf(graph, root)}
        for giver, receiver in graph.edges:
            if is_leaf(graph, receiver) and giver in at:
                users.setdefault(receiver, set()).add(at[giver])
        together: dict[tuple[str, ...], list[int]] = {}
        for index, found in users.items():
            leaf = graph.nodes[index].leaf
            if leaf is None or scene.words.parameter(leaf) is None:
                together.setdefault(tuple(sorted(found)), []).append(index)
        for keys, leaves in together.items():
            tensors = [graph.nodes[index].leaf for index in leaves]
            names = [name for each in tensors if each is not None and (name := scene.words.tensor(each))]
            shape = f"leaf {tuple(graph.nodes[leaves[0]].shape)}"
            key = f"leaf{leaves[0]}"
            at.update(dict.fromkeys(leaves, key))
            self._stage.boxes.append(
                Box(
                    key=key,
                    kind="leaf",
                    title=clip(", ".join(names), CODE_WIDTH) or "no variable's name",
                    lines=(shape if len(leaves) == 1 else plural(len(leaves), "leaf"),),
                    device=scene.node_devices[leaves[0]],
                    tooltip=("this backward fills .grad of each", *names),
                )
            )
            for user in keys:
                self._edges.add(key, user, "flow")

    def add_losses(self, backward: Backward) -> None:
        """Adds a box for each tensor on which the backward was called."""
        roots, at = self._scene.graph.roots, self._stage.at
        for position, box in enumerate(losses(self._scene, backward)):
            root = roots[position] if len(roots) == len(backward.roots) else roots[0] if roots else None
            self._stage.boxes.append(box)
            if root in at:
                self._edges.add(at[root], box.key, "flow")

    def add_data(self, entries: tuple[Entry, ...]) -> list[str]:
        """Adds the data and the cuts that feed the graph; returns what had to be left out."""
        left = 0
        shown: dict[object, str] = {}
        for entry in entries:
            heads = self._heads(entry)
            name = self._scene.words.tensor(entry.tensor)
            owned = self._scene.words.parameter(entry.tensor) is not None
            if not heads or (entry.cut is None and (entry.leaf or owned or not name)):
                continue
            same = entry.cut if entry.cut is not None else entry.tensor
            key = shown.get(same)
            if key is None:
                if len(shown) >= MOST_INPUTS:
                    left += 1
                    continue
                key = shown[same] = f"in{len(shown)}"
                self._stage.boxes.append(
                    self._data(entry, key, name) if entry.cut is None else self._cut(entry.cut, key, name)
                )
            for head in heads:
                self._edges.add(key, head, "cut" if entry.cut is not None else "input")
        return [f"{plural(left, 'more input')} not shown."] if left else []

    def _heads(self, entry: Entry) -> dict[str, None]:
        """Returns the boxes that a tensor enters; of repeats only the part that is drawn, but for cuts."""
        at, bodies = self._stage.at, self._stage.bodies
        return dict.fromkeys(
            at[index]
            for index in entry.nodes
            if index in at and (entry.cut is not None or not any(bodies.get(index, {}).values()))
        )

    def _data(self, entry: Entry, key: str, name: str) -> Box:
        row = self._trace.tensors.get(entry.tensor)
        return Box(
            key=key,
            kind="input",
            title=name,
            lines=(f"data {tuple(row.shape)}",) if row is not None else (),
            device=row.device if row is not None else "",
            tooltip=("data: takes no gradient",),
        )

    def _cut(self, cut: Cut, key: str, result: str) -> Box:
        words = self._scene.words
        frames = self._scene.touches.innermost([cut.site])
        tags = self._scene.touches.at(frames)
        row = self._trace.tensors.get(cut.source)
        return Box(
            key=key,
            kind="cut",
            title=words.tensor(cut.source) or result or "a tensor",
            code=words.code(frames[0]) if frames else "",
            says=(f"cut off here ({cut.how}): no gradient goes further back",),
            device=row.device if row is not None else "",
            marks=("cut",),
            tags=tuple(dict.fromkeys(finding.code for finding in tags)),
            tooltip=source_lines(self._scene, frames),
        )


def losses(scene: Scene, backward: Backward) -> tuple[Box, ...]:
    """Returns a box for each tensor on which a backward was called, up to a limit."""
    lines = scene.touches.innermost([backward.site])
    tags = scene.touches.at(lines)
    return tuple(
        Box(
            key=f"loss{position}",
            kind="loss",
            title=clip(name, CODE_WIDTH) or "no variable's name",
            lines=("the backward starts here",),
            tags=tuple(dict.fromkeys(finding.code for finding in tags)),
            tooltip=source_lines(scene, lines),
        )
        for position, name in enumerate(scene.words.losses(backward)[:MOST_INPUTS])
    )
