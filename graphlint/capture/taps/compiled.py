"""Steps aside while a compiled function runs.

A function mode makes `torch.compile` recompile, and what is patched would be traced. From the moment that
the script first calls `torch.compile`, the full level is taken down whenever Dynamo's frame evaluation is
switched on, and put back afterwards. What runs inside is not seen, and that is said. Where a graph breaks,
torch's functions run as ever, and so do the wrappers of the taps around them: Dynamo is told to leave those
alone. Where Dynamo traces through a wrapper, `torch.compiler.is_compiling()` makes it vanish from the graph.
"""

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.capture.transforms import IN_JIT, IN_TRACING

_RUNNING = tuple(f"{__name__.partition('.')[0]}.{part}." for part in ("capture", "integrations", "record"))
"""The packages whose code runs while a script trains; those with networks to train are not among them."""

_UNSEEN = "operations inside functions compiled by torch.compile"


class CompiledTap:
    """Takes the full level down around compiled regions.

    Args:
        context: the capture.
        suspend: takes the full level down.
        resume: puts it back.
    """

    def __init__(self, context: CaptureContext, suspend: Any, resume: Any) -> None:
        self._context = context
        self._suspend = suspend
        self._resume = resume
        self._stack: ExitStack | None = None
        self._inside = False
        self._opener = 0

    def arm(self, stack: ExitStack) -> None:
        """Waits for `torch.compile`; where it was called before, Dynamo knows a backend already."""
        # A stack of its own: what is patched later must not land on one whose callbacks were handed on.
        self._stack = stack.enter_context(ExitStack())
        patch(stack, torch, "compile", self._wrap_compile)
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is not None and any(map(callable, dynamo.cached_backends.values())):
            self._arm_dynamo()

    def _wrap_compile(self, original: Any) -> Any:
        context = self._context

        @functools.wraps(original)
        def compile_function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if context.here() and "torch._dynamo.eval_frame" in sys.modules:
                context.guard.run("operations", self._arm_dynamo)
            return result

        return compile_function

    def _arm_dynamo(self) -> None:
        from torch._dynamo import eval_frame

        if self._stack is None or getattr(eval_frame._maybe_set_eval_frame, "graphlint", False):
            return
        for code in own_code():
            eval_frame.skip_code(code)
        patch(self._stack, eval_frame, "_maybe_set_eval_frame", self._wrap_switch)
        patch(self._stack, eval_frame, "set_eval_frame", self._wrap_switch)

    def _wrap_switch(self, original: Any) -> Any:
        context = self._context

        def switch(callback: Any) -> Any:
            if not context.here():
                return original(callback)
            caller = id(sys._getframe(1))
            if callback is not None:
                context.guard.run("operations", self._switched_on, caller)
            earlier = original(callback)
            if callback is None:
                context.guard.run("operations", self._switched_off, earlier, caller)
            return earlier

        switch.graphlint = True  # type: ignore[attr-defined]
        return switch

    def _switched_on(self, caller: int) -> None:
        if not self._inside:
            self._inside = True
            self._opener = caller
            self._context.note_unseen(_UNSEEN)
            self._suspend()

    def _switched_off(self, earlier: Any, caller: int) -> None:
        """Ends the region, unless Dynamo is only compiling: then it was off already, and isn't done.

        After a compilation that failed it is off too; the end is then told by the frame that opened the
        region, which runs as long as the region does.
        """
        if self._inside and (earlier is not None or caller == self._opener):
            self._inside = False
            self._resume()


def own_code() -> Iterator[CodeType]:
    """Yields the code of the functions of graphlint that may run in a step, those made inside others too."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_RUNNING):
            for value in list(vars(module).values()):
                if isinstance(value, (FunctionType, type)) and value.__module__ == name:
                    yield from _code_in(value)


def _code_in(value: Any) -> Iterator[CodeType]:
    if isinstance(value, type):
        for inner in list(vars(value).values()):
            yield from _code_in(inner)
    elif isinstance(value, property):
        yield from _code_in(value.fget)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _code_in(value.__func__)
    elif isinstance(value, FunctionType):
        yield from _nested(inspect.unwrap(value).__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


class ScriptedTap:
    """Notes that `torch.jit` was used, and steps aside while it or `torch.export` traces.

    A scripted or traced function is called without passing by Python. What is on the stack or computed while
    torch traces would become part of the trace.

    Args:
        context: the capture.
        suspend: takes the full level down.
        resume: puts it back.
    """

    def __init__(self, context: CaptureContext, suspend: Any, resume: Any) -> None:
        self._context = context
        self._suspend = suspend
        self._resume = resume

    def arm(self, stack: ExitStack) -> None:
        """Wraps `torch.jit.script`, and the functions that trace."""
        patch(stack, torch.jit, "script", self._wrap)
        # Not `torch.jit.trace` itself: Dynamo, when it is first used, replaces that for good.
        patch(stack, torch.jit._trace, "_trace_impl", partial(self._wrap_trace, IN_JIT))
        patch(stack, torch.export, "export", partial(self._wrap_trace, IN_TRACING))

    def _wrap_trace(self, unseen: str, original: Any) -> Any:
        context = self._context

        @functools.wraps(original)
        def trace(*args: Any, **kwargs: Any) -> Any:
            if not context.here():
                return original(*args, **kwargs)
            context.note_unseen(unseen)
            context.guard.run("operations", self._suspend)
            try:
                return original(*args, **kwargs)
            finally:
                context.guard.run("operations", self._resume)

        return trace

    def _wrap(self, original: Any) -> Any:
        context = self._context

        @functools.wraps(original)
        def script(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
            if context.here():
                context.note_unseen(IN_JIT)
            # torch resolves the names in the function in the frame of whoever called script.
            return original(*args, _frames_up=_frames_up + 1, **kwargs)

        return script
