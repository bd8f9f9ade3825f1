"""Tells whether the values of a tensor are finite, without a trace in autograd, versions or random state.

May import `record` and torch. The caller has function modes switched off. On the CPU one sum tells the usual
case; a sum that is no ordinary number is followed by a look at the extremes. On an accelerator it waits for
the device.
"""

import math
from collections.abc import Iterable
from typing import TypeGuard

import torch

from graphlint.record.values import Extent

_WORST_FIRST: tuple[Extent, ...] = ("nan", "inf", "finite", "zero")


def extent_of(tensor: torch.Tensor) -> Extent | None:
    """Returns what a tensor holds; None where it holds whole numbers or nothing, or where that can't be told.

    Subclasses of torch's with code of their own are left alone, and so is everything while a user's dispatch
    mode or a CUDA graph's recording is on.
    """
    if not is_plain(tensor):
        return None
    values = _dense(tensor)
    if values is None or not values.numel():
        return None
    total = values.sum().item()
    if total != 0 and math.isfinite(total):
        return "finite"
    least, most = (bound.item() for bound in torch.aminmax(values))
    if least != least or most != most:  # noqa: PLR0124 - only a NaN differs from itself
        return "nan"
    if not (math.isfinite(least) and math.isfinite(most)):
        return "inf"
    return "zero" if least == 0 and most == 0 else "finite"


def worst(extents: Iterable[Extent | None]) -> Extent | None:
    """Returns the worst of several extents: a NaN before an infinity, that before finite, zero last."""
    known = set(extents)
    return next((extent for extent in _WORST_FIRST if extent in known), None)


def is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Tells a tensor of torch's own class with numbers that may be read here and now."""
    kind = type(value)
    if not isinstance(value, torch.Tensor) or (kind is not torch.Tensor and kind is not torch.nn.Parameter):
        return False
    if value.is_meta or torch._C._len_torch_dispatch_stack():
        return False
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return value.is_floating_point() or value.is_complex()


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the elements that a tensor stores, as real numbers, without its history."""
    values = tensor.detach() if tensor.requires_grad else tensor
    if values.layout is torch.sparse_coo:
        values = values._values()
    elif values.layout is not torch.strided:
        return None
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.float() if values.element_size() == 1 else values
