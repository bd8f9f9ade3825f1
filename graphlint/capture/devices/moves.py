"""Calls that move tensors or make them somewhere: `.to`, `.cpu`, `.cuda`, `.type`, factories; imports torch.

A move is a real copy, so that autograd builds the `ToCopyBackward0` that it builds on a GPU; a move to
where the tensor already is returns the very same object and builds nothing.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from graphlint.capture.devices.labels import PINNED, label_of, tensors_in
from graphlint.capture.devices.legacy import parse_type
from graphlint.capture.devices.mixing import legacy_type
from graphlint.capture.devices.mode import Handler, SimulationMode

Call: TypeAlias = Callable[..., Any]


def handlers() -> dict[Any, Handler]:
    """Returns the handlers of this module, by the function that each answers."""
    tensor = torch.Tensor
    return {
        tensor.to: _to,
        tensor.cpu: _cpu,
        tensor.cuda: _cuda,
        tensor.type: _type,
        tensor.type_as: _type_as,
        tensor.pin_memory: _pin_memory,
        tensor.is_pinned: _is_pinned,
        tensor.__deepcopy__: _alone,
        tensor.new_tensor: _new_tensor,
        torch.tensor: _tensor,
        torch.as_tensor: _as_tensor,
        torch.asarray: _as_tensor,
        torch._C._nn._parse_to: _parse_module_to,
    }


def _to(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    device, dtype, options = _parse_to(mode, rest, dict(kwargs))
    return _moved(mode, func, tensor, device, dtype, options)


def _parse_module_to(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads the arguments of `Module.to`, where a tensor stands for its device and dtype."""
    given = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    named: Any = given
    if isinstance(given, int) and not isinstance(given, bool):
        named = torch.device(mode.machine.name(given))
    if args:
        args = (named, *args[1:])
    elif "device" in kwargs:
        kwargs = {**kwargs, "device": named}
    device, *rest = func(*args, **kwargs)
    if isinstance(given, torch.Tensor):
        device = torch.device(mode.device_of(given))
    return (device, *rest)


def _parse_to(
    mode: SimulationMode, rest: list[Any], options: dict[str, Any]
) -> tuple[str | None, torch.dtype | None, dict[str, Any]]:
    """Returns what the three forms of `Tensor.to` ask for: (device, dtype, further options)."""
    dtype: torch.dtype | None = options.pop("dtype", None)
    device = options.pop("device", None)
    other = options.pop("other", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    elif rest and isinstance(rest[0], torch.dtype):
        dtype = rest.pop(0)
    elif rest:
        device = rest.pop(0)
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            dtype = rest.pop(0)
    options.update(zip(("non_blocking", "copy"), rest, strict=False))
    if other is not None:
        return mode.device_of(other), other.dtype, options
    return (None if device is None else mode.machine.name(device)), dtype, options


def _moved(
    mode: SimulationMode,
    func: Call,
    tensor: torch.Tensor,
    device: str | None,
    dtype: torch.dtype | None,
    options: dict[str, Any],
) -> Any:
    label = mode.label(tensor)
    here = mode.device_of(tensor)
    if dtype is not None:
        options = {**options, "dtype": dtype}
    if device is None or device == here:
        if here == "meta":
            return func(tensor, device="meta", **options)
        result = func(tensor, device="cpu", **options)
        if label is not None and not label.pinned:
            mode.label_results(result, label, [])
        return result
    if not all(name == "cpu" or name.startswith("cuda") for name in (device, here)):
        return func(tensor, device=device, **options)
    options.pop("copy", None)
    options.pop("non_blocking", None)
    return mode.move(tensor, device, **options)


def _cpu(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if mode.device_of(args[0]) == "cpu":
        return func(*args, **kwargs)
    return _moved(mode, torch.Tensor.to, args[0], "cpu", None, dict(kwargs))


def _cuda(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    options = dict(kwargs)
    device = args[1] if len(args) > 1 else options.pop("device", None)
    name = mode.machine.name("cuda" if device is None else device)
    if not name.startswith("cuda"):
        raise RuntimeError(f"Invalid device, must be cuda device, got {name}")
    return _moved(mode, torch.Tensor.to, args[0], name, None, options)


def _type(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        return legacy_type(tensor, mode.label(tensor))
    if isinstance(wanted, torch.dtype):
        return mode.compute(func, args, kwargs)
    parsed = parse_type(wanted)
    if parsed is None:
        return mode.compute(func, args, kwargs)
    on_gpu, dtype = parsed
    here = mode.device_of(tensor)
    on_current = here if here.startswith("cuda") else mode.machine.name("cuda")
    device = on_current if on_gpu else "cpu"
    return _moved(mode, torch.Tensor.to, tensor, device, dtype, {})


def _type_as(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    other = args[1] if len(args) > 1 else kwargs["other"]
    return _moved(mode, torch.Tensor.to, args[0], mode.device_of(other), other.dtype, {})


def _pin_memory(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    tensor = args[0]
    label = mode.label(tensor)
    if label is not None and label.pinned:
        return tensor
    if label is not None and label.certain and label.device != "cpu":
        raise RuntimeError(f"cannot pin '{legacy_type(tensor, label)}' only dense CPU tensors can be pinned")
    with torch._C.DisableTorchFunction():
        copy = tensor.clone()
    mode.table.put(copy, PINNED)
    return copy


def _is_pinned(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:  # noqa: ARG001
    label = mode.label(args[0])
    return label is not None and label.pinned


def _alone(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `func`, and labels its result from the first argument alone."""
    result = func(*args, **kwargs)
    label = mode.label(args[0])
    if label is not None and not label.pinned:
        mode.label_results(result, label, [])
    return result


def _new_tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device")
    name = mode.device_of(args[0]) if device is None else mode.machine.name(device)
    if name != "cpu" and not name.startswith("cuda"):
        return func(*args, **kwargs)
    result = func(*args, **{**kwargs, "device": "cpu"})
    if name != "cpu":
        mode.table.put(result, label_of(name))
    return result


def _tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    data = args[0] if args else kwargs.get("data")
    if kwargs.get("device") is None and isinstance(data, torch.Tensor) and mode.default_name(func) is None:
        kwargs = {**kwargs, "device": mode.device_of(data)}
    return _made_from_data(mode, func, args, kwargs)


def _made_from_data(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes a tensor from numbers, without looking at them: they may be many, and don't decide its device."""
    asked = kwargs.get("device")
    target = mode.machine.name(asked) if asked is not None else mode.default_name(func)
    pinned = bool(kwargs.get("pin_memory"))
    if target is not None and target != "cpu" and not target.startswith("cuda"):
        return func(*args, **kwargs)
    if target is not None:
        kwargs = {**kwargs, "device": "cpu"}
    if pinned:
        kwargs = {**kwargs, "pin_memory": False}
    result = func(*args, **kwargs)
    if target is not None and target != "cpu":
        mode.table.put(result, label_of(target))
    elif pinned:
        mode.table.put(result, PINNED)
    return result


def _as_tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    data = args[0] if args else next(iter(tensors_in((kwargs.get("data"), kwargs.get("obj")))), None)
    asked = kwargs.get("device")
    target = mode.machine.name(asked) if asked is not None else mode.default_name(func)
    if isinstance(data, torch.Tensor):
        here = mode.device_of(data)
        if target in {None, here}:
            options = {**kwargs, "device": "cpu"} if here != "meta" else kwargs
            result = func(*args, **options)
            label = mode.label(data)
            if label is not None and not label.pinned:
                mode.label_results(result, label, [])
            return result
        return _moved(mode, torch.Tensor.to, data, target, kwargs.get("dtype"), {})
    if target is not None and target.startswith("cuda"):
        # Memory shared with numpy or a buffer stays on the host: what goes to the GPU is a copy.
        with torch._C.DisableTorchFunction():
            result = func(*args, **{**kwargs, "device": "cpu"}).clone()
        mode.table.put(result, label_of(target))
        return result
    return _made_from_data(mode, func, args, kwargs)
