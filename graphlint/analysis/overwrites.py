"""Tensors that the graph of a backward had saved and that were written to before it ran.

May import `record` and the rest of `analysis`. Two kinds: those that torch's version counter saw (the
backward raised), and those written through `.data` or another detached alias, which no counter sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.failures import ChangedTensor, met_changed_tensor
from graphlint.analysis.graphs import BackwardGraph
from graphlint.record.events import Backward, Change, Op, OptimizerStep
from graphlint.record.graph import Node
from graphlint.record.identity import Serial, StorageId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A saved tensor and the event that wrote to it.

    Attributes:
        backward: the backward that needed it.
        node: the node that had saved it.
        tensor: the tensor that was written to.
        event: the optimizer step or the operation that wrote.
        others: how many further tensors saved by this graph the same event wrote to.
    """

    backward: Backward
    node: Node
    tensor: TensorId
    event: OptimizerStep | Op
    others: int


class Overwrites:
    """Finds overwritten saved tensors."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def refused(self, backward: Backward) -> Overwrite | None:
        """Returns the write for which torch refused a backward; None when the record doesn't show it."""
        told = met_changed_tensor(backward)
        graph = self._facts.graphs.of(backward)
        if told is None or graph is None:
            return None
        found = [
            (self._score(change, told), overwrite) for overwrite, change in self._candidates(backward, graph)
        ]
        if not found:
            return None
        best = max(score for score, _ in found)
        matching = [overwrite for score, overwrite in found if score == best]
        first = matching[0]
        written = {o.tensor for _, o in found if o.event.serial == first.event.serial}
        return Overwrite(first.backward, first.node, first.tensor, first.event, len(written) - 1)

    def _candidates(self, backward: Backward, graph: BackwardGraph) -> Iterator[tuple[Overwrite, Change]]:
        """Yields every write to memory that an executed node had saved, between the node and the backward."""
        for node in self._executed(graph):
            since = self._since(backward, node)
            if since is None:
                continue
            for storage in dict.fromkeys(node.saved):
                for event, change in self._changes(storage, since, backward.serial):
                    yield Overwrite(backward, node, change.tensor, event, 0), change

    def _changes(
        self, storage: StorageId, after: Serial, before: Serial
    ) -> Iterator[tuple[OptimizerStep | Op, Change]]:
        for event in self._facts.values.changes(storage, after, before):
            for change in event.changed:
                if self._facts.values.storage(change.tensor) == storage:
                    yield event, change

    def _since(self, backward: Backward, node: Node) -> Serial | None:
        """Returns when a node was built; for a watched backward, whose graph is older, its step's start."""
        if not backward.same_shape:
            return node.op
        step = self._facts.steps.of(backward.serial)
        return step.first if step is not None else None

    def _executed(self, graph: BackwardGraph) -> Iterator[Node]:
        for index in sorted(graph.executed):
            node = graph.nodes[index]
            if node.leaf is None and node.saved:
                yield node

    def _score(self, change: Change, told: ChangedTensor) -> tuple[bool, bool, bool]:
        """Returns how well a write fits what torch told: the versions first, then the shape."""
        row = self._facts.trace.tensors.get(change.tensor)
        shape = tuple(row.shape) if row is not None else None
        same_shape = told.shape is not None and shape in {told.shape, told.shape[::-1]}
        return change.before == told.expected, told.expected < change.after <= told.version, same_shape

    def unseen(self, backward: Backward) -> Iterator[Overwrite]:
        """Yields the writes through a detached alias to what a backward then read without an error.

        Proved only where the alias was taken, whole, from the very tensor that the saving operation read or
        made, the record shows the write after that operation, and the node still held the tensor.
        """
        graph = self._facts.graphs.of(backward)
        if backward.error is not None or graph is None or backward.same_shape:
            return
        reported: set[tuple[Serial, TensorId]] = set()
        for node in self._executed(graph):
            saver = self._facts.graphs.event(node)
            if not isinstance(saver, Op):
                continue
            for storage in dict.fromkeys(node.saved):
                for event, change in self._changes(storage, saver.serial, backward.serial):
                    origin = self._taken_from(change.tensor, saver)
                    if origin is not None and (event.serial, origin) not in reported:
                        reported.add((event.serial, origin))
                        yield Overwrite(backward, node, origin, event, 0)

    def _taken_from(self, alias: TensorId, saver: Op) -> TensorId | None:
        """Returns the tensor of the saving operation that `alias` is a gradient-free alias of.

        An alias that shares the version counter would have made torch raise, so this one has its own.
        """
        own = {use.tensor for use in saver.inputs} | set(saver.outputs)
        for event in self._facts.values.makers(alias):
            if not isinstance(event, Op) or event.changed or event.seq[0] != event.seq[1]:
                continue
            for use in event.inputs:
                same = use.tensor != alias and self._facts.values.same_memory(use.tensor, alias)
                if same and use.tensor in own:
                    return use.tensor
        return None
