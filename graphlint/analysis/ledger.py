"""Questions to the account of the gradients that the rules about steps and `zero_grad` share.

May import `record` and the rest of `analysis`. At the watch level a gradient may be changed by hand unseen:
whoever claims that one was left alone asks `seen` first.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.account import Account, Clearing, Portion, Use
from graphlint.record.events import (
    AnyEvent,
    Backward,
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
        return tuple(use for use in self.uses if use.step.optimizer == optimizer)

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
        return any(b.serial < serial < b.end for b in self._facts.graphs.backwards)

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
    def _taken(self) -> dict[TensorId, list[Serial]]:
        found: dict[TensorId, list[Serial]] = {}
        for event in self._facts.trace.events:
            for tensor in self._copied(event):
                found.setdefault(tensor, []).append(event.serial)
        return found

    def _copied(self, event: AnyEvent) -> Iterator[TensorId]:
        match event:
            case Op():
                largest = max((self._size(tensor) for tensor in event.outputs), default=0)
                for use in event.inputs:
                    if 1 < self._elements(use.tensor) <= largest:
                        yield from self._account.owners(use.tensor)
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
