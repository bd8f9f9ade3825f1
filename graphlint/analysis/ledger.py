"""Questions to the account of the gradients that the rules about steps and `zero_grad` share.

May import `record` and the rest of `analysis`. At the watch level a gradient may be changed by hand unseen:
whoever claims that one was left alone asks `seen` first.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from graphlint.analysis.account import Account, Clearing, Held, Portion, Use
from graphlint.record.events import (
    AnyEvent,
    Backward,
    GradientClip,
    GradRead,
    HostRead,
    Op,
    OptimizerStep,
    Repeat,
    Transfer,
    ZeroGrad,
)
from graphlint.record.identity import OptimizerId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_BOOL = "torch.bool"


class Ledger:
    """The account of a trace's gradients."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def _account(self) -> Account:
        account = Account(self._facts)
        account.play()
        return account

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """All stored steps that didn't raise, in time order."""
        return tuple(self._account.uses)

    @cached_property
    def clearings(self) -> tuple[Clearing, ...]:
        """All that was cleared before any step had used it."""
        return tuple(self._account.clearings)

    @cached_property
    def left(self) -> dict[TensorId, tuple[Portion, ...]]:
        """What the gradients hold as the record ends."""
        return {tensor: tuple(held) for tensor, held in self._account.held.items() if held}

    def of(self, optimizer: OptimizerId) -> tuple[Use, ...]:
        """Returns the steps of one optimizer."""
        return tuple(self._by_optimizer.get(optimizer, ()))

    @cached_property
    def _by_optimizer(self) -> dict[OptimizerId, list[Use]]:
        found: dict[OptimizerId, list[Use]] = {}
        for use in self.uses:
            found.setdefault(use.step.optimizer, []).append(use)
        return found

    def steps_on(self, backward: Backward) -> tuple[OptimizerStep, ...]:
        """Returns the stored steps that used what a backward, or one inside it, had added; in time order."""
        return tuple(self._steps_on.get(backward.serial, ()))

    @cached_property
    def _steps_on(self) -> dict[Serial, list[OptimizerStep]]:
        found: dict[Serial, dict[Serial, OptimizerStep]] = {}
        for use in self.uses:
            for source in {s.serial: s for held in use.held.values() for s in _sources(held)}.values():
                found.setdefault(self.outermost(source).serial, {})[use.step.serial] = use.step
        return {serial: list(steps.values()) for serial, steps in found.items()}

    def sightings(self, step: OptimizerStep) -> int:
        """Returns how often a step was taken, the folded ones included."""
        return 1 + self._facts.steps.repeats(step.serial)

    def outermost(self, backward: Backward) -> Backward:
        """Returns the backward that the user called, for one that ran inside it."""
        if not backward.nested:
            return backward
        around = (b for b in self._facts.graphs.backwards if b.serial < backward.serial < b.end)
        return next((b for b in around if not b.nested), backward)

    def inside_backward(self, serial: Serial) -> bool:
        """Tells whether something happened while a backward ran: a hook did it."""
        place = bisect_left(self._serials, serial) - 1
        return place >= 0 and serial < self._latest_ends[place]

    @cached_property
    def _serials(self) -> list[Serial]:
        return [backward.serial for backward in self._facts.graphs.backwards]

    @cached_property
    def _latest_ends(self) -> list[Serial]:
        """For each backward, the latest end of any up to it: hooks may run backwards inside backwards."""
        return list(accumulate((backward.end for backward in self._facts.graphs.backwards), max))

    def seen(self, after: Serial, before: Serial) -> bool:
        """Tells whether everything between two serials was recorded in full."""
        if any(after < serial < before for serial in self._repeats):
            return False
        steps = [step for step in self._facts.steps.all if step.end >= after and step.first <= before]
        return bool(steps) and all(step.level == "full" for step in steps)

    @cached_property
    def _repeats(self) -> tuple[Serial, ...]:
        return tuple(event.serial for event in self._facts.trace.events if isinstance(event, Repeat))

    def same_loss(self, one: Backward, other: Backward) -> bool:
        """Tells whether two backwards differentiate the same loss, of two batches: one line, same leaves."""
        one, other = self.outermost(one), self.outermost(other)
        return one.site == other.site and set(one.reached) == set(other.reached)

    def covers(self, event: ZeroGrad, tensor: TensorId) -> bool:
        """Tells whether a call of `zero_grad` clears this tensor's gradient, if it has one."""
        if event.optimizer is not None:
            return tensor in self._facts.gradients.parameters(event.optimizer)
        if event.module is not None:
            return tensor in self._module_parameters(event)
        return event.tensor == tensor

    def _module_parameters(self, event: ZeroGrad) -> frozenset[TensorId]:
        if event.module is None:
            return frozenset()
        if event.module not in self._below:
            self._below[event.module] = frozenset(self._facts.values.module_parameters(event.module))
        return self._below[event.module]

    @cached_property
    def _below(self) -> dict[int, frozenset[TensorId]]:
        return {}

    def taken(self, tensor: TensorId, after: Serial, before: Serial) -> bool:
        """Tells whether the user's code copied or read out the gradient of a tensor between two serials.

        Its norm, a comparison, or a change of the gradient itself is no copy.
        """
        return any(after < serial < before for serial in self._taken.get(tensor, ()))

    def ever_taken(self, tensor: TensorId) -> bool:
        """Tells whether the user's code ever copied or read out the gradient of a tensor."""
        return tensor in self._taken

    @cached_property
    def looked_at(self) -> frozenset[TensorId]:
        """The tensors whose gradient the user's code took into its hands, but for clipping or zeroing it."""
        events = self._facts.trace.events
        known = {event.site for event in events if isinstance(event, GradientClip | ZeroGrad)}
        return frozenset(e.tensor for e in events if isinstance(e, GradRead) and e.site not in known)

    @cached_property
    def _taken(self) -> dict[TensorId, list[Serial]]:
        found: dict[TensorId, list[Serial]] = {}
        for event in self._facts.trace.events:
            for tensor in self._copied(event):
                found.setdefault(tensor, []).append(event.serial)
        return found

    def _copied(self, event: AnyEvent) -> Iterator[TensorId]:
        match event:
            case Op():
                for use in event.inputs:
                    owners = self._account.owners(use.tensor)
                    largest = max((self._size(t) for t in event.outputs), default=0) if owners else 0
                    if 1 < self._elements(use.tensor) <= largest:
                        yield from owners
            case Transfer(noop=False):
                yield from self._account.owners(event.source.tensor)
            case HostRead(method="numpy" | "tolist"):
                yield from self._account.owners(event.tensor.tensor)
            case _:
                pass

    def _size(self, tensor: TensorId) -> int:
        """Returns the elements of a result; 0 for a comparison's, and for a gradient's own memory."""
        row = self._facts.trace.tensors.get(tensor)
        if row is None or row.dtype == _BOOL or self._account.owners(tensor):
            return 0
        return self._elements(tensor)

    def _elements(self, tensor: TensorId) -> int:
        row = self._facts.trace.tensors.get(tensor)
        return math.prod(row.shape) if row is not None else 0


def _sources(held: Iterable[Held]) -> Iterator[Backward]:
    return (one.portion.source for one in held if one.portion.source is not None)
