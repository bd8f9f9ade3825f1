"""Sees parameters being put into modules, at both levels: torch has a global hook for it.

A parameter that takes the place of another, in the middle of a run, is known to its line by this alone.
"""

from contextlib import ExitStack
from typing import Any

from torch.nn.modules.module import register_module_parameter_registration_hook

from graphlint.capture.context import CaptureContext
from graphlint.capture.registry import WeakNumbers
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
        """Registers the hook."""
        stack.callback(register_module_parameter_registration_hook(self._placed).remove)

    def _placed(self, module: Any, name: str, parameter: Any) -> None:
        if self._context.here() and parameter is not None:
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
