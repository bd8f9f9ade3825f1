"""The gradient graph of each backward: what it executed, what it reached, what was freed before.

May import `record` only. `networkx` is imported when the first graph is asked for. Nodes are named by their
0-based index in the snapshot.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import Backward, Op, Transfer, Visit
from graphlint.record.graph import Graph, Node
from graphlint.record.identity import NodeId, Serial, SiteId, TensorId
from graphlint.record.tables import Frame
from graphlint.record.trace import Trace

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Region:
    """A connected part of the nodes that an earlier backward freed and this one enters again.

    `frontier` are those entered from outside of it, or roots: where the walk meets the freed part.
    """

    nodes: tuple[int, ...]
    frontier: tuple[int, ...]


class BackwardGraph:
    """The graph that one backward was given."""

    def __init__(self, backward: Backward, graph: Graph) -> None:
        self.backward = backward
        self.graph = graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, breadth first from the roots."""
        return self.graph.nodes

    @cached_property
    def executed(self) -> frozenset[int]:
        """The nodes that this backward executes, as far as the snapshot goes."""
        stored = range(len(self.graph.nodes))
        if self.backward.executed is None:
            return frozenset(stored)
        return frozenset(index for index in self.backward.executed if index in stored)

    @cached_property
    def by_id(self) -> dict[NodeId, Node]:
        """The nodes by their identity; leaves have none."""
        return {node.id: node for node in self.graph.nodes if node.leaf is None}

    @cached_property
    def digraph(self) -> "nx.DiGraph":
        """The whole graph, edges in the direction in which gradients flow."""
        import networkx as nx

        digraph = nx.DiGraph()
        digraph.add_nodes_from(range(len(self.graph.nodes)))
        digraph.add_edges_from(self.graph.edges)
        return digraph

    @cached_property
    def walked(self) -> "nx.DiGraph":
        """The executed part of the graph."""
        return self.digraph.subgraph(self.executed).copy()

    @cached_property
    def leaves(self) -> dict[TensorId, int]:
        """The leaves among the executed nodes, each with its node."""
        found: dict[TensorId, int] = {}
        for index in sorted(self.executed):
            leaf = self.graph.nodes[index].leaf
            if leaf is not None:
                found[leaf] = index
        return found

    @cached_property
    def visits(self) -> dict[int, Visit]:
        """The executed nodes, leaves left out, that earlier backwards had walked."""
        return {
            visit.index: visit
            for visit in self.backward.visits
            if visit.index in self.executed and self.graph.nodes[visit.index].leaf is None
        }

    @cached_property
    def freed(self) -> dict[int, Visit]:
        """The executed nodes, leaves left out, that an earlier backward had freed."""
        return {index: visit for index, visit in self.visits.items() if visit.freed}

    def regions(self, among: Iterable[int] | None = None) -> tuple[Region, ...]:
        """Returns the connected parts of the freed nodes (or of `among`), largest first."""
        import networkx as nx

        part = self.walked.subgraph(self.freed if among is None else among)
        found = []
        for component in nx.weakly_connected_components(part):
            nodes = tuple(sorted(component))
            found.append(Region(nodes, tuple(n for n in nodes if self._entered(n, component))))
        return tuple(sorted(found, key=lambda region: (-len(region.nodes), region.nodes)))

    def _entered(self, node: int, region: set[int]) -> bool:
        if node in self.graph.roots:
            return True
        return any(before not in region for before in self.walked.predecessors(node))

    def downstream(self, nodes: Iterable[int]) -> frozenset[int]:
        """Returns the executed nodes that receive a gradient through `nodes`, those included."""
        return _closure(nodes, self.walked.successors)

    def downstream_without(self, closed: Container[int]) -> frozenset[int]:
        """Returns the executed nodes that a gradient reaches from the roots without entering `closed`."""
        roots = (root for root in self.graph.roots if root in self.executed and root not in closed)
        return _closure(roots, lambda node: (n for n in self.walked.successors(node) if n not in closed))

    def upstream(self, nodes: Iterable[int]) -> frozenset[int]:
        """Returns the executed nodes whose gradient goes to `nodes`, those included."""
        return _closure(nodes, self.walked.predecessors)

    def leaves_below(self, nodes: Iterable[int]) -> frozenset[TensorId]:
        """Returns the leaves that receive a gradient through `nodes`."""
        below = self.downstream(nodes)
        return frozenset(leaf for index in below if (leaf := self.graph.nodes[index].leaf) is not None)

    def meetings(self, leaf: TensorId) -> frozenset[int]:
        """Returns the nodes at which a leaf met something else on its way to the roots.

        What was computed from the leaf alone, a transposed weight, lies below them.
        """
        found: set[int] = set()
        waiting = [self.leaves[leaf]]
        while waiting:
            for before in self.walked.predecessors(waiting.pop()):
                if self.leaves_below((before,)) == {leaf}:
                    waiting.append(before)
                else:
                    found.add(before)
        return frozenset(found)


def _closure(nodes: Iterable[int], step: Callable[[int], Iterable[int]]) -> frozenset[int]:
    seen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(step(node))
    return frozenset(seen)


class Graphs:
    """The gradient graphs of a trace's backwards."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._cache: dict[Serial, BackwardGraph | None] = {}

    def of(self, backward: Backward) -> BackwardGraph | None:
        """Returns the graph that a backward was given; None when it had none or none was stored."""
        if backward.serial not in self._cache:
            graph = self._trace.graphs.get(backward.graph) if backward.graph is not None else None
            self._cache[backward.serial] = BackwardGraph(backward, graph) if graph is not None else None
        return self._cache[backward.serial]

    @cached_property
    def backwards(self) -> tuple[Backward, ...]:
        """All backwards, in time order."""
        return tuple(event for event in self._trace.events if isinstance(event, Backward))

    def by_serial(self, serial: Serial) -> Backward | None:
        """Returns the backward with that serial; None when it is not in the record."""
        return self._by_serial.get(serial)

    @cached_property
    def _by_serial(self) -> dict[Serial, Backward]:
        return {backward.serial: backward for backward in self.backwards}

    def event(self, node: Node) -> Op | Transfer | None:
        """Returns the operation or the transfer that built a node; None where none was recorded."""
        return self._builders.get(node.op) if node.op is not None else None

    @cached_property
    def _builders(self) -> dict[Serial, Op | Transfer]:
        return {event.serial: event for event in self._trace.events if isinstance(event, Op | Transfer)}

    def tensors(self, node: Node) -> tuple[TensorId, ...]:
        """Returns the tensors that came out of the call that built a node, those with gradients."""
        match self.event(node):
            case Op() as op:
                grads = zip(op.outputs, op.output_grads, strict=False)
                return tuple(tensor for tensor, grad in grads if grad)
            case Transfer() as transfer:
                return (transfer.result,)
            case None:
                return ()

    def frames(self, site: SiteId | None) -> tuple[Frame, ...]:
        """Returns the user's frames of a site, innermost first; empty when there are none."""
        found = self._trace.sites.get(site) if site is not None else None
        return found.frames if found is not None else ()

    def frame(self, site: SiteId | None) -> Frame | None:
        """Returns the innermost user frame of a site."""
        frames = self.frames(site)
        return frames[0] if frames else None

    def common_frame(self, site: SiteId | None, seen_from: SiteId | None) -> Frame | None:
        """Returns the frame of `site` that a reader standing at `seen_from` knows.

        That is the innermost frame that runs a function which is on the call chain of `seen_from` too: the
        line in the training loop, rather than the one inside a module's forward. The innermost frame when
        they have no function in common.
        """
        chain = {_function(frame) for frame in self.frames(seen_from)}
        frames = self.frames(site)
        for frame in frames:
            if _function(frame) in chain:
                return frame
        return frames[0] if frames else None

    def parting(self, one: SiteId | None, other: SiteId | None) -> tuple[Frame, Frame] | None:
        """Returns the outermost frames in which two call chains differ by their lines; None when equal."""
        for a, b in zip(reversed(self.frames(one)), reversed(self.frames(other)), strict=False):
            if a != b:
                return a, b
        return None


def _function(frame: Frame) -> tuple[str, str, int]:
    return frame.path, frame.function, frame.first_line
