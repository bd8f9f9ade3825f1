"""The function mode that labels what every call makes; imports torch and the other device modules.

A call is answered by its handler where it speaks of devices (`moves`, `answers`), and computed as it is
otherwise: the tensors it takes are checked to be on one device, `device=` becomes the CPU, and what comes
out gets the label of what went in.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.utils._device
from torch.overrides import TorchFunctionMode

from graphlint.capture.devices.labels import (
    CPU,
    PINNED,
    Label,
    LabelTable,
    address_of,
    collect_tensors,
    label_of,
    tensors_in,
)
from graphlint.capture.devices.machine import Machine
from graphlint.capture.devices.mixing import check_same_device, computes_on_all
from graphlint.capture.modes import installed_modes

Handler: TypeAlias = Callable[["SimulationMode", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _ThreadState(threading.local):
    """What one thread is in the middle of."""

    def __init__(self) -> None:
        self.engine_depth = 0
        self.engine_label: Label | None = None
        self.making: Label | None = None


class SimulationMode(TorchFunctionMode):
    """Labels the results of calls into torch, and refuses what a GPU would refuse.

    Attributes:
        default_device: What `set_default_tensor_type` of a CUDA type asked for, None otherwise.
    """

    def __init__(self, table: LabelTable, machine: Machine, handlers: Mapping[Any, Handler]) -> None:
        super().__init__()
        self.table = table
        self.machine = machine
        self.default_device: str | None = None
        self._handlers = handlers
        self._constructors = torch.utils._device._device_constructors()
        self._may_mix: dict[Any, bool] = {}
        self._thread = _ThreadState()
        self._open = False

    def open(self) -> None:
        """Starts answering."""
        self._open = True

    def close(self) -> None:
        """Stops answering: a thread may outlive the simulation with this mode on its stack."""
        self._open = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answers or computes one call into torch."""
        if not self._open:
            return func(*args, **(kwargs or {}))
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        if func.__name__ in {"__get__", "__set__"}:
            return func(*args)
        return self.compute(func, args, kwargs or {})

    def label(self, tensor: torch.Tensor) -> Label | None:
        """Returns the tensor's label, None for a plain CPU tensor."""
        return self.table.get(tensor)

    def device_of(self, tensor: torch.Tensor) -> str:
        """Returns where the script believes the tensor to be: "cuda:0", "cpu", "meta"."""
        label = self.table.get(tensor)
        if label is not None:
            return label.device
        with torch._C.DisableTorchFunction():
            return tensor.device.type

    def default_name(self, func: Callable[..., Any]) -> str | None:
        """Returns the device that `func` makes tensors on when it isn't told one, None for the CPU."""
        if func not in self._constructors:
            return None
        device = torch.utils._device.CURRENT_DEVICE
        if device is not None:
            return self.machine.name(device)
        return self.default_device

    def compute(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        check: bool = True,
    ) -> Any:
        """Calls `func` on the CPU and labels what comes out."""
        target = None
        if kwargs or func in self._constructors:
            target, pinned, kwargs = self._place(func, kwargs)
            if pinned and target in {None, CPU}:
                target = PINNED
            if target is not None and not target.device.startswith(("cpu", "cuda")):
                return func(*args, **kwargs)
        table = self.table
        if target is None and not len(table):
            return func(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        collect_tensors(args, tensors)
        if kwargs:
            collect_tensors(kwargs.values(), tensors)
        labels = [table.get(tensor) for tensor in tensors]
        common = labels[0] if labels else None
        mixed = labels.count(common) != len(labels)
        label = target or (joint_label(labels) if mixed else common)
        if mixed and check and label is not None and self._checked(func):
            check_same_device(table, func, tensors, args)
        if label is None or label is CPU or (label.pinned and label is not target):
            return func(*args, **kwargs)
        state = self._thread
        before, state.making = state.making, label
        try:
            result = func(*args, **kwargs)
        finally:
            state.making = before
        if mixed or type(result) is not torch.Tensor or target is not None:
            self.label_results(result, label, tensors)
        elif table.get(result) is None:
            table.put(result, label)
        return result

    def _place(
        self, func: Callable[..., Any], kwargs: dict[str, Any]
    ) -> tuple[Label | None, bool, dict[str, Any]]:
        """Returns what `device=` and `pin_memory=` ask for, and the arguments that make it on the CPU."""
        asked = kwargs.get("device")
        target = self.machine.name(asked) if asked is not None else self.default_name(func)
        pinned = bool(kwargs.get("pin_memory"))
        if target is not None and (target == "cpu" or target.startswith("cuda")):
            kwargs = {**kwargs, "device": "cpu"}
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        return (None if target is None else label_of(target)), pinned, kwargs

    def label_results(self, result: Any, label: Label, inputs: list[torch.Tensor]) -> None:
        """Labels the new storages in `result`; those of `inputs` keep what they have."""
        kept: set[int | None] | None = None
        for tensor in tensors_in((result,)):
            if self.table.get(tensor) is not None:
                continue
            if kept is None:
                kept = {address_of(given) for given in inputs if self.table.get(given) is None}
            if not kept or address_of(tensor) not in kept:
                self.table.put(tensor, label)

    def move(self, tensor: torch.Tensor, target: str, **options: Any) -> torch.Tensor:
        """Returns a copy of `tensor` with the label `target`; autograd builds the node of a real move."""
        moved = torch.Tensor.to(tensor, device="cpu", copy=True, **options)
        if target != "cpu":
            self.table.put(moved, label_of(target))
        return moved

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Puts this mode on the thread's stack for the block, where it isn't already.

        torch takes a mode off while it handles a call; code of the user that runs inside such a call (hooks,
        a custom backward, a recomputation) must see the devices all the same.
        """
        if self in installed_modes():
            yield
            return
        with self:
            yield

    @contextmanager
    def engine(self, label: Label | None) -> Iterator[None]:
        """Marks the block as a backward: gradients are born unlabelled there, so nothing is checked."""
        state = self._thread
        before = state.engine_label
        state.engine_depth += 1
        state.engine_label = label_of(label.device, certain=False) if label is not None else None
        try:
            with self.enabled():
                yield
        finally:
            state.engine_depth -= 1
            state.engine_label = before

    def adopt(self, values: Any, label: Label | None) -> None:
        """Labels those of the tensors in `values` that have no label yet."""
        if label is None:
            return
        for tensor in tensors_in(values):
            if self.table.get(tensor) is None:
                self.table.put(tensor, label)

    def adopt_in_engine(self, values: Any) -> None:
        """Labels gradients that the engine hands to user code, without certainty."""
        self.adopt(values, self._thread.engine_label)

    def adopt_in_call(self, values: Any) -> None:
        """Labels what the call now being computed has made so far."""
        self.adopt(values, self._thread.making)

    def in_engine(self) -> bool:
        """Tells whether this thread is inside a backward."""
        return self._thread.engine_depth > 0

    def _checked(self, func: Callable[..., Any]) -> bool:
        if self.in_engine():
            return False
        known = self._may_mix.get(func)
        if known is None:
            known = self._may_mix[func] = computes_on_all(func)
        return known


def joint_label(labels: list[Label | None]) -> Label | None:
    """Returns the label of what is computed from tensors so labelled: a certain GPU, else an unsure one."""
    unsure: Label | None = None
    for label in labels:
        if label is None or label.pinned:
            continue
        if label.certain:
            return label
        unsure = unsure or label
    return unsure
