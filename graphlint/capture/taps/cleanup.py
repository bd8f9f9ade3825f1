"""Sees `gc.collect()` and `torch.cuda.empty_cache()`, at both levels."""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch
from graphlint.record.events import Cleanup
from graphlint.record.header import Capability


class CleanupTap:
    """Records cleanup calls with the time that each took.

    Args:
        context: the capture.
        clock_ns: a monotonic clock.
    """

    capability: Capability = "cleanup"

    def __init__(self, context: CaptureContext, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._context = context
        self._clock_ns = clock_ns

    def arm(self, stack: ExitStack) -> None:
        """Wraps both functions where users find them."""
        patch(stack, gc, "collect", lambda original: self._wrap(original, "gc.collect"))
        for owner in (torch.cuda, torch.cuda.memory):
            patch(
                stack, owner, "empty_cache", lambda original: self._wrap(original, "torch.cuda.empty_cache")
            )

    def _wrap(self, original: Any, call: Literal["gc.collect", "torch.cuda.empty_cache"]) -> Any:
        context = self._context

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not context.here():
                return original(*args, **kwargs)
            start = self._clock_ns()
            result = original(*args, **kwargs)
            duration = self._clock_ns() - start
            context.guard.run("cleanup", self._record, call, duration, result)
            return result

        wrapper.__name__ = wrapper.__qualname__ = call.rpartition(".")[2]
        return wrapper

    def _record(
        self, call: Literal["gc.collect", "torch.cuda.empty_cache"], duration_ns: int, collected: Any
    ) -> None:
        recorder = self._context.recorder
        chain = recorder.sites.chain(depth=4)
        if chain.site is None:
            return
        recorder.emit(
            Cleanup(
                serial=recorder.next_serial(),
                site=chain.site,
                call=call,
                duration_ns=duration_ns,
                collected=collected if isinstance(collected, int) else 0,
            )
        )
