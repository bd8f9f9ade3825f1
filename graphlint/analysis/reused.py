"""Steps that use gradients which an earlier step of the same optimizer had used already.

May import `record` and the rest of `analysis`. Told are steps between which everything was recorded in full,
so that clearing by hand would have been seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.account import Held, Use
from graphlint.record.events import Backward, OptimizerStep, ZeroGrad
from graphlint.record.identity import OptimizerId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


@dataclass(frozen=True, slots=True)
class Reused:
    """A step that used gradients again.

    Attributes:
        use: the step.
        parameters: whose gradients held what was used before.
        earlier: the step that used it before.
        first: the backward that had added it.
        added: the backward that added to it since.
    """

    use: Use
    parameters: tuple[TensorId, ...]
    earlier: OptimizerStep
    first: Backward
    added: Backward


class ReusedGradients:
    """Finds steps that use gradients again."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def of(self, optimizer: OptimizerId) -> Iterator[Reused]:
        """Yields the steps of an optimizer that used gradients again, in time order."""
        chain = self._chain(optimizer)
        for use in self._facts.ledger.of(optimizer):
            found = self._again(use, chain)
            if found is not None:
                yield found

    def _chain(self, optimizer: OptimizerId) -> frozenset[OptimizerId]:
        """Returns the optimizer, and those made before it for the same parameters that it took over from."""
        gradients = self._facts.gradients
        mine = set(gradients.parameters(optimizer))
        steps = gradients.steps(optimizer)
        before = {
            other
            for other in self._facts.trace.optimizers
            if other != optimizer
            and set(gradients.parameters(other)) == mine
            and steps
            and all(step.end < steps[0].serial for step in gradients.steps(other))
        }
        return frozenset((optimizer, *before))

    def _again(self, use: Use, chain: frozenset[OptimizerId]) -> Reused | None:
        trainable = set(self._facts.reach.trainable(use.step.optimizer, use.step.serial))
        stale: dict[TensorId, tuple[Held, OptimizerStep]] = {}
        added: Backward | None = None
        for tensor, held in use.held.items():
            for one in held:
                earlier = [step for step in one.before if step.optimizer in chain]
                source = one.portion.source
                if not earlier and source is not None and (added is None or source.serial > added.serial):
                    added = source
                elif earlier and source is not None and tensor in trainable:
                    stale[tensor] = (one, earlier[-1])
        if not stale or added is None:
            return None
        held_last, earlier_step = max(stale.values(), key=lambda found: found[1].serial)
        first = held_last.portion.source
        hooked = self._facts.ledger.inside_backward
        if first is None or hooked(use.step.serial) or hooked(earlier_step.serial):
            return None
        if not self._facts.ledger.seen(earlier_step.serial, use.step.end) or self._may_be_unseen:
            return None
        outer = self._facts.ledger.outermost
        return Reused(use, tuple(stale), earlier_step, outer(first), outer(added))

    @cached_property
    def _may_be_unseen(self) -> bool:
        """Whether gradients are zeroed by hand in this run, of which not everything was seen."""
        end = self._facts.trace.end
        if end is None or not end.unseen:
            return False
        by_hand = (event for event in self._facts.trace.events if isinstance(event, ZeroGrad))
        return any(event.tensor is not None for event in by_hand)

    def zeroing(self, reused: Reused) -> ZeroGrad | None:
        """Returns the last call before the step that zeroes the parameters, if one does at all.

        Without one before, the first after it.
        """
        ledger = self._facts.ledger
        calls = [
            event
            for event in self._facts.trace.events
            if isinstance(event, ZeroGrad) and all(ledger.covers(event, t) for t in reused.parameters)
        ]
        before = [event for event in calls if event.serial < reused.use.step.serial]
        return before[-1] if before else next(iter(calls), None)

    def stranger(self, reused: Reused) -> ZeroGrad | None:
        """Returns a call of `zero_grad` between the two steps that is not for these parameters.

        It zeroes others of the same optimizer, or never finds anything to zero at all.
        """
        mine = set(self._facts.gradients.parameters(reused.use.step.optimizer))
        events = [e for e in self._facts.trace.events if isinstance(e, ZeroGrad) and e.tensor is None]
        useful = {event.site for event in events if event.cleared and mine.isdisjoint(event.cleared)}
        between = (e for e in events if reused.earlier.serial < e.serial < reused.use.step.serial)
        return next((event for event in between if event.site not in useful), None)

    def added(self, reused: Reused) -> int:
        """Returns how many backwards were added since the earlier step."""
        fresh = {
            one.portion.source.serial
            for tensor in reused.parameters
            for one in reused.use.held[tensor]
            if one.portion.source is not None and one.portion.source.serial > reused.earlier.serial
        }
        return len(fresh)
