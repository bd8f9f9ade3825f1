"""Looks into the containers that the user's code passes around, without running any of its code.

May import torch. Types are asked, never `__class__`, which an object may compute; subclasses of tuple, list
and dict are read through the built-in's own methods.
"""

from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import torch

from graphlint.capture.unasked import attributes_of

_MAX_DEPTH = 6
_MAX_TENSORS = 4096
_PLAIN = frozenset(
    {int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, slice}
)


def find_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in `value`, in order: tuples, lists, dicts and dataclasses are entered."""
    found: list[torch.Tensor] = []
    _collect(value, found, _MAX_DEPTH)
    return found


def _collect(value: Any, found: list[torch.Tensor], depth: int) -> None:
    kind = type(value)
    if kind in _PLAIN or len(found) >= _MAX_TENSORS:
        return
    if issubclass(kind, torch.Tensor):
        found.append(value)
    elif depth:
        for item in _held(value, kind):
            _collect(item, found, depth - 1)


def _held(value: Any, kind: type) -> Iterable[Any]:
    """Returns what a container of this kind holds; nothing for what is no container."""
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, dict):
        return dict.values(value)
    if hasattr(kind, "__dataclass_fields__"):
        return list(attributes_of(value).values())
    return ()


def items_of(container: Any, most: int) -> list[tuple[Any, Any]]:
    """Returns keys and items of a tuple, list or dict; none where it holds more than `most`."""
    kind = type(container)
    if issubclass(kind, dict):
        return list(dict.items(container)) if dict.__len__(container) <= most else []
    base: Any = list if issubclass(kind, list) else tuple
    return list(enumerate(base.__iter__(container))) if base.__len__(container) <= most else []


def declared_parameters(function: Any) -> tuple[str, ...]:
    """Returns the names of the parameters that a function takes by position, a method's own object left out.

    Empty where that isn't known: a function that isn't Python's. Decorators that keep what they wrap are seen
    through. Runs none of the user's code.
    """
    bound = isinstance(function, MethodType)
    for _ in range(_MAX_DEPTH):
        held = vars(function) if isinstance(function, FunctionType) else {}
        function = (
            function.__func__ if isinstance(function, MethodType) else held.get("__wrapped__", function)
        )
    if not isinstance(function, FunctionType):
        return ()
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return names[1:] if bound else names
