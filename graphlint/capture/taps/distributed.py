"""Takes the recording mode off while torch starts work on threads of its own.

Work that a process group starts keeps the thread's state, function modes included, and lets go of it on a
thread of torch's own, which needs the interpreter lock for that. torch ends a process group with the lock
held and waits for those threads, and can hang there (torch 2.13 does so now and then by itself). A mode that
was on when the last work started must not be one more reason.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.taps.patching import patch

_COLLECTIVES = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier
    broadcast broadcast_object_list gather gather_object reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list send recv isend irecv monitored_barrier
"""
_REPLICATION = ("__init__", "_pre_forward", "_post_forward")


class DistributedTap:
    """Suspends the recording of operations inside collectives and inside DistributedDataParallel's own part.

    Args:
        context: the capture.
        suspend: takes the recording mode off the stack.
        resume: puts it back.
    """

    def __init__(
        self, context: CaptureContext, suspend: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._context = context
        self._suspend = suspend
        self._resume = resume
        self._depth = 0

    def arm(self, stack: ExitStack) -> None:
        """Wraps the collectives where users find them, and the replicas' own part around a forward."""
        if not torch.distributed.is_available():
            return
        replicated = torch.nn.parallel.DistributedDataParallel
        for name in _REPLICATION:
            if name in vars(replicated):
                patch(stack, replicated, name, self._wrap)
        for owner in (torch.distributed, torch.distributed.distributed_c10d):
            for name in _COLLECTIVES.split():
                if hasattr(owner, name):
                    patch(stack, owner, name, self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context

        @functools.wraps(original)
        def without_mode(*args: Any, **kwargs: Any) -> Any:
            if not context.here():
                return original(*args, **kwargs)
            self._depth += 1
            context.quiet += 1
            context.guard.run("operations", self._suspend)
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                context.quiet -= 1
                if not self._depth:
                    context.guard.run("operations", self._resume)

        return without_mode
