"""Sees gradients being clipped, at both levels.

The functions that clip are often imported by name before a capture begins, so no name is replaced. torch
wraps each in a closure that switches autograd off, and what that closure calls is replaced instead. All
clipping by norm ends in `clip_grads_with_norm_`.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from types import CellType
from typing import Any, Literal

import torch
from torch.nn.utils import clip_grad

from graphlint.capture.context import CaptureContext
from graphlint.capture.messages import message_of
from graphlint.capture.registry import is_leaf
from graphlint.capture.taps.patching import patch
from graphlint.record.events import GradientClip
from graphlint.record.header import Capability
from graphlint.record.identity import TensorId

_Call = Literal["clip_grad_norm_", "clip_grad_value_"]

_INNER = "func"
"""How torch calls the function inside the closure."""


class ClippingTap:
    """Records what was clipped, and how many of the parameters held a gradient."""

    capability: Capability = "clipping"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder

    def arm(self, stack: ExitStack) -> None:
        """Replaces the function that clips by a norm and the one that clips each value."""
        self._replace(stack, "_clip_grads_with_norm_", "clip_grad_norm_", "max_norm")
        self._replace(stack, "clip_grad_value_", "clip_grad_value_", "clip_value")

    def _replace(self, stack: ExitStack, name: str, call: _Call, limit: str) -> None:
        function = getattr(clip_grad, name)
        cell = inner_cell(function)
        if cell is None:
            patch(stack, clip_grad, name, lambda original: self._wrap(original, call, limit))
            return
        original = cell.cell_contents
        replacement = self._wrap(original, call, limit)
        cell.cell_contents = replacement
        stack.callback(_put_back, cell, replacement, original)

    def _wrap(self, original: Any, call: _Call, limit_name: str) -> Any:
        context = self._context

        def clip(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not context.here():
                return original(*args, **kwargs)
            given = args[0] if args else kwargs.get("parameters")
            clipped: list[Any] = []
            if issubclass(type(given), torch.Tensor):
                clipped.append(given)
            elif type(given) is list:
                clipped = given
            elif args:
                args = (_noting(given, clipped), *args[1:])
            elif "parameters" in kwargs:
                kwargs["parameters"] = _noting(given, clipped)
            limit = args[1] if len(args) > 1 else kwargs.get(limit_name)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                context.guard.run("clipping", self._record, call, clipped, limit, error)
                raise
            context.guard.run("clipping", self._record, call, clipped, limit, None)
            return result

        return clip

    def _record(self, call: _Call, given: list[Any], limit: Any, error: BaseException | None) -> None:
        context, recorder = self._context, self._recorder
        chain = recorder.sites.chain(depth=4)
        if context.full:
            context.names.look(chain.frames)
        parameters: list[TensorId] = []
        with_grad: list[TensorId] = []
        for tensor in given:
            if not issubclass(type(tensor), torch.Tensor):
                continue
            number = recorder.tensor(tensor)
            parameters.append(number)
            # Asked for the gradient of what is no leaf, torch would warn.
            if (is_leaf(tensor) or tensor.retains_grad) and tensor.grad is not None:
                with_grad.append(number)
        recorder.emit(
            GradientClip(
                serial=recorder.next_serial(),
                site=chain.site,
                call=call,
                parameters=tuple(parameters),
                with_grad=tuple(with_grad),
                limit=_finite(limit),
                error=None if error is None else message_of(error),
            )
        )


def _noting(given: Any, clipped: list[Any]) -> Iterator[Any]:
    """Yields what is given and notes it: it may be a generator, or of the user's making, to be asked once."""
    for tensor in given:
        clipped.append(tensor)
        yield tensor


def inner_cell(function: Any) -> CellType | None:
    """Returns the cell with the function that torch's closure calls; None where it is no such closure."""
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or closure is None or _INNER not in code.co_freevars:
        return None
    cell: CellType = closure[code.co_freevars.index(_INNER)]
    return cell


def _put_back(cell: CellType, replacement: Any, original: Any) -> None:
    """Restores a cell, unless somebody else replaced what it holds in the meantime."""
    if cell.cell_contents is replacement:
        cell.cell_contents = original


def _finite(limit: Any) -> float | None:
    """Returns a bound as a number; None where it is none, is infinite, or would have to be waited for."""
    if isinstance(limit, torch.Tensor) and not (limit.is_cpu and limit.numel() == 1):
        return None
    try:
        number = float(limit)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
