"""Sees the calls of gradient scalers, at both levels."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, get_args

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from graphlint.capture.containers import find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.messages import message_of
from graphlint.capture.registry import WeakNumbers
from graphlint.capture.stop import StopRun
from graphlint.capture.taps.patching import patch
from graphlint.record.events import ScalerCall
from graphlint.record.header import Capability

_Method = Literal["scale", "unscale_", "step", "update", "get_scale"]
_Event = _Method | Literal["skipped"]


class ScalersTap:
    """Records what the user asks of `torch.amp.GradScaler` and its subclasses."""

    capability: Capability = "scalers"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._numbers = WeakNumbers()
        self._depth = 0
        self._stepped = False

    def arm(self, stack: ExitStack) -> None:
        """Wraps the methods of the class that all scalers of torch come from."""
        for method in get_args(_Method):
            patch(stack, torch.amp.GradScaler, method, self._wrapper(method))
        stack.callback(register_optimizer_step_pre_hook(self._steps).remove)

    def _steps(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del optimizer, args, kwargs
        if self._depth and self._context.here():
            self._stepped = True

    def _wrapper(self, method: _Method) -> Callable[[Any], Any]:
        context = self._context

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
                if self._depth or torch.compiler.is_compiling() or not context.here():
                    return original(scaler, *args, **kwargs)
                given = args[0] if args else next(iter(kwargs.values()), None)
                if method == "step":
                    context.guard.run("scalers", self._record, scaler, method, given, None, None)
                    self._stepped = False
                self._depth += 1
                try:
                    result = original(scaler, *args, **kwargs)
                except BaseException as error:
                    if method != "step" and not isinstance(error, StopRun):
                        context.guard.run("scalers", self._record, scaler, method, given, None, error)
                    raise
                finally:
                    self._depth -= 1
                if method != "step":
                    context.guard.run("scalers", self._record, scaler, method, given, result, None)
                elif not self._stepped:
                    context.guard.run("scalers", self._record, scaler, "skipped", given, None, None)
                return result

            return call

        return wrap

    def _record(
        self, scaler: Any, method: _Event, given: Any, result: Any, error: BaseException | None
    ) -> None:
        recorder, full = self._recorder, self._context.full
        chain = recorder.sites.chain(depth=4)
        if full:
            self._context.names.look(chain.frames)
        number = self._numbers.find(scaler)
        scales = full and method == "scale"
        tensors, scaled = (find_tensors(given), find_tensors(result)) if scales else ([], [])
        optimizer = recorder.optimizer(given) if isinstance(given, torch.optim.Optimizer) else None
        recorder.emit(
            ScalerCall(
                serial=recorder.next_serial(),
                site=chain.site,
                scaler=self._numbers.add(scaler) if number is None else number,
                method=method,
                optimizer=optimizer,
                tensors=tuple([recorder.tensor(tensor) for tensor in tensors]),
                scaled=tuple([recorder.tensor(tensor) for tensor in scaled]),
                enabled=bool(getattr(scaler, "_enabled", True)),  # its method may be the user's
                error=None if error is None else message_of(error),
            )
        )
