"""Gradients that pass a second time, without an error, through a graph that was walked before.

May import `record` and the rest of `analysis`. Two losses that share a graph are right: each adds its own.
Told here is only what the record proves to be a repetition: a loss that is counted twice, and a copy of
parameters that was made before they were stepped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.graphs import BackwardGraph
from graphlint.record.events import Backward, Op, OptimizerStep, Transfer
from graphlint.record.identity import NodeId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


@dataclass(frozen=True, slots=True)
class Recount:
    """A loss whose gradient was added to the same parameters twice.

    Attributes:
        backward: the second backward.
        earlier: the first, which was called on the loss itself.
        parameters: whose gradients held the first contribution still.
        joined: the operation that took the loss into the second backward's root; None: it is the root.
    """

    backward: Backward
    earlier: Backward
    parameters: tuple[TensorId, ...]
    joined: Op | Transfer | None


@dataclass(frozen=True, slots=True)
class Stale:
    """A copy of a parameter made before a step changed the parameter, and differentiated again after it.

    Attributes:
        backward: the later backward.
        parameter: what was copied.
        made: the operation that made the copy.
        copy: the tensor that came out of it.
        step: the optimizer step that changed the parameter since.
        user: the operation that read the copy for this backward; None when not recorded.
    """

    backward: Backward
    parameter: TensorId
    made: Op | Transfer
    copy: TensorId
    step: OptimizerStep
    user: Op | Transfer | None


class Recounts:
    """Finds what is counted twice."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def _fills(self) -> tuple[tuple[Backward, BackwardGraph], ...]:
        """The backwards that filled gradients, each with its own graph."""
        found = []
        for backward in self._facts.graphs.backwards:
            graph = self._facts.graphs.of(backward)
            if graph is None or backward.error is not None or backward.same_shape:
                continue
            if backward.call != "autograd.grad":
                found.append((backward, graph))
        return tuple(found)

    @cached_property
    def _roots(self) -> dict[NodeId, list[Backward]]:
        """The backwards that began at a node, where that node belongs to a loss of one element."""
        roots: dict[NodeId, list[Backward]] = {}
        for backward, graph in self._fills:
            rows = [self._facts.trace.tensors.get(root) for root in backward.roots]
            if len(rows) == 1 and rows[0] is not None and all(size == 1 for size in rows[0].shape):
                for index in graph.graph.roots:
                    roots.setdefault(graph.nodes[index].id, []).append(backward)
        return roots

    def counted_twice(self) -> Iterator[Recount]:
        """Yields each backward that contains the whole of an earlier one whose gradient is still there."""
        for backward, graph in self._fills:
            for index in sorted(graph.visits):
                for earlier in self._roots.get(graph.nodes[index].id, ()):
                    if earlier.serial >= backward.serial:
                        continue
                    parameters = self._still_held(earlier, backward, graph.leaves_below((index,)))
                    joined = self._joined(graph, index)
                    if parameters and (joined is not None or index in graph.graph.roots):
                        # One that an earlier one holds, as in a running sum, is counted with that.
                        yield Recount(backward, earlier, parameters, joined)

    def _still_held(
        self, earlier: Backward, backward: Backward, leaves: frozenset[TensorId]
    ) -> tuple[TensorId, ...]:
        """Returns the leaves whose gradient held the earlier contribution when the later one was added."""
        held = []
        for leaf in sorted(leaves & set(earlier.reached) & set(backward.accumulated)):
            between = self._facts.gradients.between(leaf, earlier.serial, backward.serial)
            if not any(moment.kind in {"cleared", "assigned", "used"} for moment in between):
                held.append(leaf)
        return tuple(held)

    def _joined(self, graph: BackwardGraph, index: int) -> Op | Transfer | None:
        before = [node for node in graph.walked.predecessors(index) if node not in graph.visits]
        return self._facts.graphs.event(graph.nodes[before[0]]) if before else None

    def stale(self) -> Iterator[Stale]:
        """Yields each copy of a parameter that a backward went through after the parameter had changed."""
        for backward, graph in self._fills:
            step = self._facts.steps.of(backward.serial)
            for index in sorted(graph.visits):
                made = self._facts.graphs.event(graph.nodes[index])
                if made is None or step is None or made.serial >= step.first:
                    continue
                for following in graph.walked.successors(index):
                    leaf = graph.nodes[following].leaf
                    if leaf is not None:
                        yield from self._stale(backward, made, leaf, self._joined(graph, index))

    def _stale(
        self, backward: Backward, made: Op | Transfer, parameter: TensorId, user: Op | Transfer | None
    ) -> Iterator[Stale]:
        if not self._facts.names.places(parameter) and not self._facts.gradients.optimizers(parameter):
            return
        results = made.outputs if isinstance(made, Op) else (made.result,)
        for copy in results:
            if self._facts.values.storage(copy) == self._facts.values.storage(parameter):
                continue  # a view sees the new values
            for step in self._facts.gradients.all_steps:
                changed = {change.tensor for change in step.changed}
                if made.serial < step.serial < backward.serial and parameter in changed:
                    yield Stale(backward, parameter, made, copy, step, user)
                    return
