"""Optimizers that never step although backwards fill the gradients of their parameters.

May import `record` and the rest of `analysis`. An optimizer may be left alone for good reason: another one
steps its parameters, they are updated by hand, they are frozen by never being stepped. Told is one whose
parameters nothing changes in a run that came to its end, and that the loop does take care of: its gradients
are zeroed, its scheduler is stepped, or a backward is there for it alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import (
    Backward,
    Op,
    ScalerCall,
    SchedulerStep,
    ZeroGrad,
)
from graphlint.record.identity import OptimizerId, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_TWICE = 2
_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Unstepped:
    """An optimizer that never steps.

    Attributes:
        optimizer: which one.
        parameters: its parameters that get gradients.
        backwards: those that fill them, in time order; those for it alone where there are any.
        alone: whether no step of another optimizer uses these backwards.
        zero: a call that zeroes the gradients in between.
    """

    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    backwards: tuple[Backward, ...]
    alone: bool
    zero: ZeroGrad | None


class UnsteppedOptimizers:
    """Finds optimizers that never step."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Unstepped]:
        """Yields the optimizers that should have stepped and never did."""
        if not self._ran_to_its_end():
            return
        for optimizer in self._facts.trace.optimizers:
            if not self._facts.gradients.steps(optimizer) and optimizer not in self._scaled:
                found = self._of(optimizer)
                if found is not None:
                    yield found

    def _ran_to_its_end(self) -> bool:
        end = self._facts.trace.end
        if end is None or end.unseen or not self._facts.trace.events:
            return False
        return end.how == "finished" or (end.how == "exit" and not end.exit_code)

    @cached_property
    def _scaled(self) -> frozenset[OptimizerId]:
        """The optimizers that a gradient scaler was asked to step."""
        events = self._facts.trace.events
        return frozenset(
            event.optimizer
            for event in events
            if isinstance(event, ScalerCall) and event.method == "step" and event.optimizer is not None
        )

    def _of(self, optimizer: OptimizerId) -> Unstepped | None:
        facts = self._facts
        at = facts.trace.events[-1].serial
        parameters = set(facts.reach.trainable(optimizer, at))
        fills = [
            backward
            for backward in facts.graphs.backwards
            if backward.call != "autograd.grad"
            and backward.error is None
            and not parameters.isdisjoint(backward.reached)
            and self._optimized.issuperset(backward.reached)
        ]
        reached = tuple(t for t in parameters if any(t in backward.reached for backward in fills))
        if not reached or self._count(fills) < _TWICE or any(self._changes(t) for t in reached):
            return None
        if not facts.ledger.looked_at.isdisjoint(reached):
            return None
        own = [backward for backward in fills if not self._used_by_others(backward)]
        zero = self._zeroing(optimizer, set(reached), whoever=bool(own))
        cared = zero is not None or self._scheduled(optimizer)
        alone = [b for b in own if parameters.issuperset(b.reached)]
        if not cared and self._count(alone) < _SEEN_OFTEN:
            return None
        if not own and any(self._passed_by(backward, set(reached)) for backward in fills):
            return None
        backwards = tuple(facts.ledger.outermost(backward) for backward in own or fills)
        return Unstepped(optimizer, tuple(sorted(reached)), backwards, bool(own), zero)

    def _count(self, backwards: list[Backward]) -> int:
        """Returns how often backwards were run, the folded ones included."""
        return sum(1 + self._facts.steps.repeats(backward.serial) for backward in backwards)

    def _changes(self, tensor: TensorId) -> bool:
        """Tells whether anything steps a parameter, or writes to it after its first gradient."""
        first = next((moment for moment in self._facts.gradients.life(tensor)), None)
        if first is None:
            return True
        if any(moment.kind == "used" for moment in self._facts.gradients.life(tensor)):
            return True
        storage = self._facts.values.storage(tensor)
        writes = self._facts.values.writes(storage) if storage is not None else ()
        made = (event for event in self._facts.values.makers(tensor) if isinstance(event, Op))
        return any(event.serial > first.serial for event in (*writes, *made))

    def _passed_by(self, backward: Backward, mine: set[TensorId]) -> bool:
        """Tells whether a backward went through these parameters to others that it could reach without them.

        An adversary in a phase in which it is not trained lies like that.
        """
        graph = self._facts.graphs.of(backward)
        if graph is None:
            return True
        closed = frozenset(n for leaf in graph.leaves if leaf in mine for n in graph.meetings(leaf))
        theirs = graph.leaves.keys() - mine
        on_the_way = not theirs.isdisjoint(graph.leaves_below(closed))
        without = (graph.nodes[node].leaf for node in graph.downstream_without(closed))
        return on_the_way and not theirs.isdisjoint(leaf for leaf in without if leaf is not None)

    def _used_by_others(self, backward: Backward) -> bool:
        return bool(self._facts.ledger.steps_on(self._facts.ledger.outermost(backward)))

    @cached_property
    def _optimized(self) -> frozenset[TensorId]:
        """All parameters of all optimizers: a gradient of anything else may be what was wanted."""
        gradients = self._facts.gradients
        return frozenset(t for o in self._facts.trace.optimizers for t in gradients.parameters(o))

    def _zeroing(self, optimizer: OptimizerId, reached: set[TensorId], *, whoever: bool) -> ZeroGrad | None:
        """Returns a call, run time and again, that zeroes these gradients, and others only if `whoever`."""
        calls: dict[SiteId | None, list[ZeroGrad]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, ZeroGrad) and event.cleared:
                mine = whoever or event.optimizer == optimizer or reached.issuperset(event.cleared)
                if mine and not reached.isdisjoint(event.cleared):
                    calls.setdefault(event.site, []).append(event)
        for events in calls.values():
            if sum(1 + self._facts.steps.repeats(event.serial) for event in events) >= _TWICE:
                return events[0]
        return None

    def _scheduled(self, optimizer: OptimizerId) -> bool:
        events = self._facts.trace.events
        return any(
            isinstance(e, SchedulerStep) and e.optimizer == optimizer and not e.initial for e in events
        )
