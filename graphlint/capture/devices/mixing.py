"""Which calls may mix devices, and torch's own words for those that may not; imports torch and `labels`.

Only what a GPU surely rejects is rejected: a call that isn't known to compute on all its tensors at once
is let through.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphlint.capture.devices.labels import Label, LabelTable, tensors_in

# Dunder methods that compute; every other one (indexing, copying, pickling) goes unchecked here.
_ARITHMETIC = frozenset(
    f"__{prefix}{name}__"
    for name in "add sub mul truediv floordiv mod pow matmul and or xor div".split()  # noqa: SIM905 (a word list)
    for prefix in ("", "r", "i")
) | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
_ADDING_IN_PLACE = frozenset(
    {"add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"}
)

# Calls that read sizes, types or options of a tensor only, move values by themselves, or take tensors that
# belong on the CPU wherever the others are.
_MAY_MIX = frozenset(
    """
    copy_ set_ set_data swap_tensors resize_as_ resize_as_sparse_ expand_as view_as reshape_as type_as
    to is_same_size is_set_to result_type can_cast promote_types broadcast_tensors atleast_1d atleast_2d
    atleast_3d backward grad register_hook ctc_loss lstm gru rnn_tanh rnn_relu tensor_split tensor
    as_tensor asarray new_tensor new new_full full full_like sparse_coo_tensor sparse_csr_tensor
    sparse_compressed_tensor index_put index_put_ index stft istft apply_ map_ map2_ is_tensor numel
    is_floating_point requires_grad_ align_as align_tensors unflatten split_with_sizes repeat_interleave
    normal uniform_ normal_ rand_like randn_like empty_like zeros_like ones_like randint_like
    sum_to_size nested_tensor as_nested_tensor masked_fill masked_fill_ record_stream split chunk
    data_ptr register_post_accumulate_grad_hook
    """.split()  # noqa: SIM905 (a list of words reads better than a column of strings)
)

# The methods of a GPU build that check their arguments one by one: our name of the call, the names of the
# arguments in the order of the check (as positions in our call), and the method's name.
_WRAPPERS: Mapping[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "addmm": ("addmm", (("self", 0), ("mat1", 1), ("mat2", 2))),
    "mm": ("mm", (("self", 0), ("mat2", 1))),
    "bmm": ("bmm", (("self", 0), ("mat2", 1))),
    "baddbmm": ("baddbmm", (("self", 0), ("batch1", 1), ("batch2", 2))),
    "addmv": ("addmv_", (("self", 0), ("mat", 1), ("vec", 2))),
    "index_select": ("_index_select", (("self", 0), ("index", 2))),
    "embedding": ("_index_select", (("self", 1), ("index", 0))),
    "gather": ("gather", (("self", 0), ("index", 2))),
    "nll_loss": ("nll_loss_forward", (("self", 0), ("target", 1), ("weight", 2))),
    "cross_entropy": ("nll_loss_forward", (("self", 0), ("target", 1), ("weight", 2))),
    "layer_norm": ("_native_layer_norm", (("input", 0), ("weight", 2), ("bias", 3))),
    "native_group_norm": ("_native_group_norm", (("input", 0), ("weight", 1), ("bias", 2))),
    "batch_norm": ("_cudnn_batch_norm", (("input", 0), ("weight", 3), ("bias", 4))),
    "binary_cross_entropy": ("_binary_cross_entropy", (("self", 0), ("target", 1), ("weight", 2))),
}  # fmt: skip

_EXPECTED = "Expected all tensors to be on the same device"
_TORCH_PYTHON = ("torch.nn.functional", "torch.functional", "torch._tensor", "torch.nn.init", "torch.fft")


def computes_on_all(func: Callable[..., Any]) -> bool:
    """Tells whether `func` surely needs all its tensors on one device."""
    name = getattr(func, "__name__", "").partition(".")[0]
    if name.startswith("_"):
        return name in _ARITHMETIC
    if name in _MAY_MIX:
        return False
    return not isinstance(func, types.FunctionType) or func.__module__.startswith(_TORCH_PYTHON)


def check_same_device(
    table: LabelTable, func: Callable[..., Any], tensors: Sequence[torch.Tensor], args: Sequence[Any]
) -> None:
    """Raises torch's own error when `func` gets tensors from several devices; 0-dim CPU tensors may mix."""
    first: str | None = None
    mixed = False
    for tensor in tensors:
        device = sure_device(table, tensor)
        if device is None or (device == "cpu" and tensor.dim() == 0):
            continue
        if first is None:
            first = device
        elif device != first:
            mixed = True
            break
    if mixed:
        raise RuntimeError(_wording(table, func, tensors, args))
    if first is not None and first != "cpu" and _writes_to_cpu_scalar(table, func, tensors):
        raise RuntimeError(_two_devices(first, "cpu"))


def check_index(table: LabelTable, tensor: torch.Tensor, index: Any) -> None:
    """Raises torch's own error for a GPU index into a CPU tensor, or into one of another GPU.

    A CPU index into a GPU tensor is fine, and a 0-dim integer is read as a number wherever it is.
    """
    home = sure_device(table, tensor)
    if home is None:
        return
    for part in tensors_in(index if isinstance(index, tuple) else (index,)):
        device = sure_device(table, part)
        if device in {None, "cpu", home} or part.dim() == 0:
            continue
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({home})"
        )


def sure_device(table: LabelTable, tensor: torch.Tensor) -> str | None:
    """Returns where the tensor is, None when that isn't certain or it has no place (meta)."""
    label = table.get(tensor)
    if label is None:
        return "cpu" if tensor.device.type == "cpu" else None
    return label.device if label.certain else None


def _writes_to_cpu_scalar(
    table: LabelTable, func: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name in _ADDING_IN_PLACE
    return in_place and sure_device(table, tensors[0]) == "cpu"


def _wording(
    table: LabelTable, func: Callable[..., Any], tensors: Sequence[torch.Tensor], args: Sequence[Any]
) -> str:
    name = getattr(func, "__name__", "").partition(".")[0].strip("_")
    devices = [sure_device(table, tensor) for tensor in tensors]
    if name.startswith("conv"):
        return _convolution(table, args) or _two_devices(*_first_two(devices))
    if name in {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"}:
        first, second = _first_two(devices)
        return _one_differs("tensors", second, first, "cat")
    method, arguments = _wrapper(name, args)
    found: list[tuple[str, str]] = []
    for argument, position in arguments:
        value = args[position] if position < len(args) else None
        device = sure_device(table, value) if isinstance(value, torch.Tensor) else None
        if device is not None:
            found.append((argument, device))
    for argument, device in found[1:]:
        if device != found[0][1]:
            return _one_differs(argument, device, found[0][1], method)
    return _two_devices(*_first_two(devices))


def _wrapper(name: str, args: Sequence[Any]) -> tuple[str, tuple[tuple[str, int], ...]]:
    if name == "linear":
        if len(args) > 2 and args[2] is not None:  # noqa: PLR2004 (input, weight, bias)
            return "addmm", (("self", 2), ("mat1", 0), ("mat2", 1))
        return "mm", (("self", 0), ("mat2", 1))
    if name in {"matmul", "rmatmul"} and all(isinstance(arg, torch.Tensor) for arg in args[:2]):
        ranks = {arg.dim() for arg in args[:2]}
        return _WRAPPERS["mm"] if ranks == {2} else _WRAPPERS["bmm"]
    return _WRAPPERS.get(name, ("", ()))


def _first_two(devices: Sequence[str | None]) -> tuple[str, str]:
    """Returns the two devices that torch would name: a GPU first, then the first that differs from it."""
    known = [device for device in devices if device is not None]
    common = next((device for device in known if device != "cpu"), known[0])
    return common, next(device for device in known if device != common)


def _two_devices(common: str, other: str) -> str:
    return f"{_EXPECTED}, but found at least two devices, {common} and {other}!"


def _one_differs(argument: str, device: str, common: str, method: str) -> str:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8):
        return (
            f"{_EXPECTED}, but got {argument} is on {device}, different from "
            f"other tensors on {common} (when checking argument in method wrapper_CUDA_{method})"
        )
    return (
        f"{_two_devices(common, device)} (when checking argument for argument {argument} in method "
        f"wrapper_CUDA_{method})"
    )


def _convolution(table: LabelTable, args: Sequence[Any]) -> str | None:
    given, weight = args[0], args[1]
    if sure_device(table, given) == sure_device(table, weight):
        return None
    ending = " or input should be a MKLDNN tensor and weight is a dense tensor"
    return (
        f"Input type ({legacy_type(given, table.get(given))}) and weight type "
        f"({legacy_type(weight, table.get(weight))}) should be the same"
        + (ending if (sure_device(table, given) or "cpu") == "cpu" else "")
    )


def legacy_type(tensor: torch.Tensor, label: Label | None) -> str:
    """Returns what `tensor.type()` answers: "torch.FloatTensor", or "torch.cuda.FloatTensor"."""
    with torch._C.DisableTorchFunction():
        real = str(tensor.type())
    if label is None or not label.device.startswith("cuda"):
        return real
    return real.replace("torch.", "torch.cuda.", 1)
