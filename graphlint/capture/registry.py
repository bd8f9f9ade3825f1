"""Issues the serial numbers by which a record names tensors, storages and modules.

May import `record` and torch. Objects are followed by weak references only: nothing lives longer because
it was numbered, and an address that is reused gets a new number.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphlint.record.identity import StorageId

_PRUNE_EVERY = 4096


class _Reference(weakref.ref[Any]):
    """A weak reference that remembers the address under which it is filed."""

    __slots__ = ("address", "number")

    address: int
    number: int


class WeakNumbers:
    """Numbers objects in the order in which they are met, without keeping them alive.

    `references` is by address; an entry counts only while its reference still leads to the object.
    """

    def __init__(self) -> None:
        self.references: dict[int, _Reference] = {}
        self._next = 0

    def find(self, target: object) -> int | None:
        """Returns the number of `target`, or None when it has none yet."""
        reference = self.references.get(id(target))
        if reference is not None and reference() is target:
            return reference.number
        return None

    def add(self, target: object) -> int:
        """Gives `target` the next number and returns it."""
        self._next += 1
        self._follow(target, self._next - 1)
        return self._next - 1

    def _follow(self, target: object, number: int) -> None:
        reference = _Reference(target, self._forget)
        reference.address = id(target)
        reference.number = number
        self.references[reference.address] = reference

    @contextmanager
    def letting_go(self, *targets: object) -> Iterator[None]:
        """Refers to none of `targets` in the block, where torch may want to be their only holder.

        They have their numbers back when it ends, also when it raises.
        """
        numbers = [(target, self.find(target)) for target in targets]
        for target in targets:
            self.references.pop(id(target), None)
        try:
            yield
        finally:
            for target, number in numbers:
                if number is not None:
                    self._follow(target, number)

    def _forget(self, reference: _Reference) -> None:
        if self.references.get(reference.address) is reference:
            del self.references[reference.address]

    def live(self) -> dict[int, Any]:
        """Returns the objects that are still alive, by number."""
        alive = {}
        for reference in list(self.references.values()):
            target = reference()
            if target is not None:
                alive[reference.number] = target
        return alive


class Storages:
    """Numbers storages. A weak reference keeps the address of a dead one from being reused unnoticed.

    Source: `torch.multiprocessing.reductions.StorageWeakRef`.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, StorageId]] = {}
        self._next = 0
        self._until_prune = _PRUNE_EVERY

    def number(self, tensor: torch.Tensor) -> StorageId:
        """Returns the number of the tensor's storage; a tensor without one gets a number of its own."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return self._issue()
        address = storage._cdata
        known = self._known.get(address)
        if known is not None and not _expired(known[0]):
            return known[1]
        number = self._issue()
        self._known[address] = (StorageWeakRef(storage), number)  # type: ignore[no-untyped-call]
        self._until_prune -= 1
        if self._until_prune <= 0:
            self._prune()
        return number

    def _issue(self) -> StorageId:
        self._next += 1
        return StorageId(self._next - 1)

    def _prune(self) -> None:
        self._until_prune = _PRUNE_EVERY
        for address, (reference, _) in list(self._known.items()):
            if _expired(reference):
                del self._known[address]


def _expired(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]


def is_lazy(tensor: torch.Tensor) -> bool:
    """Tells whether a parameter or buffer has no shape yet, as in a lazy module before its first call."""
    return type(tensor) is not torch.Tensor and torch.nn.parameter.is_lazy(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """Returns the tensor's version counter; -1 for an inference tensor, which has none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def is_leaf(tensor: torch.Tensor) -> bool:
    """Tells whether the tensor is a leaf.

    A view that `no_grad` made of a tensor which was changed in place since is none: torch refuses to say.
    """
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False


def node_of(tensor: torch.Tensor) -> Any:
    """Returns the node that computed the tensor; None for a leaf, and where torch refuses to say."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
