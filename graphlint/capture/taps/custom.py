"""Sees `autograd.Function.apply`, which a function mode can't, at the full level.

Operations inside a custom forward run with autograd switched off by torch; they are not recorded, since
they would look like cuts.
"""

from contextlib import ExitStack
from typing import Any

import torch

from graphlint.capture.containers import find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.registry import version_of
from graphlint.capture.sites import CallChain
from graphlint.capture.taps.patching import patch
from graphlint.capture.transforms import unrecorded_region
from graphlint.record.events import Change, Op, Use
from graphlint.record.header import Capability


class CustomFunctionsTap:
    """Records each call of a custom function as one operation."""

    capability: Capability = "custom-functions"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder

    def arm(self, stack: ExitStack) -> None:
        """Wraps `Function.apply`."""
        patch(stack, torch.autograd.Function, "apply", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context
        plain = original.__func__

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if context.quiet or not context.here() or unrecorded_region() is not None:
                return plain(cls, *args, **kwargs)
            before = context.guard.run("custom-functions", self._before, args, kwargs)
            context.quiet += 1
            try:
                result = plain(cls, *args, **kwargs)
            finally:
                context.quiet -= 1
            if before is not None:
                context.guard.run("custom-functions", self._after, cls.__name__, before, result)
            return result

        return classmethod(apply)

    def _before(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CallChain, list[torch.Tensor], tuple[Use, ...], int]:
        chain = self._recorder.sites.chain(depth=4)
        self._context.names.look(chain.frames)
        tensors = find_tensors((args, kwargs))
        uses = tuple(self._recorder.use(tensor) for tensor in tensors)
        return chain, tensors, uses, torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]

    def _after(
        self, name: str, before: tuple[CallChain, list[torch.Tensor], tuple[Use, ...], int], result: Any
    ) -> None:
        chain, tensors, uses, start = before
        end = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        serial = self._recorder.next_serial()
        running = self._context.module_calls[-1] if self._context.module_calls else None
        if end > start:
            self._context.log.add(start, end, serial, chain.site, running)
        outputs = find_tensors(result)
        self._recorder.emit(
            Op(
                serial=serial,
                site=chain.site,
                name=f"{name}.apply",
                inputs=uses,
                outputs=tuple(self._recorder.tensor(tensor) for tensor in outputs),
                output_grads=tuple(tensor.requires_grad for tensor in outputs),
                changed=tuple(
                    Change(use.tensor, use.version, version)
                    for use, tensor in zip(uses, tensors, strict=True)
                    if (version := version_of(tensor)) != use.version
                ),
                seq=(start, end),
                module=running[0] if running else None,
                call=running[1] if running else None,
                grad_mode=torch.is_grad_enabled(),
            )
        )
