"""Sees `train()` and `eval()` of modules, at both levels: torch has no hook for them."""

import functools
import threading
from contextlib import ExitStack
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.record.header import Capability
from graphlint.record.identity import ModuleId
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
        self._inside: int | None = None
        self._met: list[tuple[torch.nn.Module, Any]] = []

    def arm(self, stack: ExitStack) -> None:
        """Wraps the method of the base class."""
        patch(stack, torch.nn.Module, "train", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context
        this_thread = threading.get_ident

        @functools.wraps(original)
        def train(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside is not None and self._inside == this_thread():
                self._met.append((module, module.__dict__.get("training")))
                return original(module, *args, **kwargs)
            if torch.compiler.is_compiling() or context.quiet or not context.here():
                return original(module, *args, **kwargs)
            self._inside = this_thread()
            self._met = [(module, module.__dict__.get("training"))]
            try:
                result = original(module, *args, **kwargs)
            finally:
                met, self._met, self._inside = self._met, [], None
                context.guard.run("modes", self._turned, module, met)
                met.clear()
            context.check_stop()
            return result

        return train

    def _turned(self, module: torch.nn.Module, met: list[tuple[torch.nn.Module, Any]]) -> None:
        """Emits the call where it turned something, or where everything is recorded."""
        turned: dict[int, tuple[torch.nn.Module, bool]] = {}
        for part, was in reversed(met):
            now = part.__dict__.get("training")
            if now is not was and was is not None and now is not None:
                turned[id(part)] = (part, now)
            elif turned:
                # It was met twice: how it was the first time counts.
                turned.pop(id(part), None)
        if not (turned or self._context.full):
            return
        chain = self._recorder.sites.chain(depth=4)
        if self._context.full:
            self._context.names.look(chain.frames)
        number = self._recorder.module(module)
        mode = bool(module.__dict__.get("training"))
        changed: list[ModuleId] = []
        opposed: list[ModuleId] = []
        for part, now in reversed(turned.values()):
            (changed if now == mode else opposed).append(self._recorder.module(part))
        event = ModeChange(
            serial=self._recorder.next_serial(),
            site=chain.site,
            module=number,
            training=mode,
            changed=tuple(changed),
            opposed=tuple(opposed),
        )
        self._recorder.emit(event)
        if event.changed and self._recorder.is_root(number):
            self._context.evaluations.mode_turned(event.site, training=mode)
