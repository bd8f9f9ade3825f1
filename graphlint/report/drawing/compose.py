"""Composes the diagram of one backward: boxes, arrows, losses, data, title and notes.

Imports `record`, `lint` and the other stages of drawing up to `boxes`.
"""

from collections import Counter

from graphlint.analysis.facts import Facts
from graphlint.lint.finding import Finding
from graphlint.record.events import Backward, ModuleCall
from graphlint.record.graph import Graph, Node
from graphlint.record.identity import ModuleId, Serial, SiteId
from graphlint.report.drawing.around import Edges, Surroundings
from graphlint.report.drawing.boxes import Stage
from graphlint.report.drawing.collapse import MOST_NEIGHBORS, opened, tamed
from graphlint.report.drawing.diagram import Diagram, EdgeKind
from graphlint.report.drawing.inputs import Makers, entries
from graphlint.report.drawing.marks import node_marks
from graphlint.report.drawing.repeats import fold
from graphlint.report.drawing.scene import Scene, crossing
from graphlint.report.drawing.structure import Group, Item, Wiring, by_call, forward_order, is_leaf, nodes_of
from graphlint.report.drawing.subjects import Subject
from graphlint.report.drawing.touch import Touches
from graphlint.report.drawing.wording import Words, clip, plural


class Composer:
    """Makes diagrams of one trace's backwards."""

    def __init__(self, facts: Facts, findings: tuple[Finding, ...]) -> None:
        self.facts = facts
        self.trace = trace = facts.trace
        self.words = Words(facts)
        self.touches = Touches(trace, findings)
        self.makers = Makers(trace, self._touched)
        self.calls = {event.serial: event for event in trace.events if isinstance(event, ModuleCall)}
        self.backwards = {event.serial: event for event in trace.events if isinstance(event, Backward)}
        self._scenes: dict[Serial, Scene] = {}

    def _touched(self, site: SiteId | None) -> bool:
        return bool(self.touches.at(self.touches.innermost([site])))

    def scene(self, backward: Backward, graph: Graph) -> Scene:
        """Returns what the boxes of one backward are made from; worked out once."""
        if backward.serial not in self._scenes:
            wiring = Wiring.of(graph)
            findings = self.touches.at(self.touches.innermost([backward.site]))
            self._scenes[backward.serial] = Scene(
                graph=graph,
                wiring=wiring,
                order=forward_order(graph, wiring),
                marks=node_marks(self.trace, backward, graph, wiring, findings),
                words=self.words,
                touches=self.touches,
                transfers=self.makers.transfers,
                backwards=self.backwards,
                node_devices=self._devices(graph),
                call_numbers=_numbers(graph, self.calls),
            )
        return self._scenes[backward.serial]

    def _devices(self, graph: Graph) -> tuple[str, ...]:
        """Returns where each node's output lies as the script sees it; torch knows no simulated device.

        A leaf lies where the node that uses it does: a parameter may have moved since it was first met.
        """
        devices = [self._device(node) for node in graph.nodes]
        for giver, receiver in graph.edges:
            if is_leaf(graph, receiver) and devices[giver]:
                devices[receiver] = devices[giver]
        return tuple(devices)

    def _device(self, node: Node) -> str:
        transfer = self.makers.transfers.get(node.op) if node.op is not None else None
        if transfer is not None:
            return transfer.to_device
        op = self.makers.ops.get(node.op) if node.op is not None else None
        result = (
            node.leaf if node.leaf is not None else next(iter(op.outputs if op is not None else ()), None)
        )
        row = self.trace.tensors.get(result) if result is not None else None
        if row is not None:
            return row.device
        return "" if self.trace.header.simulated else node.device

    def diagram(self, subject: Subject, boxes: int) -> Diagram:
        """Returns the collapsed picture of a backward, of about `boxes` boxes."""
        backward, graph = subject.backward, subject.graph
        scene = self.scene(backward, graph)
        order = scene.order
        root = self._tree(scene, order, min(MOST_NEIGHBORS, 4 * boxes))
        stage = Stage(scene, opened(root.items, boxes, lambda item: _mixed(scene, item)))
        stage.place(root.items)
        edges = Edges()
        for target, sources in enumerate(scene.wiring.before):
            for source in sources:
                if target in stage.at and source in stage.at and not _chained(stage, source, target):
                    kind: EdgeKind = (
                        "crossing" if crossing(scene, source) or crossing(scene, target) else "flow"
                    )
                    edges.add(stage.at[source], stage.at[target], kind)
        around = Surroundings(self.trace, scene, stage, edges)
        around.add_leaves()
        around.add_losses(backward)
        notes = around.add_data(entries(self.trace, graph, order, self.makers, self.calls))
        hidden = sum(box.nodes for box in stage.boxes if box.kind == "call" and box.nodes > 1)
        if hidden:
            notes.append(f"Closed boxes stand for {hidden:,} of the {len(order):,} nodes.")
        return Diagram(
            title=subject.title,
            subtitle=self.subtitle(subject),
            boxes=tuple(stage.boxes),
            frames=tuple(stage.frames),
            edges=edges.all(),
            notes=(*self.notes(subject), *notes),
        )

    def notes(self, subject: Subject) -> tuple[str, ...]:
        """Returns what every picture of a backward must say is missing from it."""
        left = subject.graph.truncated
        return (
            (f"{plural(left, 'node')} of this graph were over the limit and not recorded.",) if left else ()
        )

    def _tree(self, scene: Scene, order: tuple[int, ...], most: int) -> Group:
        graph = scene.graph

        def same(index: int) -> tuple[object, ...]:
            return (
                line(index),
                scene.node_devices[index],
                scene.marks.marks[index],
                crossing(scene, index) is not None and index,
            )

        def line(index: int) -> tuple[object, ...]:
            frame = self.words.frame(graph.nodes[index].site)
            return (frame.path, frame.line) if frame is not None else ()

        def look(index: int) -> tuple[object, ...]:
            node = graph.nodes[index]
            leaves = tuple(_attribute(self.words, graph, leaf) for leaf in scene.wiring.leaves[index])
            return node.name, node.custom, scene.node_devices[index], leaves, scene.marks.marks[index]

        def kind(group: Group) -> str:
            return self.words.module_type(group.call.module) if group.call is not None else group.label

        def function(index: int) -> str:
            frame = self.words.frame(graph.nodes[index].site)
            return f"{frame.function} · lines from {frame.first_line}" if frame is not None else "unseen code"

        root = fold(by_call(graph, order, self.calls, same), scene.wiring, look, kind, line)
        return tamed(root, function, most)

    def subtitle(self, subject: Subject) -> tuple[str, ...]:
        """Returns where and when a backward ran, how large its graph is, and what became of it."""
        backward = subject.backward
        graph = subject.graph
        leaves = sum(is_leaf(graph, index) for index in range(len(graph.nodes)))
        nodes = f"{plural(len(graph.nodes) - leaves, 'node')} and {plural(leaves, 'leaf')}"
        lines = [f"{subject.place} · {subject.when} · {nodes}"]
        if backward.error is not None:
            lines.append(clip(f"raised {backward.error_type}: {backward.error}", 120))
        elif backward.create_graph:
            lines.append("create_graph=True: builds a graph of its own and keeps this one")
        elif backward.retain_graph:
            lines.append("retain_graph=True: keeps what it walks")
        else:
            lines.append("frees what it walks when it ends")
        return tuple(lines)


def _numbers(graph: Graph, calls: dict[Serial, ModuleCall]) -> dict[Serial, tuple[int, int]]:
    """Returns which of how many calls of its module each outermost call in a graph is."""
    outer: set[Serial] = set()
    for node in graph.nodes:
        call = calls.get(node.call) if node.call is not None else None
        while call is not None and call.parent in calls:
            call = calls[call.parent]
        if call is not None:
            outer.add(call.serial)
    totals = Counter(calls[serial].module for serial in outer)
    seen: Counter[ModuleId] = Counter()
    numbers: dict[Serial, tuple[int, int]] = {}
    for serial in sorted(outer):
        module = calls[serial].module
        seen[module] += 1
        numbers[serial] = (seen[module], totals[module])
    return numbers


def _attribute(words: Words, graph: Graph, leaf: int) -> str:
    tensor = graph.nodes[leaf].leaf
    parameter = words.parameter(tensor) if tensor is not None else None
    return parameter.name if parameter is not None else ""


def _mixed(scene: Scene, item: Item) -> bool:
    """Whether some nodes below an item are marked otherwise, or lie elsewhere, than others."""
    return len({(scene.marks.marks[index], scene.node_devices[index]) for index in nodes_of((item,))}) > 1


def _chained(stage: Stage, source: int, target: int) -> bool:
    """Whether an edge joins two bodies of one opened repeat, of which one is drawn."""
    ours, theirs = stage.bodies.get(source, {}), stage.bodies.get(target, {})
    return any(theirs.get(key, number) != number for key, number in ours.items())
