"""Graphs that a backward kept (`retain_graph`, `create_graph`) and that no later backward entered.

May import `record` and the rest of `analysis`. A line that kept a graph is judged as a whole: where any of
its backwards left something that was entered later, keeping is needed there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import Backward
from graphlint.record.identity import Serial, StorageId, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Retained:
    """A line whose backwards keep graphs for nothing.

    Attributes:
        frame: the line.
        backwards: what it ran, in time order.
        count: how often it ran, repeated steps included.
        saved_bytes: what the nodes of one of its graphs had saved, parameters and batches left out; 0 where
            that was not recorded.
    """

    frame: Frame
    backwards: tuple[Backward, ...]
    count: int
    saved_bytes: int

    @property
    def creates(self) -> bool:
        """Whether a graph of the gradients was built too."""
        return any(backward.create_graph for backward in self.backwards)


class RetainedGraphs:
    """Finds graphs that were kept for nothing."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def needless(self) -> Iterator[Retained]:
        """Yields the lines that keep graphs which nothing enters, seen often enough to tell."""
        for frame, backwards in self._lines.items():
            if any(backward.serial in self._entered for backward in backwards):
                continue
            count = sum(1 + self._facts.steps.repeats(backward.serial) for backward in backwards)
            if count < _SEEN_OFTEN or not self._often(backwards) or not self._told(backwards):
                continue
            yield Retained(frame, tuple(backwards), count, max(map(self._saved_bytes, backwards)))

    @cached_property
    def _lines(self) -> dict[Frame, list[Backward]]:
        """The backwards that kept their graphs, by the line that asked for it."""
        lines: dict[Frame, list[Backward]] = {}
        for backward in self._facts.graphs.backwards:
            frame = self._facts.graphs.frame(backward.site)
            if frame is None or not backward.retain_graph or backward.by_torch or backward.nested:
                continue
            if backward.error is None and backward.nodes:
                lines.setdefault(frame, []).append(backward)
        return lines

    def _often(self, backwards: list[Backward]) -> bool:
        """Tells whether the run went on, or ended by itself, after enough of them."""
        end = self._facts.trace.end
        if end is not None and end.how == "finished":
            return True
        steps = {self._facts.steps.step_of(backward.serial) for backward in backwards} - {None}
        repeats = sum(self._facts.steps.repeats(backward.serial) for backward in backwards)
        return len(steps) + repeats >= _SEEN_OFTEN

    def _told(self, backwards: list[Backward]) -> bool:
        """Tells whether an entry would show: into a gradient's own graph only at the full level."""
        if not any(backward.create_graph for backward in backwards):
            return True
        steps = (self._facts.steps.of(b.serial) for b in backwards if b.create_graph)
        return any(step is not None and step.level == "full" for step in steps)

    @cached_property
    def _entered(self) -> frozenset[Serial]:
        """The backwards whose graph, or whose gradients' graph, a later backward entered."""
        entered: set[Serial] = set()
        makers: dict[TensorId, Serial] = {}
        for backward in self._facts.graphs.backwards:
            entered.update(visit.backward for visit in backward.visits)
            graph = self._facts.graphs.of(backward)
            if graph is not None:
                entered.update(n.op for n in graph.nodes if n.op is not None and n.op in self._creating)
            if not backward.same_shape:
                unseen = {tensor: maker for tensor, maker in makers.items() if maker not in entered}
                entered.update(unseen[tensor] for tensor in self._differentiated(backward, unseen))
            if backward.create_graph:
                makers.update(dict.fromkeys(backward.outputs, backward.serial))
        return frozenset(entered)

    def _differentiated(self, backward: Backward, gradients: Iterable[TensorId]) -> Iterator[TensorId]:
        """Yields those of some gradients that a backward differentiates once more.

        This tells what a graph built in a thread of torch's own, whose nodes have no lines, does not.
        """
        for root in backward.roots:
            upstream = self._facts.values.flow(root, backward.serial).tensors
            for tensor in upstream.intersection(gradients):
                if self._facts.cuts.connection(root, backward.serial, (tensor,)).carried:
                    yield tensor

    @cached_property
    def _creating(self) -> frozenset[Serial]:
        return frozenset(b.serial for b in self._facts.graphs.backwards if b.create_graph)

    def _saved_bytes(self, backward: Backward) -> int:
        graph = self._facts.graphs.of(backward)
        if graph is None:
            return 0
        nodes = (graph.nodes[index] for index in graph.executed)
        storages = {storage for node in nodes for storage in node.saved} - self._held_anyway
        return sum(self._storage_bytes.get(storage, 0) for storage in storages)

    @cached_property
    def _held_anyway(self) -> frozenset[StorageId]:
        """The memory of parameters, buffers and leaves, which no graph keeps alive."""
        tensors = self._facts.trace.tensors
        leaves = {row.storage for row in tensors.values() if row.leaf and row.requires_grad}
        places = {
            tensors[place.tensor].storage for place in self._facts.trace.parameters if place.tensor in tensors
        }
        return frozenset(leaves | places)

    @cached_property
    def _storage_bytes(self) -> dict[StorageId, int]:
        """The most that a tensor in each memory takes; memory is at least as large."""
        found: dict[StorageId, int] = {}
        for row in self._facts.trace.tensors.values():
            found[row.storage] = max(found.get(row.storage, 0), row.bytes)
        return found
