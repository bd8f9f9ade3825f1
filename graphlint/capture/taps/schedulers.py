"""Sees learning-rate schedulers stepping, at both levels.

A scheduler's `step` warns about the line that called it, which a wrapper would get wrong. But every
scheduler ends its step by noting the rates in `_last_lr`: assignments to its attributes are watched.
"""

import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch.optim import lr_scheduler

from graphlint.capture.context import CaptureContext
from graphlint.capture.recorder import finite
from graphlint.capture.taps.patching import patch
from graphlint.record.events import SchedulerStep
from graphlint.record.header import Capability
from graphlint.record.identity import OptimizerId

_BEGINS = "last_epoch"
_ENDS = "_last_lr"
_MAKING = frozenset({"__init__", "_initial_step"})
_STEP = "step"
_OUTER = 48
"""Frames looked at to tell who steps a scheduler."""


class SchedulersTap:
    """Records the steps of schedulers, those that their constructors take too."""

    capability: Capability = "schedulers"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._seen: set[int] = set()
        self._before: dict[int, tuple[float | None, ...]] = {}
        self._inside: dict[OptimizerId, tuple[float | None, ...]] = {}
        self._file = lr_scheduler.LRScheduler.step.__code__.co_filename

    def arm(self, stack: ExitStack) -> None:
        """Watches the assignments to the attributes of every scheduler."""
        patch(stack, lr_scheduler.LRScheduler, "__setattr__", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context

        def __setattr__(scheduler: Any, name: str, value: Any) -> None:  # noqa: N807 - in place of it
            if name == _BEGINS and not torch.compiler.is_compiling() and context.here():
                context.guard.run("schedulers", self._begins, scheduler)
            original(scheduler, name, value)
            if name == _ENDS and not torch.compiler.is_compiling() and context.here():
                context.guard.run("schedulers", self._ended, scheduler)

        return __setattr__

    def _begins(self, scheduler: Any) -> None:
        """Notes the rates before a step; of several assignments in one step the first counts."""
        optimizer = getattr(scheduler, "optimizer", None)
        number = self._recorder.scheduler(scheduler)
        if number not in self._before and isinstance(optimizer, torch.optim.Optimizer):
            self._before[number] = _rates(optimizer)

    def _ended(self, scheduler: Any) -> None:
        recorder = self._recorder
        optimizer = getattr(scheduler, "optimizer", None)
        number = recorder.scheduler(scheduler)
        before = self._before.pop(number, None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        chain = recorder.sites.chain(depth=4)
        inner, initial = self._asked_by(scheduler)
        held = recorder.optimizer(optimizer)
        if inner:
            if before is not None:
                self._inside.setdefault(held, before)
            return
        inside = self._inside.pop(held, None)
        if self._context.full or number not in self._seen:
            self._seen.add(number)
            self._context.names.look_again(chain.frames)
        after = _rates(optimizer)
        recorder.emit(
            SchedulerStep(
                serial=recorder.next_serial(),
                site=chain.site,
                optimizer=held,
                scheduler=number,
                type=type(scheduler).__name__,
                initial=initial,
                by_metric=isinstance(scheduler, lr_scheduler.ReduceLROnPlateau),
                position=finite(getattr(scheduler, "last_epoch", None)),
                optimizer_stepped=bool(getattr(optimizer, "_opt_called", False)),
                before=next((rates for rates in (before, inside) if rates is not None), after),
                after=after,
            )
        )

    def _asked_by(self, scheduler: Any) -> tuple[bool, bool]:
        """Tells whether another scheduler steps this one in its own step, and whether a constructor does."""
        inner = initial = False
        frame: FrameType | None = sys._getframe(4)
        for _ in range(_OUTER):
            if frame is None:
                break
            code = frame.f_code
            if code.co_filename == self._file:
                initial = initial or code.co_name in _MAKING
                inner = inner or (code.co_name == _STEP and frame.f_locals.get("self") is not scheduler)
            frame = frame.f_back
        return inner, initial


def _rates(optimizer: torch.optim.Optimizer) -> tuple[float | None, ...]:
    """Returns the learning rates of an optimizer's groups; None for one that would have to be waited for."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    waits = [isinstance(rate, torch.Tensor) and not rate.is_cpu for rate in rates]
    return tuple([None if wait else finite(rate) for rate, wait in zip(rates, waits, strict=True)])
