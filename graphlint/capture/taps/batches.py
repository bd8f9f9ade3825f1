"""Sees the user's loop draw batches from a DataLoader, at both levels."""

from contextlib import ExitStack
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from graphlint.capture.containers import find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.registry import WeakNumbers
from graphlint.capture.taps.patching import patch
from graphlint.record.events import BatchDraw
from graphlint.record.header import Capability


class BatchesTap:
    """Records each batch that is drawn; what the data set computes on the way is not recorded."""

    capability: Capability = "batches"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._iterators = WeakNumbers()

    def arm(self, stack: ExitStack) -> None:
        """Wraps the making and `__next__` of the DataLoader's iterators."""
        patch(stack, _BaseDataLoaderIter, "__init__", self._wrap_making)
        patch(stack, _BaseDataLoaderIter, "__next__", self._wrap)

    def _wrap_making(self, original: Any) -> Any:
        context = self._context

        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - in place of it
            if not context.here():
                original(iterator, *args, **kwargs)
                return
            # torch draws the seed of the workers with operations of its own.
            context.quiet += 1
            try:
                original(iterator, *args, **kwargs)
            finally:
                context.quiet -= 1

        return __init__

    def _wrap(self, original: Any) -> Any:
        context = self._context

        def __next__(iterator: Any) -> Any:  # noqa: N807 - it takes the place of the method of that name
            if context.quiet or not context.here():
                return original(iterator)
            context.guard.run("batches", self._wanted, iterator)
            context.check_stop()
            context.quiet += 1
            try:
                batch = original(iterator)
            except StopIteration:
                context.guard.run("batches", context.clock.batches_ended, iterator)
                raise
            finally:
                context.quiet -= 1
            context.guard.run("batches", self._drawn, iterator, batch)
            return batch

        return __next__

    def _wanted(self, iterator: Any) -> None:
        context = self._context
        context.evaluations.batch_wanted(iterator, lambda: self._recorder.sites.chain(depth=6).site)
        context.clock.batch_wanted(iterator)

    def _drawn(self, iterator: Any, batch: Any) -> None:
        number = self._iterators.find(iterator)
        if number is None:
            number = self._iterators.add(iterator)
        chain = self._recorder.sites.chain(depth=4)
        tensors = find_tensors(batch) if self._context.full else []
        self._recorder.emit(
            BatchDraw(
                serial=self._recorder.next_serial(),
                site=chain.site,
                loader=number,
                tensors=tuple(self._recorder.tensor(tensor) for tensor in tensors),
            )
        )
