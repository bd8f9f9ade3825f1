"""Sees `train()` and `eval()` of modules, at both levels: torch has no hook for them."""

from contextlib import ExitStack
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.record.header import Capability
from graphlint.record.modes import ModeChange


class ModesTap:
    """Records which modules a call of `train` or `eval` turned. Cost: below 1 us for each part.

    `eval` calls `train`, which calls itself for each part: the outermost call is the user's, and what
    another class's own `train` does to its parts in between belongs to it. A class's own `train` is not
    wrapped: what it is for is up to the user, and to change a mode it calls torch's.
    """

    capability: Capability = "modes"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._outermost = True
        self._met: dict[int, tuple[torch.nn.Module, Any]] = {}

    def arm(self, stack: ExitStack) -> None:
        """Wraps the method of the base class."""
        patch(stack, torch.nn.Module, "train", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context
        met = self._met

        def train(module: Any, *args: Any, **kwargs: Any) -> Any:
            if context.quiet or not context.here():
                return original(module, *args, **kwargs)
            if not self._outermost:
                met.setdefault(id(module), (module, _mode_of(module)))
                return original(module, *args, **kwargs)
            self._outermost = False
            met[id(module)] = (module, _mode_of(module))
            try:
                result = original(module, *args, **kwargs)
            finally:
                self._outermost = True
                context.guard.run("modes", self._turned, module)
                met.clear()
            context.check_stop()
            return result

        return train

    def _turned(self, module: torch.nn.Module) -> None:
        """Emits the call where it turned something, or where everything is recorded."""
        modes = [(part, was, _mode_of(part)) for part, was in self._met.values()]
        turned = [(part, now) for part, was, now in modes if was is not None and now not in {was, None}]
        if not (turned or self._context.full):
            return
        chain = self._recorder.sites.chain(depth=4)
        if self._context.full:
            self._context.names.look(chain.frames)
        number = self._recorder.module(module)
        mode = bool(modes[0][2])
        event = ModeChange(
            serial=self._recorder.next_serial(),
            site=chain.site,
            module=number,
            training=mode,
            changed=tuple([self._recorder.module(part) for part, now in turned if now == mode]),
            opposed=tuple([self._recorder.module(part) for part, now in turned if now != mode]),
        )
        self._recorder.emit(event)
        if event.changed and self._recorder.is_root(number):
            self._context.evaluations.mode_turned(event.site, training=mode)


def _mode_of(module: Any) -> Any:
    """Returns the module's mode; None where it keeps none of its own."""
    return vars(module).get("training")
