"""Parts of a backward whose gradients were all zeroed unused, and that a detach would have spared.

May import `record` and the rest of `analysis`. What lies on the way to a gradient that is used can't be
spared: a generator's backward has to go through the discriminator. So an optimizer's parameters count only
when every place where they met the data led to discarded gradients alone.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.graphs import BackwardGraph
from graphlint.analysis.unstepped import UnsteppedOptimizers
from graphlint.record.events import Backward, ZeroGrad
from graphlint.record.identity import NodeId, OptimizerId, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


@dataclass(frozen=True, slots=True)
class Discard:
    """A part of a backward that served nothing.

    Attributes:
        backward: the backward.
        optimizer: whose parameters got the discarded gradients.
        parameters: those parameters.
        kept: the leaves whose gradients were used.
        zeroed: what zeroed them.
        nodes: the nodes that a detach would have spared.
        executed: how many nodes the backward executed, leaves left out.
        built: the site that built most of the spared nodes.
        handed_over: the tensors to detach.
        taken_at: the site at which the first of them entered the kept part.
    """

    backward: Backward
    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    kept: tuple[TensorId, ...]
    zeroed: ZeroGrad
    nodes: frozenset[int]
    executed: int
    built: SiteId | None
    handed_over: tuple[TensorId, ...]
    taken_at: SiteId | None


class _Part:
    """One backward's graph, with the leaves below each node."""

    def __init__(self, graph: BackwardGraph, discarded: frozenset[TensorId]) -> None:
        self._graph = graph
        self._discarded = discarded

    @cached_property
    def below(self) -> dict[int, frozenset[TensorId]]:
        """The leaves that each executed node leads to."""
        import networkx as nx

        found: dict[int, frozenset[TensorId]] = {}
        for node in reversed(list(nx.topological_sort(self._graph.walked))):
            leaf = self._graph.nodes[node].leaf
            own = frozenset() if leaf is None else frozenset((leaf,))
            found[node] = own.union(*(found[after] for after in self._graph.walked.successors(node)))
        return found

    @cached_property
    def wasted(self) -> frozenset[int]:
        """The nodes that lead to discarded gradients and to no others, leaves left out."""
        return frozenset(
            node
            for node, leaves in self.below.items()
            if leaves and leaves <= self._discarded and self._graph.nodes[node].leaf is None
        )

    def meetings(self, leaf: TensorId) -> frozenset[int]:
        """Returns the nodes at which a leaf met something else on its way to the roots.

        What was computed from the leaf alone, a transposed weight, lies below them.
        """
        start = self._graph.leaves[leaf]
        found: set[int] = set()
        waiting = [start]
        while waiting:
            for before in self._graph.walked.predecessors(waiting.pop()):
                if self.below[before] == {leaf}:
                    waiting.append(before)
                else:
                    found.add(before)
        return frozenset(found)


class Discards:
    """Finds the parts of backwards that served nothing."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Discard]:
        """Yields each part of a backward that a detach would have spared."""
        for backward in self._facts.graphs.backwards:
            graph = self._facts.graphs.of(backward)
            fills = backward.call != "autograd.grad" and backward.error is None and not backward.nested
            if graph is not None and fills and not backward.same_shape and not graph.graph.truncated:
                yield from self._of(backward, graph)

    def _of(self, backward: Backward, graph: BackwardGraph) -> Iterator[Discard]:
        fates = {leaf: self._fate(leaf, backward) for leaf in graph.leaves}
        zeroed = {leaf: fate for leaf, fate in fates.items() if isinstance(fate, ZeroGrad)}
        kept = tuple(leaf for leaf, fate in fates.items() if fate == "used")
        if not zeroed or not kept:
            return
        part = _Part(graph, frozenset(zeroed))
        if not part.wasted or not part.wasted.isdisjoint(graph.graph.roots):
            return
        for optimizer in self._facts.trace.optimizers:
            held = [t for t in self._facts.gradients.parameters(optimizer) if t in graph.leaves]
            spared = held and all(t in zeroed and _alone(part, t) for t in held)
            if spared and not self._meant(optimizer, backward):
                yield from self._discard(backward, graph, part, optimizer, tuple(held), kept, zeroed[held[0]])

    def _meant(self, optimizer: OptimizerId, backward: Backward) -> bool:
        """Tells whether the loss is there for an optimizer all the same.

        It uses such a backward at another time, or it ought to: that it never steps is another fault.
        """
        if optimizer in self._unstepped:
            return True
        ledger = self._facts.ledger
        portions = (one.portion for use in ledger.of(optimizer) for held in use.held.values() for one in held)
        sources = {portion.source for portion in portions}
        return any(source is not None and ledger.same_loss(source, backward) for source in sources)

    @cached_property
    def _unstepped(self) -> frozenset[OptimizerId]:
        return frozenset(found.optimizer for found in UnsteppedOptimizers(self._facts).all())

    def _fate(self, leaf: TensorId, backward: Backward) -> ZeroGrad | str:
        """Returns what became of a leaf's gradient: the event that zeroed it, "used", or "" when unknown.

        A gradient that the user's code copied is used. Copies go unseen in steps that are only watched:
        there a copy at any other time counts.
        """
        ledger = self._facts.ledger
        for moment in self._facts.gradients.life(leaf):
            if moment.serial <= backward.serial:
                continue
            if moment.kind == "used":
                return "used"
            if isinstance(moment.event, ZeroGrad):
                seen = ledger.seen(backward.serial, moment.serial)
                copied = (
                    ledger.taken(leaf, backward.serial, moment.serial) if seen else ledger.ever_taken(leaf)
                )
                return "used" if copied else moment.event
        return ""

    def _discard(
        self,
        backward: Backward,
        graph: BackwardGraph,
        part: _Part,
        optimizer: OptimizerId,
        parameters: tuple[TensorId, ...],
        kept: tuple[TensorId, ...],
        zeroed: ZeroGrad,
    ) -> Iterator[Discard]:
        mine = set(parameters)
        nodes = frozenset(node for node in part.wasted if not part.below[node].isdisjoint(mine))
        crossings = [
            (before, node)
            for node in sorted(nodes)
            for before in graph.walked.predecessors(node)
            if before not in part.wasted
        ]
        ids = {graph.nodes[node].id for node in nodes}
        if self._entered_again(backward, {graph.nodes[before].id for before, _ in crossings}, ids):
            return
        handed = dict.fromkeys(t for _, n in crossings for t in self._facts.graphs.tensors(graph.nodes[n]))
        yield Discard(
            backward=backward,
            optimizer=optimizer,
            parameters=parameters,
            kept=kept,
            zeroed=zeroed,
            nodes=nodes,
            executed=sum(1 for node in graph.executed if graph.nodes[node].leaf is None),
            built=self._most_common_site(backward, graph, nodes),
            handed_over=tuple(handed),
            taken_at=graph.nodes[crossings[0][0]].site if crossings else None,
        )

    def _entered_again(self, backward: Backward, entrances: set[NodeId], spared: set[NodeId]) -> bool:
        """Tells whether a later backward needs this very way, or failed there: that is another fault."""
        for later in self._facts.graphs.backwards:
            if later.serial > backward.serial:
                nodes = {visit.node for visit in later.visits}
                if not nodes.isdisjoint(entrances) or (
                    later.error is not None and not nodes.isdisjoint(spared)
                ):
                    return True
        return False

    def _most_common_site(
        self, backward: Backward, graph: BackwardGraph, nodes: frozenset[int]
    ) -> SiteId | None:
        """Returns a site on the line, known to the reader of the backward, that built most of the nodes."""
        lines: Counter[tuple[str, int]] = Counter()
        sites: dict[tuple[str, int], SiteId] = {}
        for node in sorted(nodes):
            site = graph.nodes[node].site
            frame = self._facts.graphs.common_frame(site, backward.site)
            if frame is not None and site is not None:
                lines[frame.path, frame.line] += 1
                sites.setdefault((frame.path, frame.line), site)
        return sites[lines.most_common(1)[0][0]] if lines else None


def _alone(part: _Part, leaf: TensorId) -> bool:
    """Tells whether a leaf met the data only where nothing but discarded gradients lay below."""
    meetings = part.meetings(leaf)
    return bool(meetings) and meetings <= part.wasted
