"""Sees parameters being put into modules, at both levels: torch has a global hook for it.

A parameter that takes the place of another, in the middle of a run, is known to its line by this alone. Where
torch swaps the contents of a parameter instead, it refuses tensors with weak references: they are let go.
"""

import functools
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from graphlint.capture.context import CaptureContext
from graphlint.capture.registry import WeakNumbers
from graphlint.capture.taps.patching import patch
from graphlint.record.header import Capability
from graphlint.record.live import ParameterPlaced


class ParametersTap:
    """Records each parameter that a module is given, with the line that gave it.

    Args:
        context: the capture.
    """

    capability: Capability = "optimizer"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._owners = WeakNumbers()

    def arm(self, stack: ExitStack) -> None:
        """Registers the hook, and wraps the function that swaps two tensors."""
        stack.callback(register_module_parameter_registration_hook(self._placed).remove)
        patch(stack, torch.utils, "swap_tensors", self._wrap_swap)

    def _wrap_swap(self, original: Any) -> Any:
        recorder, clock = self._recorder, self._context.clock

        @functools.wraps(original)
        def swap_tensors(t1: Any, t2: Any) -> Any:
            clock.let_go(t1, t2)
            with recorder.tensors.letting_go(t1, t2):
                return original(t1, t2)

        return swap_tensors

    def _placed(self, module: Any, name: str, parameter: Any) -> None:
        if not torch.compiler.is_compiling() and self._context.here() and parameter is not None:
            self._context.guard.run("optimizer", self._emit, module, name, parameter)

    def _emit(self, module: Any, name: str, parameter: Any) -> None:
        owner = self._owners.find(module)
        self._recorder.emit(
            ParameterPlaced(
                serial=self._recorder.next_serial(),
                site=self._recorder.sites.chain(depth=4).site,
                tensor=self._recorder.tensor(parameter),
                owner=self._owners.add(module) if owner is None else owner,
                name=name,
            )
        )
