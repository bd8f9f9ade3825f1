"""Keeps the stack of torch function modes in order; imports torch alone.

torch keeps the context of `set_default_device` at the very bottom of the stack and takes the bottom mode
off when that context ends; one entered by `with torch.device(...)` lies on top, like any mode of the
user's, and takes the top off. The simulated devices sit just above it, the recorder above them, and the
user's modes on top. A user's mode may still be on the stack when one of graphlint's leaves, so neither
enters nor leaves by plain push and pop: the modes above are lifted, and put back in their order.
"""

from typing import TypeAlias

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

Mode: TypeAlias = TorchFunctionMode


def installed_modes() -> list[Mode]:
    """Returns this thread's stack of function modes, bottom first."""
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def insert_mode(mode: Mode, *, above: tuple[type[Mode], ...] = ()) -> None:
    """Puts `mode` below every mode of this thread that isn't one of the types `above`.

    The modes of the types `above` that form the bottom of the stack stay where they are, and `mode` comes to
    lie just on top of them. A device context stays below only where it is the default device's.
    """
    lifted = _lift_all()
    for position, other in enumerate(lifted):
        if not isinstance(other, above) or _is_users_device(other):
            lifted.insert(position, mode)
            break
    else:
        lifted.append(mode)
    _put_back(lifted)


def remove_mode(mode: Mode) -> bool:
    """Takes `mode` out of this thread's stack wherever it lies, and tells whether it was there."""
    lifted = _lift_all()
    kept = [other for other in lifted if other is not mode]
    _put_back(kept)
    return len(kept) < len(lifted)


def _is_users_device(mode: Mode) -> bool:
    """Tells whether `mode` is a device context of a `with` block, and not the default device's."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return isinstance(mode, DeviceContext) and mode is not default


def _lift_all() -> list[Mode]:
    lifted = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
    lifted.reverse()
    return lifted


def _put_back(modes: list[Mode]) -> None:
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]
