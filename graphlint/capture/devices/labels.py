"""Which simulated device a tensor is on: labels that sit on storages; imports torch alone.

A label belongs to the storage and not to the tensor, because views, `detach()`, `.data`, a `Parameter` made
of a tensor and `Module.to` (which sets `.data` on the same object) all share or change storages. A storage
is known by its address, which stays its own as long as a weak reference to it is held; the weak reference
frees the memory of the values as usual. An unlabelled storage is on the CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._C import _storage_address  # type: ignore[attr-defined]

PRUNE_EVERY = 512


@dataclass(frozen=True, slots=True)
class Label:
    """Where a storage is, as the script sees it.

    An uncertain label belongs to a tensor whose birth wasn't seen: a gradient handed to a custom `backward`,
    or a tensor out of a checkpoint that says only "cpu". It answers with `device` and mixes with everything.
    """

    device: str
    certain: bool = True
    pinned: bool = False


CPU = Label("cpu")
PINNED = Label("cpu", pinned=True)


@cache
def label_of(device: str, *, certain: bool = True) -> Label:
    """Returns the one label of that device, to be compared with `is`."""
    return CPU if device == "cpu" and certain else Label(device, certain=certain)


class LabelTable:
    """The labels of all live storages of one simulation."""

    def __init__(self) -> None:
        self._labels: dict[int, Label] = {}
        self._bytes: dict[int, int] = {}
        self._until_prune = PRUNE_EVERY
        self._peaks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def get(self, tensor: torch.Tensor) -> Label | None:
        """Returns the label of the tensor's storage, None where it is plainly on the CPU."""
        if not self._labels:
            return None
        try:
            return self._labels.get(_storage_address(tensor))
        except (NotImplementedError, RuntimeError):
            carrier = _carrier(tensor)
            return None if carrier is None else self._labels.get(_storage_address(carrier))

    def get_storage(self, storage: torch.UntypedStorage) -> Label | None:
        """Returns the label of a storage, None where it is plainly on the CPU."""
        return self._labels.get(storage._cdata)

    def put(self, tensor: torch.Tensor, label: Label) -> None:
        """Labels the storage of `tensor`; does nothing for a tensor without one."""
        try:
            _storage_address(tensor)
        except (NotImplementedError, RuntimeError):
            carrier = _carrier(tensor)
            if carrier is None:
                return
            tensor = carrier
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self.put_storage(storage, label)

    def put_storage(self, storage: torch.UntypedStorage, label: Label) -> None:
        """Labels a storage, and holds a weak reference that keeps its address its own."""
        address = storage._cdata
        if address not in self._labels:
            storage._weak_ref()
            self._bytes[address] = storage.nbytes()
            self._until_prune -= 1
            if self._until_prune <= 0:
                self.prune()
        self._labels[address] = label

    def prune(self) -> None:
        """Forgets the storages that are gone, and frees their weak references."""
        self._note_peaks()
        for address in list(self._labels):
            if torch.UntypedStorage._expired(address):
                del self._labels[address]
                del self._bytes[address]
                torch.UntypedStorage._free_weak_ref(address)  # type: ignore[no-untyped-call]
        self._until_prune = max(PRUNE_EVERY, len(self._labels))

    def clear(self) -> None:
        """Forgets every label and frees every weak reference."""
        labels, self._labels, self._bytes = self._labels, {}, {}
        for address in labels:
            torch.UntypedStorage._free_weak_ref(address)  # type: ignore[no-untyped-call]

    def bytes_on(self, device: str) -> int:
        """Returns the bytes of the live storages on `device`."""
        self.prune()
        return sum(self._bytes[address] for address, label in self._labels.items() if label.device == device)

    def peak_bytes_on(self, device: str) -> int:
        """Returns the most bytes that were seen on `device` at once; looked at now and then only."""
        now = self.bytes_on(device)
        return max(now, self._peaks.get(device, 0))

    def reset_peak(self, device: str) -> None:
        """Starts the peak of `device` anew."""
        self._peaks.pop(device, None)

    def _note_peaks(self) -> None:
        totals: dict[str, int] = {}
        for address, label in self._labels.items():
            if not torch.UntypedStorage._expired(address):
                totals[label.device] = totals.get(label.device, 0) + self._bytes[address]
        for device, total in totals.items():
            self._peaks[device] = max(total, self._peaks.get(device, 0))


def address_of(tensor: torch.Tensor) -> int | None:
    """Returns the address of the storage that carries the tensor's label, None where there is none."""
    try:
        return int(_storage_address(tensor))
    except (NotImplementedError, RuntimeError):
        carrier = _carrier(tensor)
        return None if carrier is None else int(_storage_address(carrier))


def _carrier(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor whose storage stands for one without its own: the values of a sparse one."""
    with torch._C.DisableTorchFunction():
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if tensor.layout is torch.sparse_coo:
            tensor = tensor._values()
        elif tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}:
            tensor = tensor.values()
    try:
        _storage_address(tensor)
    except (NotImplementedError, RuntimeError):
        return None
    return tensor


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested tuples, lists and dicts, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            if value:
                yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def collect_tensors(values: Any, found: list[torch.Tensor]) -> None:
    """Appends the tensors in nested tuples, lists and dicts to `found`: the fast form of `tensors_in`."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            collect_tensors(value, found)
        elif isinstance(value, dict):
            collect_tensors(value.values(), found)
