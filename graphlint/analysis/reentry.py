"""A backward that enters nodes which an earlier backward walked: the whole case, worked out from the record.

May import `record` and the rest of `analysis`. Rules put it into words.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.graphs import BackwardGraph
from graphlint.record.events import Backward, Op, OptimizerStep, Repeat, Transfer, Visit
from graphlint.record.graph import Node
from graphlint.record.identity import Serial, StorageId, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Kind = Literal["same-loss", "carried", "kept", "shared"]
"""same-loss: a tensor backwarded twice; carried: a pass feeds the next one, which runs the same line again;
kept: made before the pass, or in an earlier step, and used by one pass after the other; shared: two losses of
one step stand on it."""


@dataclass(frozen=True, slots=True)
class Built:
    """Nodes that one line of the user's built.

    `frame` is that line; `inner` the innermost line, where it lies deeper. `tensors` came out of it.
    """

    frame: Frame
    inner: Frame
    nodes: tuple[int, ...]
    tensors: tuple[TensorId, ...]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A tensor that the freed nodes needed and that was changed before the graph was entered again."""

    tensor: TensorId
    event: OptimizerStep | Op


@dataclass(frozen=True, slots=True)
class Entered:
    """A tensor that came out of the freed nodes, and the later call that took it in."""

    tensor: TensorId
    taker: Op | Transfer


class Reentry:
    """One backward's way into a graph that an earlier backward freed.

    Where nothing was freed, into one that an earlier backward walked and kept.
    """

    def __init__(self, facts: "Facts", backward: Backward, graph: BackwardGraph) -> None:
        self._facts = facts
        self.backward = backward
        self.graph = graph

    @cached_property
    def nodes(self) -> frozenset[int]:
        """The freed (or else the kept) nodes that it enters."""
        return frozenset(self._visits)

    @property
    def _visits(self) -> dict[int, Visit]:
        return self.graph.freed or self.graph.visits

    @cached_property
    def frontier(self) -> tuple[int, ...]:
        """The freed nodes at which it enters."""
        return tuple(sorted(n for region in self.graph.regions(self._visits) for n in region.frontier))

    @cached_property
    def earlier(self) -> Backward | None:
        """The backward that freed them; None when it is not in the record."""
        freed_by = Counter(self._visits[node].backward for node in self.frontier)
        if not freed_by:
            return None
        serial = freed_by.most_common(1)[0][0]
        return self._facts.graphs.by_serial(serial) or self._equal_to(serial)

    def _equal_to(self, serial: Serial) -> Backward | None:
        """Returns the stored backward that one of a repeated step was equal to, where there is only one."""
        repeats = [
            event
            for event in self._facts.trace.events
            if isinstance(event, Repeat) and event.serial <= serial
        ]
        if not repeats:
            return None
        covering = repeats[-1]
        step = next((step for step in self._facts.steps.all if step.boundary == covering.like), None)
        found = [event for event in step.events if isinstance(event, Backward)] if step is not None else []
        return found[0] if len(found) == 1 else None

    @property
    def earlier_step(self) -> int | None:
        """The step of the earlier backward; None where only one equal to it was stored."""
        if self.earlier is None or self.earlier.serial not in {v.backward for v in self._visits.values()}:
            return None
        return self._facts.steps.step_of(self.earlier.serial)

    @cached_property
    def whole(self) -> bool:
        """Whether a root itself was freed: nothing of this graph is new."""
        return any(root in self.nodes for root in self.graph.graph.roots)

    @cached_property
    def entrances(self) -> tuple[Built, ...]:
        """The lines that built the nodes at which it enters, with all freed nodes of these lines."""
        lines = {self._line(node) for node in self.frontier}
        return tuple(built for built in self.lines if (built.frame.path, built.frame.line) in lines)

    @cached_property
    def lines(self) -> tuple[Built, ...]:
        """The lines that built the freed nodes, from the entrance to the leaves."""
        groups: dict[tuple[str, int] | None, list[int]] = {}
        for node in sorted(self.nodes):
            groups.setdefault(self._line(node), []).append(node)
        return tuple(self._built(nodes) for line, nodes in groups.items() if line is not None)

    @cached_property
    def behind(self) -> tuple[Built, ...]:
        """The lines behind the entrances: running an entrance again would meet their freed nodes."""
        if self.whole:
            return ()
        at = {(built.frame.path, built.frame.line) for built in self.entrances}
        return tuple(built for built in self.lines if (built.frame.path, built.frame.line) not in at)

    @cached_property
    def kind(self) -> Kind:
        """What sort of reuse it is."""
        if self.earlier is not None and set(self.earlier.roots) & set(self.backward.roots):
            return "same-loss"
        if self._carried():
            return "carried"
        if self.earlier is not None and self.earlier.site == self.backward.site:
            return "kept"
        now = self._facts.steps.of(self.backward.serial)
        built = [step for node in self.frontier if (step := self.graph.nodes[node].op) is not None]
        if now is not None and now.told and built and max(built) < now.first:
            return "kept"
        return "shared"

    @cached_property
    def leaves_behind(self) -> frozenset[TensorId]:
        """The leaves that get their gradient through the lines behind the entrances."""
        return self.graph.leaves_below(node for built in self.behind for node in built.nodes)

    @cached_property
    def leaves(self) -> frozenset[TensorId]:
        """The leaves that get their gradient through the freed nodes."""
        return self.graph.leaves_below(self.nodes)

    @cached_property
    def out_of_reach(self) -> tuple[TensorId, ...]:
        """The leaves with no way from the roots but through a freed node that torch refuses to enter."""
        refused = {node for node in self.nodes if self._first_sight(node).saves}
        open_ways = self.graph.downstream_without(refused)
        return tuple(leaf for leaf, node in self.graph.leaves.items() if node not in open_ways)

    @cached_property
    def steps_between(self) -> tuple[OptimizerStep, ...]:
        """The optimizer steps between the two backwards."""
        if self.earlier is None:
            return ()
        start = self.earlier.serial
        steps = self._facts.gradients.all_steps
        return tuple(step for step in steps if start < step.serial < self.backward.serial)

    @cached_property
    def users(self) -> tuple[OptimizerStep, ...]:
        """The optimizer steps that used the gradients of the earlier backward, before any other backward."""
        later = [b for b in self._facts.graphs.backwards if self.earlier and b.serial > self.earlier.serial]
        end = later[0].serial if later else self.backward.serial
        return tuple(step for step in self.steps_between if step.serial < end)

    def trained_by_earlier(self, leaves: Iterable[TensorId]) -> bool | None:
        """Tells whether an optimizer that used the earlier backward holds any of the leaves.

        None when no optimizer used it.
        """
        if not self.users:
            return None
        held = {t for step in self.users for t in self._facts.gradients.parameters(step.optimizer)}
        return not held.isdisjoint(leaves)

    @cached_property
    def handed_over(self) -> tuple[TensorId, ...]:
        """The tensors that the lines behind gave to the entrances: what a detach would cut."""
        entrances = {node for built in self.entrances for node in built.nodes}
        behind = {node for built in self.behind for node in built.nodes}
        found: dict[TensorId, None] = {}
        for source, target in self.graph.graph.edges:
            if source in entrances and target in behind:
                found.update(dict.fromkeys(self._facts.graphs.tensors(self.graph.nodes[target])))
        return tuple(found)

    @cached_property
    def entered(self) -> tuple[Entered, ...]:
        """The tensors by which what is new here enters the freed nodes, each with a new call that took it."""
        found: dict[TensorId, Entered] = {}
        old = self._built_along()
        for source, target in self.graph.graph.edges:
            if target not in old or source in old or source not in self.graph.executed:
                continue
            event = self._facts.graphs.event(self.graph.nodes[source])
            if event is None:
                continue
            taken = {use.tensor for use in self._facts.values.sources(event)}
            for tensor in self._facts.graphs.tensors(self.graph.nodes[target]):
                if tensor in taken:
                    found.setdefault(tensor, Entered(tensor, event))
        return tuple(found.values())

    def _built_along(self) -> frozenset[int]:
        """Returns the freed nodes, and those above them that were there when they were freed.

        The earlier backward walked only what its own loss needs: another output of the same call, which
        the next pass takes in, may have nodes that it left alone.
        """
        ops = {self.graph.nodes[node].op for node in self.frontier} - {None}
        freed = max((visit.backward for visit in self._visits.values()), default=Serial(-1))
        along = set(self.nodes)
        for node in self.graph.upstream(self.frontier):
            op = self.graph.nodes[node].op
            if op is not None and (op in ops or (self.kind == "carried" and op < freed)):
                along.add(node)
        return frozenset(along)

    @cached_property
    def handed_on(self) -> tuple[Built, ...]:
        """The lines by which an earlier pass left what this one takes in, above what its backward walked.

        They ran before that backward, which had no need of them: what is kept for the next pass is often
        made beside the loss, not on the way to it.
        """
        if self.kind not in {"carried", "kept"}:
            return ()
        freed = max((visit.backward for visit in self._visits.values()), default=Serial(-1))
        above = {
            node
            for node in self.graph.upstream(self.frontier) - self.nodes
            if (op := self.graph.nodes[node].op) is not None and op < freed
        }
        at = {self._inner(node) for node in self.frontier}
        top = [
            node
            for node in sorted(above)
            if self._inner(node) is not None
            and self._inner(node) not in at
            and any(before not in above for before in self.graph.walked.predecessors(node))
        ]
        lines = {self._inner(node): node for node in reversed(top)}
        return tuple(self._built([node]) for node in reversed(lines.values()))

    @cached_property
    def blockers(self) -> tuple[Blocker, ...]:
        """What a graph kept by retain_graph would have needed unchanged, and what changed it."""
        found: dict[TensorId, Blocker] = {}
        for storage, since in self._needed().items():
            for event in self._facts.values.changes(storage, since, self.backward.serial):
                for change in event.changed:
                    if self._facts.values.storage(change.tensor) == storage:
                        found.setdefault(change.tensor, Blocker(change.tensor, event))
        return tuple(found.values())

    @cached_property
    def later_blockers(self) -> tuple[Blocker, ...]:
        """What this pass's own nodes need unchanged in the next one, and the optimizer step that changes it.

        A pass that is carried on needs no weights where what it took in had no graph: then the graph that
        an optimizer spoils is that of the pass after it.
        """
        if self.kind != "carried":
            return ()
        lines = {self._inner(node) for node in self.nodes} - {None}
        found: dict[TensorId, Blocker] = {}
        for index in sorted(self.graph.upstream(self.frontier) - set(self.graph.visits)):
            node = self.graph.nodes[index]
            if self._inner(index) not in lines:
                continue
            for step in self.steps_between:
                held = self._facts.gradients.parameters(step.optimizer)
                for change in step.changed:
                    storage = self._facts.values.storage(change.tensor)
                    if change.tensor in held and storage in node.saved:
                        found.setdefault(change.tensor, Blocker(change.tensor, step))
        return tuple(found.values())

    @cached_property
    def needs_known(self) -> bool:
        """Whether the record tells what the freed nodes had saved."""
        return any(self._first_sight(node).saves for node in self.nodes)

    def _needed(self) -> dict[StorageId, Serial]:
        """Returns the memory that the freed nodes had saved, each with the time since when it was needed."""
        needed: dict[StorageId, Serial] = {}
        for index in self.nodes:
            node = self._first_sight(index)
            if node.op is None:
                continue
            for storage in node.saved:
                needed[storage] = min(needed.get(storage, node.op), node.op)
        return needed

    def _first_sight(self, index: int) -> Node:
        """Returns the node as the backward that freed it saw it, with what it then saved."""
        visit = self._visits[index]
        node = self.graph.nodes[index]
        if not node.saves:
            earlier = self._facts.graphs.by_serial(visit.backward)
            stored = self._facts.graphs.of(earlier) if earlier is not None else None
            if stored is not None:
                return stored.by_id.get(visit.node, node)
        return node

    def _carried(self) -> bool:
        """Tells whether a new node that leads to an entrance was built by the entrance's own line."""
        lines = {self._inner(node) for node in self.frontier} - {None}
        fresh = self.graph.upstream(self.frontier) - set(self.graph.visits)
        return any(self._inner(node) in lines for node in fresh)

    def _line(self, index: int) -> tuple[str, int] | None:
        frame = self._facts.graphs.common_frame(self.graph.nodes[index].site, self.backward.site)
        return (frame.path, frame.line) if frame is not None else None

    def _inner(self, index: int) -> tuple[str, int] | None:
        frame = self._facts.graphs.frame(self.graph.nodes[index].site)
        return (frame.path, frame.line) if frame is not None else None

    def _built(self, nodes: Sequence[int]) -> Built:
        first = self.graph.nodes[nodes[0]]
        frame = self._facts.graphs.common_frame(first.site, self.backward.site)
        inner = self._facts.graphs.frame(first.site)
        if frame is None or inner is None:  # a line was found for these nodes, so they have frames
            raise AssertionError(first)
        return Built(frame, inner, tuple(nodes), self._facts.graphs.tensors(first))
