"""Recognises a value that left torch for Python when it comes back as an argument.

May import torch. Only Python floats and lists of them are held, never anything that shares memory with a
tensor: arrays are followed by weak references.
"""

import weakref
from collections import OrderedDict
from typing import Any

from graphlint.record.identity import Serial

_MAX_HELD = 1024
_MAX_LIST = 4096
_MAX_DEPTH = 3


class HostValues:
    """The last values that were read from tensors, by identity of the Python object."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, tuple[Any, Serial]] = OrderedDict()
        self._arrays: dict[int, tuple[weakref.ref[Any], Serial]] = {}

    def remember(self, value: Any, serial: Serial) -> None:
        """Notes that `value` came out of the host read `serial`."""
        if isinstance(value, (float, complex)) or (isinstance(value, list) and len(value) <= _MAX_LIST):
            self._held[id(value)] = (value, serial)
            if len(self._held) > _MAX_HELD:
                self._held.popitem(last=False)
        elif type(value).__name__ == "ndarray":
            if len(self._arrays) > _MAX_HELD:
                self._arrays.clear()
            self._arrays[id(value)] = (weakref.ref(value), serial)

    def find(self, args: tuple[Any, ...]) -> tuple[Serial, ...]:
        """Returns the host reads whose very results are among the arguments."""
        if not (self._held or self._arrays):
            return ()
        found: list[Serial] = []
        for value in args:
            self._search(value, found, _MAX_DEPTH)
        return tuple(found)

    def _search(self, value: Any, found: list[Serial], depth: int) -> None:
        held = self._held.get(id(value))
        if held is not None and held[0] is value:
            found.append(held[1])
            return
        array = self._arrays.get(id(value))
        if array is not None and array[0]() is value:
            found.append(array[1])
            return
        if depth and isinstance(value, (list, tuple)) and len(value) <= _MAX_LIST:
            for item in value:
                self._search(item, found, depth - 1)
