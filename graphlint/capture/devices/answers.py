"""Calls that speak of a tensor's device or take values to the host, answered with labels; imports torch."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._tensor_str import _str as tensor_text

from graphlint.capture.devices.labels import Label, tensors_in
from graphlint.capture.devices.mixing import check_index, check_same_device, sure_device
from graphlint.capture.devices.mode import Handler, SimulationMode

Call: TypeAlias = Callable[..., Any]

_FOREACH = "_foreach_"


def handlers() -> dict[Any, Handler]:
    """Returns the handlers of this module, by the function that each answers."""
    tensor = torch.Tensor
    table: dict[Any, Handler] = {
        _getter("device"): _device,
        _getter("is_cuda"): _is_cuda,
        _getter("is_cpu"): _is_cpu,
        _getter("grad"): _grad,
        tensor.get_device: _get_device,
        torch.get_device: _get_device,
        tensor.numpy: _numpy,
        tensor.__array__: _array,
        tensor.__repr__: _repr,
        tensor.__format__: _format,
        tensor.__getitem__: _getitem,
        tensor.__setitem__: _setitem,
        tensor.register_hook: _register_hook,
        tensor.storage: _as_it_is,
        tensor.untyped_storage: _as_it_is,
        torch.autograd.grad: _autograd_grad,
        torch._pack_padded_sequence: _pack_padded,
        torch._pad_packed_sequence: _pad_packed,
    }
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        table[getattr(torch, name)] = _recurrent
    for name in dir(torch):
        if name.startswith(_FOREACH):
            table[getattr(torch, name)] = _foreach
    return table


def _getter(name: str) -> Any:
    """Returns what torch passes to a function mode when an attribute is read; a new object each time."""
    return getattr(torch.Tensor, name).__get__


def _device(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:  # noqa: ARG001
    label = mode.label(args[0])
    return func(*args) if label is None else torch.device(label.device)


def _is_cuda(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:  # noqa: ARG001
    label = mode.label(args[0])
    return bool(func(*args)) if label is None else label.device.startswith("cuda")


def _is_cpu(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:  # noqa: ARG001
    label = mode.label(args[0])
    return bool(func(*args)) if label is None else label.device == "cpu"


def _get_device(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    label = mode.label(args[0] if args else kwargs["input"])
    if label is None or not label.device.startswith("cuda"):
        return int(func(*args, **kwargs))
    return int(label.device.removeprefix("cuda:"))


def _grad(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """Answers `.grad`, labelled from its tensor: it was born inside the engine, out of sight."""
    gradient = func(*args)
    if gradient is not None:
        label = mode.label(args[0])
        if label is not None and label.device != "cpu" and mode.label(gradient) is None:
            mode.table.put(gradient, label)
    return gradient


def _autograd_grad(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gradients = func(*args, **kwargs)
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    for given, gradient in zip(inputs, gradients, strict=False):
        label = mode.label(given) if isinstance(given, torch.Tensor) else None
        if gradient is not None and label is not None and label.device != "cpu":
            mode.adopt((gradient,), label)
    return gradients


def _numpy(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs.get("force"):
        _refuse_host(mode, args[0])
    return func(*args, **kwargs)


def _array(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _refuse_host(mode, args[0])
    return func(*args, **kwargs)


def _refuse_host(mode: SimulationMode, tensor: torch.Tensor) -> None:
    label = mode.label(tensor)
    if label is not None and label.certain and label.device != "cpu":
        raise TypeError(
            f"can't convert {label.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )


def _repr(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if mode.device_of(args[0]) == "cpu" or type(args[0]) not in {torch.Tensor, torch.nn.Parameter}:
        return str(func(*args, **kwargs))
    with mode.enabled():
        return str(tensor_text(args[0], **kwargs))  # type: ignore[no-untyped-call]


def _format(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensor, spec = args
    if tensor.dim() or mode.device_of(tensor) == "cpu":
        if mode.device_of(tensor) == "cpu" or spec:
            return str(func(*args, **kwargs))
        with mode.enabled():
            return repr(tensor)
    return str(func(*args, **kwargs))


def _getitem(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, index = args
    label = mode.label(tensor)
    if not mode.in_engine():
        check_index(mode.table, tensor, index)
    result = func(*args, **kwargs)
    if label is not None and not label.pinned:
        mode.label_results(result, label, [])
    return result


def _setitem(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, index, value = args
    if not mode.in_engine():
        check_index(mode.table, tensor, index)
        gathers = any(part.dim() for part in tensors_in(index if isinstance(index, tuple) else (index,)))
        # Without an index tensor the value is copied, and copies may come from any device.
        if gathers and isinstance(value, torch.Tensor) and value.dim():
            check_same_device(mode.table, func, [tensor, value], args)
    return func(*args, **kwargs)


def _register_hook(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, hook = args[0], (args[1] if len(args) > 1 else kwargs["hook"])
    label = mode.label(tensor)
    if label is None or label.device == "cpu":
        return func(*args, **kwargs)

    def labelled(gradient: torch.Tensor) -> Any:
        mode.adopt((gradient,), label)
        return hook(gradient)

    return func(tensor, labelled)


def _foreach(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes on a list of tensors: each result is where its own tensor is."""
    results = func(*args, **kwargs)
    if isinstance(results, (tuple, list)) and args and isinstance(args[0], (tuple, list)):
        for given, result in zip(args[0], results, strict=False):
            label = mode.label(given)
            if label is not None and label.device != "cpu":
                mode.adopt((result,), label)
    return results


def _pack_padded(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Packs a batch: the data stay where they are, the lengths and batch sizes belong on the CPU."""
    lengths = args[1]
    where = mode.label(lengths)
    if where is not None and where.certain and where.device != "cpu" and not mode.in_engine():
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {where.device} "
            f"{_dtype_word(lengths)} tensor"
        )
    return _pad_packed(mode, func, args, kwargs)


def _pad_packed(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Packs or pads a batch; the sizes in the result are on the CPU."""
    data, sizes = func(*args, **kwargs)
    label: Label | None = mode.label(args[0])
    if label is not None and label.device != "cpu":
        mode.adopt((data,), label)
    return data, sizes


def _recurrent(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a recurrent layer: state and weights must be where the input is; batch sizes stay out of it."""
    packed = len(args) > 3 and isinstance(args[3], (tuple, list))  # noqa: PLR2004 (input, sizes, state, weights)
    state, weights = (args[2], args[3]) if packed else (args[1], args[2])
    home = sure_device(mode.table, args[0])
    if home is not None and not mode.in_engine():
        for name, values in (("hidden", (state,)), ("parameter", weights)):
            for tensor in tensors_in(values):
                there = sure_device(mode.table, tensor)
                if there is not None and there != home:
                    raise RuntimeError(
                        f"Input and {name} tensors are not at the same device, found input tensor at {home} "
                        f"and {name} tensor at {there}"
                    )
    return mode.compute(func, args, kwargs, check=False)


def _dtype_word(tensor: torch.Tensor) -> str:
    return tensor.type().rpartition(".")[2].removesuffix("Tensor")


def _as_it_is(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return func(*args, **kwargs)
