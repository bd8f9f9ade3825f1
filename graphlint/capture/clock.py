"""Decides where one training step ends and the next begins, where nobody says.

May import `record`. In this order: the decorated call or `graphlint.step()`; else the next batch drawn from
a DataLoader by the user's loop; else the return of the first optimizer that steps. A step holds at least one
update, so the batches of an accumulated gradient are one step; a loop over batches that trains nothing is
none.
"""

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from graphlint.capture.registry import version_of
from graphlint.record.identity import OptimizerId, Serial

Reason = Literal["start", "call", "batch", "optimizer", "manual", "evaluation"]

MAX_UNFINISHED_BATCHES = 256
"""Batches without an update after which a step is cut all the same."""

MAX_UNFINISHED_BACKWARDS = 1024
"""Backwards without an update after which a step is cut all the same."""

MAX_REPEATED_UPDATES = 16
"""Updates by one optimizer, with nothing else between them, after which waiting for another one ends."""

_WATCHED_LEAVES = 8


class StepClock:
    """Counts batches, backwards and updates, and says when to cut.

    Args:
        cut: called with the reason and the serial of the last event of the step that ended.
        count_optimizers: returns how many optimizers the script has made so far and still holds.
        last_serial: returns the serial that was issued last.
    """

    def __init__(
        self,
        cut: Callable[[Reason, Serial], None],
        count_optimizers: Callable[[], int],
        last_serial: Callable[[], Serial],
    ) -> None:
        self._cut_step = cut
        self._count_optimizers = count_optimizers
        self._last_serial = last_serial
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._leaves: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._optimizer_ever_stepped = False
        self._optimizers: set[OptimizerId] = set()
        self.by_hand = False
        self._lone: OptimizerId | None = None
        self._last_step: Serial | None = None
        self._last_draw: Serial = Serial(-1)
        self._last_update: Serial | None = None
        self._last_backward: Serial = Serial(-1)
        self._start()

    def _start(self) -> None:
        self._order: list[OptimizerId] = []
        self._updated = False
        self._batches = 0
        self._backwards = 0
        self.trained = False

    def _cut(self, reason: Reason, after: Serial) -> None:
        self._start()
        self._cut_step(reason, after)

    def marked(self, reason: Literal["call", "manual"]) -> None:
        """The user said that a step begins here; from now on nothing else is asked."""
        self.by_hand = True
        self._cut(reason, self._last_serial())

    def evaluation_starts(self) -> None:
        """An evaluation begins, where a step has ended or none has begun: see `complete`."""
        self._cut("evaluation", self._last_serial())

    @property
    def complete(self) -> bool:
        """Whether the step that is running has all its updates: every optimizer that ever stepped has."""
        last = self._last_step
        return (
            self._updated
            and last is not None
            and self._last_backward < last
            and self._optimizers <= set(self._order)
        )

    def batch_wanted(self, iterator: object) -> None:
        """The user's loop asks a DataLoader's iterator for its next batch."""
        self._iterators.add(iterator)
        if self.by_hand:
            return
        self._batches += 1
        updated = self._updated or self._leaves_changed()
        if updated or not self.trained or self._batches > MAX_UNFINISHED_BATCHES:
            self._cut("batch", self._last_serial())
        self._last_draw = self._last_serial()

    def batches_ended(self, iterator: object) -> None:
        """A DataLoader's iterator has no more batches."""
        self._iterators.discard(iterator)

    def backward_starts(self) -> None:
        """A backward is about to run: where no optimizer is used, a change of its leaves was the update."""
        if not (self.by_hand or self._optimizer_ever_stepped or self._iterators) and self._leaves_changed():
            self._cut("optimizer", self._last_update or self._last_backward)
        self.trained = True

    def backward_ended(self, serial: Serial, leaves: list[torch.Tensor]) -> None:
        """A backward filled the gradients of `leaves`."""
        self._last_backward = serial
        self._last_update = None
        if not self._optimizer_ever_stepped:
            self._leaves = [(weakref.ref(leaf), version_of(leaf)) for leaf in leaves[:_WATCHED_LEAVES]]
        self._backwards += 1
        if self._backwards >= MAX_UNFINISHED_BACKWARDS and not self.by_hand:
            self._cut("optimizer", serial)

    def let_go(self, *leaves: torch.Tensor) -> None:
        """Forgets leaves to which nothing may refer for a while."""
        self._leaves = [entry for entry in self._leaves if all(entry[0]() is not leaf for leaf in leaves)]

    def leaf_changed(self, serial: Serial) -> None:
        """An operation changed a leaf in place, as an update by hand does."""
        self._last_update = serial

    def gradients_cleared(self) -> None:
        """Gradients that were filled in this step were cleared: what they were gathered for has ended.

        A step that a gradient scaler leaves out ends in this way, without an update: before the batch that
        was drawn since, where there is one.
        """
        if self.by_hand or not self.trained or self._updated:
            return
        if self._iterators and self._last_draw > self._last_backward:
            self._cut("batch", self._last_draw)
        else:
            self._updated = True

    def _leaves_changed(self) -> bool:
        for reference, version in self._leaves:
            leaf = reference()
            if leaf is not None and version_of(leaf) != version:
                return True
        return False

    def optimizer_starts(self, optimizer: OptimizerId) -> None:
        """An optimizer is about to step: does it come round again?"""
        self._optimizer_ever_stepped = True
        if self.by_hand:
            return
        if optimizer in self._order:
            others_since = self._order[-1] != optimizer
            waited = len(self._order) >= MAX_REPEATED_UPDATES
            if waited or (others_since and not self._iterators):
                self._lone = optimizer if waited else None
                self._cut("optimizer", self._last_serial() if self._last_step is None else self._last_step)
        self.trained = True

    def optimizer_ended(self, optimizer: OptimizerId, serial: Serial) -> None:
        """An optimizer has stepped."""
        self._leaves = []
        self._order.append(optimizer)
        self._optimizers.add(optimizer)
        self._updated = True
        self.trained = True
        self._last_update = self._last_step = serial
        if self._lone != optimizer:
            self._lone = None
        alone = self._lone is not None or self._count_optimizers() <= 1
        if alone and not self.by_hand and not self._iterators:
            self._cut("optimizer", serial)
