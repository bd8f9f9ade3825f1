"""Remembers where the user switched autograd off, at the full level.

May import the rest of `capture` and torch. A decorator enters the same block at each call, so its site is
the line that called the decorated function.
"""

from contextlib import ExitStack
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.record.identity import SiteId


class GradModeSites:
    """The sites of the `no_grad` and `inference_mode` blocks that are open, innermost last.

    `set_grad_enabled` counts from its call on, as a block or as a function: the last that switched gradients
    off is what keeps them off where no other block does.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._open: list[SiteId | None] = []
        self._switched: SiteId | None = None

    def innermost(self) -> SiteId | None:
        """Returns the site of the innermost open block, when there is one."""
        return self._open[-1] if self._open else self._switched

    def arm(self, stack: ExitStack) -> None:
        """Wraps the entry and the exit of both kinds of block."""
        self._open.clear()
        self._switched = None
        patch(stack, torch.set_grad_enabled, "__init__", self._switching)
        for owner in (torch.no_grad, torch.inference_mode):
            patch(stack, owner, "__enter__", self._entering)
            patch(stack, owner, "__exit__", self._leaving)

    def _entering(self, original: Any) -> Any:
        def __enter__(block: Any) -> Any:  # noqa: N807 - it takes the place of the method of that name
            if self._context.here():
                self._context.guard.run("operations", self._opened)
            return original(block)

        return __enter__

    def _leaving(self, original: Any) -> Any:
        def __exit__(block: Any, *exception: Any) -> Any:  # noqa: N807 - the same
            if self._open and self._context.here():
                self._open.pop()
            return original(block, *exception)

        return __exit__

    def _switching(self, original: Any) -> Any:
        def __init__(switch: Any, mode: bool) -> None:  # noqa: N807, FBT001 - the same
            was_on = torch.is_grad_enabled()
            original(switch, mode)
            if was_on and not mode and self._context.here():
                self._context.guard.run("operations", self._switched_off)

        return __init__

    def _switched_off(self) -> None:
        self._switched = self._context.recorder.sites.chain(depth=4).site

    def _opened(self) -> None:
        self._open.append(self._context.recorder.sites.chain(depth=4).site)
