"""Sees `zero_grad` of optimizers and modules, at both levels: torch has no hook for it."""

import functools
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.record.events import ZeroGrad
from graphlint.record.header import Capability
from graphlint.record.identity import ModuleId, OptimizerId


class ZeroGradTap:
    """Records which gradients a call of `zero_grad` cleared."""

    capability: Capability = "zero-grad"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder

    def arm(self, stack: ExitStack) -> None:
        """Wraps the method of every class that defines one, those of the user's subclasses included.

        Classes that are made later are met as they are made.
        """
        # A stack of its own: what is patched later must not land on one whose callbacks were handed on.
        own = stack.enter_context(ExitStack())
        for base in (torch.optim.Optimizer, torch.nn.Module):
            for owner in (base, *_subclasses_with_own(base)):
                patch(own, owner, "zero_grad", self._wrap)
            patch(own, base, "__init_subclass__", partial(self._wrap_subclassing, own, base))

    def _wrap_subclassing(self, stack: ExitStack, base: Any, original: Any) -> Any:
        def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807 - in place of it
            if isinstance(original, classmethod):
                original.__func__(cls, **kwargs)
            else:
                super(base, cls).__init_subclass__(**kwargs)
            if self._context.here() and "zero_grad" in vars(cls):
                patch(stack, cls, "zero_grad", self._wrap)

        return classmethod(__init_subclass__)

    def _wrap(self, original: Any) -> Any:
        context = self._context

        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or context.quiet or not context.here():
                return original(owner, *args, **kwargs)
            before = context.guard.run("zero-grad", _filled, owner)
            context.quiet += 1
            try:
                result = original(owner, *args, **kwargs)
            finally:
                context.quiet -= 1
            context.guard.run("zero-grad", self._after, owner, before)
            return result

        return zero_grad

    def _after(self, owner: Any, before: tuple[list[torch.Tensor], int] | None) -> None:
        if before is None:
            return
        filled, empty = before
        chain = self._recorder.sites.chain(depth=4)
        if self._context.full:
            self._context.names.look(chain.frames)
        optimizer: OptimizerId | None = None
        module: ModuleId | None = None
        if isinstance(owner, torch.nn.Module):
            module = self._recorder.module(owner)
        else:
            optimizer = self._recorder.optimizer(owner)
        if filled:
            self._context.clock.gradients_cleared()
        self._recorder.emit(
            ZeroGrad(
                serial=self._recorder.next_serial(),
                site=chain.site,
                optimizer=optimizer,
                module=module,
                cleared=tuple([self._recorder.tensor(tensor) for tensor in filled]),
                already_clear=empty,
                set_to_none=not filled or filled[0].grad is None,
            )
        )


def _filled(owner: Any) -> tuple[list[torch.Tensor], int]:
    """Returns the parameters of a `zero_grad` that hold a gradient, and how many others there are."""
    parameters: list[torch.Tensor]
    if isinstance(owner, torch.nn.Module):
        parameters = list(owner.parameters())
    else:
        parameters = [parameter for group in owner.param_groups for parameter in group["params"]]
    filled = [parameter for parameter in parameters if parameter.grad is not None]
    return filled, len(parameters) - len(filled)


def _subclasses_with_own(base: type) -> list[type]:
    found: list[type] = []
    waiting: list[type] = list(base.__subclasses__())
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        waiting.extend(kind.__subclasses__())
        if "zero_grad" in vars(kind):
            found.append(kind)
    return found
