"""The parts of torch above the tensors that ask for devices; imports torch.

Optimizers, data loaders, compiled and scripted code, data parallelism, threads, default devices.
"""

import importlib
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.parallel.comm
import torch.nn.utils.clip_grad
import torch.optim.swa_utils
import torch.utils._device
import torch.utils._foreach_utils
import torch.utils.dlpack

from graphlint.capture.devices.labels import label_of, tensors_in
from graphlint.capture.devices.legacy import parse_type
from graphlint.capture.devices.mode import SimulationMode, joint_label
from graphlint.capture.devices.patches import Patches
from graphlint.capture.modes import installed_modes


def patch_library(patches: Patches, mode: SimulationMode) -> None:
    """Installs the patches of this module."""
    _patch_optimizers(patches, mode)
    _patch_default_device(patches, mode)
    _patch_scripted(patches, mode)
    _patch_data_parallel(patches, mode)
    _patch_threads(patches, mode)
    _patch_backends(patches)
    _patch_makers(patches, mode)


def _patch_optimizers(patches: Patches, mode: SimulationMode) -> None:
    """Keeps optimizers on the path that they take on the CPU, so that the numbers stay the same."""
    # torch.optim takes the name of this module away.
    optimizer = importlib.import_module("torch.optim.optimizer")
    for owner in (optimizer, torch.optim.swa_utils):
        patches.set_many(owner, {"_get_foreach_kernels_supported_devices": list})
    real = torch.utils._foreach_utils._group_tensors_by_device_and_dtype

    @wraps(real)
    def group(tensorlistlist: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002 (torch's signature)
        groups: dict[Any, Any] = {}
        for (_, dtype), (lists, indices) in real(tensorlistlist, with_indices).items():
            for position, tensor in enumerate(lists[0]):
                key = (torch.device("cpu" if tensor is None else mode.device_of(tensor)), dtype)
                kept_lists, kept_indices = groups.setdefault(key, ([[] for _ in lists], []))
                for kept, given in zip(kept_lists, lists, strict=True):
                    if given:
                        kept.append(given[position])
                if with_indices:
                    kept_indices.append(indices[position])
        return groups

    for owner in (
        torch.utils._foreach_utils,
        optimizer,
        torch.optim.swa_utils,
        torch.nn.utils.clip_grad,
    ):
        patches.set_many(owner, {"_group_tensors_by_device_and_dtype": group})


def _patch_default_device(patches: Patches, mode: SimulationMode) -> None:
    """Lets torch's own device context name a simulated device.

    Above the simulation on the stack (`with torch.device("cuda")`) it is left to ask for the device; below it
    (`set_default_device`), and inside a call that is being computed already, it means the CPU.
    """
    context = torch.utils._device.DeviceContext
    real = context.__torch_function__

    def below(
        self: Any, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            self.device.type == "cuda"
            and func in torch.utils._device._device_constructors()
            and kwargs.get("device") is None
            and mode not in installed_modes()
        ):
            kwargs["device"] = "cpu"
        return real(self, func, types, args, kwargs)  # type: ignore[no-untyped-call]

    patches.set(context, "__torch_function__", below)
    real_set = torch.set_default_tensor_type

    @wraps(real_set)
    def set_default_tensor_type(t: Any, /) -> None:
        parsed = parse_type(t)
        if parsed is None or not parsed[0]:
            mode.default_device = None
            real_set(t)
            return
        torch.set_default_dtype(parsed[1])
        mode.default_device = mode.machine.name("cuda")

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)


def _patch_scripted(patches: Patches, mode: SimulationMode) -> None:
    """Labels what scripted code returns: TorchScript's interpreter reaches no function mode."""

    def labelling(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = real(self, *args, **kwargs)
            inputs = [*tensors_in(args), *tensors_in(kwargs.values())]
            label = joint_label([mode.label(tensor) for tensor in inputs])
            if label is not None:
                mode.label_results(result, label, inputs)
            return result

        return call

    for owner in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.set(owner, "__call__", labelling(owner.__call__))


def _patch_data_parallel(patches: Patches, mode: SimulationMode) -> None:
    """Moves what `nn.DataParallel` scatters, copies and gathers with plain `.to` calls."""

    def name(device: Any) -> str:
        return mode.machine.name(device)

    def devices_of(devices: Any) -> list[str]:
        return [name(device) for device in (devices or range(mode.machine.count))]

    def scatter(
        tensor: torch.Tensor, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, ...]:
        places = devices_of(devices)
        chunks = (
            torch.split(tensor, chunk_sizes, dim) if chunk_sizes else torch.chunk(tensor, len(places), dim)
        )
        return tuple(chunk.to(place) for chunk, place in zip(chunks, places, strict=False))

    def gather(
        tensors: Sequence[torch.Tensor], dim: int = 0, destination: Any = None, **_: Any
    ) -> torch.Tensor:
        place = "cpu" if destination == -1 else name("cuda" if destination is None else destination)
        return torch.cat([tensor.to(place) for tensor in tensors], dim)

    def broadcast(tensor: torch.Tensor, devices: Any = None, **_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(place) for place in devices_of(devices))

    def broadcast_coalesced(
        tensors: Sequence[torch.Tensor], devices: Any, *_: Any
    ) -> list[list[torch.Tensor]]:
        return [[tensor.to(place) for tensor in tensors] for place in devices_of(devices)]

    def reduce_add(inputs: Sequence[torch.Tensor], destination: Any = None) -> torch.Tensor:
        place = name("cuda" if destination is None else destination)
        first, *others = [tensor.to(place) for tensor in inputs]
        total = first
        for other in others:
            total = total + other
        return total

    def reduce_add_coalesced(inputs: Any, destination: Any = None, *_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(reduce_add(tensors, destination) for tensors in zip(*inputs, strict=True))

    patches.set_many(
        torch.nn.parallel.comm,
        {
            "scatter": scatter,
            "gather": gather,
            "broadcast": broadcast,
            "broadcast_coalesced": broadcast_coalesced,
            "reduce_add": reduce_add,
            "reduce_add_coalesced": reduce_add_coalesced,
        },
    )


def _patch_threads(patches: Patches, mode: SimulationMode) -> None:
    """Lets threads that start under simulation see the devices: a function mode belongs to one thread."""
    real = threading.Thread.run

    @wraps(real)
    def run(thread: threading.Thread) -> None:
        with mode.enabled():
            real(thread)

    patches.set(threading.Thread, "run", run)


def _patch_backends(patches: Patches) -> None:
    patches.set_many(torch.backends.cuda, {"is_built": lambda: True})
    patches.set_many(
        torch.backends.cudnn,
        {
            "is_available": lambda: True,
            "version": lambda: 91002,
            # The flat weights of a GPU's recurrent layers would be another layout of the same numbers.
            "is_acceptable": lambda tensor: False,  # noqa: ARG005
        },
    )


def _patch_makers(patches: Patches, mode: SimulationMode) -> None:
    """Labels what is made by functions that no function mode sees."""

    def seen(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def make(*args: Any, **kwargs: Any) -> Any:
            return mode.compute(real, args, kwargs, check=False)

        return make

    patches.set(torch.nested, "nested_tensor", seen(torch.nested.nested_tensor))
    real_import = torch.utils.dlpack.from_dlpack

    @wraps(real_import)
    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> torch.Tensor:
        result = real_import(ext_tensor, **kwargs)
        label = (
            mode.label(ext_tensor) if isinstance(ext_tensor, torch.Tensor) else label_of("cpu", certain=False)
        )
        mode.adopt((result,), label)
        return result

    patches.set(torch, "from_dlpack", from_dlpack)
    patches.set(torch.utils.dlpack, "from_dlpack", from_dlpack)
