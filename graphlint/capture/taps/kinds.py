"""Which of torch's functions are moves, reads by the host, or of no interest to a record.

Property getters are method-wrappers made anew at each access: they are compared with `==`, as sets do.
"""

from typing import Any

import torch

_T = torch.Tensor

_MOVES = frozenset({_T.to, _T.cuda, _T.cpu})
_HOST_READS = frozenset(
    {
        _T.item,
        _T.tolist,
        _T.numpy,
        _T.__array__,
        _T.__bool__,
        _T.__float__,
        _T.__int__,
        _T.__index__,
        _T.__format__,
        _T.__repr__,
        _T.__contains__,
    }
)
_GRAD: Any = _T.grad
_GRAD_SETTERS = frozenset({_GRAD.__set__, _GRAD.__delete__})
_GRAD_ACCESS = frozenset({_GRAD.__get__}) | _GRAD_SETTERS

_METADATA_GETTERS = """
    shape dtype device requires_grad is_leaf ndim layout grad_fn is_cuda is_sparse is_quantized is_meta
    is_mps is_xpu itemsize nbytes names name is_cpu is_mkldnn _version output_nr retains_grad is_nested
    _backward_hooks volatile _base _grad_fn _cdata is_sparse_csr
"""
_METADATA_METHODS = """
    size dim numel stride is_contiguous element_size __len__ ndimension nelement storage_offset data_ptr
    untyped_storage get_device is_floating_point is_complex is_inference is_shared is_signed register_hook
    __hash__ backward requires_grad_ retain_grad has_names dim_order is_pinned _is_view is_same_size __dir__
    __reduce_ex__ __setstate__ __deepcopy__
"""
_METADATA_FUNCTIONS = """
    is_floating_point is_complex is_tensor numel is_same_size get_default_dtype is_storage is_grad_enabled
    result_type broadcast_shapes
"""


def _attributes(owner: Any, names: str) -> set[Any]:
    """Returns those of the named functions that this version of torch has."""
    return {getattr(owner, name) for name in names.split() if hasattr(owner, name)}


_IGNORED = frozenset(
    {
        *(getter.__get__ for getter in _attributes(_T, _METADATA_GETTERS)),
        *_attributes(_T, _METADATA_METHODS),
        *_attributes(torch, _METADATA_FUNCTIONS),
        *(torch.autograd.grad, torch.autograd.backward),
        *(setter.__set__ for setter in _attributes(_T, "requires_grad")),
    }
)

_ZEROING = frozenset({_T.zero_, _T.fill_, torch.zero_, torch.fill_})


def is_ignored(function: Any) -> bool:
    """Tells whether a call computes nothing and moves nothing."""
    return function in _IGNORED


def is_conversion(function: Any) -> bool:
    """Tells whether a call may hand back the very tensor that it was given, having done nothing."""
    return function in _MOVES


def asks_device(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call asks for a tensor on a device: `.to` may ask for a type alone."""
    if function not in _MOVES:
        return False
    if function != _T.to:
        return True
    if kwargs.get("device") is not None or "other" in kwargs:
        return True
    return any(
        isinstance(value, (str, int, torch.device, torch.Tensor)) and value is not True for value in args[1:2]
    )


def is_host_read(function: Any) -> bool:
    """Tells whether a call hands a tensor's value to Python."""
    return function in _HOST_READS


def is_grad_access(function: Any) -> bool:
    """Tells whether a call reads, assigns or deletes `.grad`."""
    return function in _GRAD_ACCESS


def is_grad_assignment(function: Any) -> bool:
    """Tells whether a call assigns or deletes `.grad`."""
    return function in _GRAD_SETTERS


def zeroes(function: Any) -> bool:
    """Tells whether an in-place call clears its tensor."""
    return function in _ZEROING


def short_name(function: Any) -> str:
    """Returns a function's own name, such as `to` or `item`."""
    return str(getattr(function, "__name__", "call"))
