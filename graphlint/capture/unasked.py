"""Reads what objects hold, without asking them: an object may compute its attributes, warn, or load itself.

May import torch. What is asked is the layout that Python or torch itself gave to a type, never a name that a
class may have put in its place.
"""

from collections import deque
from collections.abc import Mapping
from functools import partial
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

_OWN = (GetSetDescriptorType, MemberDescriptorType)
_NOTHING: Mapping[str, Any] = {}

_names_of_class: Any = type.__dict__["__dict__"].__get__
_module_of_class: Any = type.__dict__["__module__"].__get__
_bases_of_class: Any = type.__dict__["__mro__"].__get__
_GRAPH: Any = vars(torch._C.TensorBase)["grad_fn"].__get__
_GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__

maxlen_of: Any = deque.__dict__["maxlen"].__get__
"""The most that a deque holds."""


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object, a module or a class by name; none where it has no such dict."""
    for base in bases_of(type(value)):
        layout = names_defined_by(base).get("__dict__")
        if layout is not None:
            attributes = layout.__get__(value, type(value)) if type(layout) in _OWN else None
            return attributes if isinstance(attributes, Mapping) else _NOTHING
    return _NOTHING


def bases_of(kind: type) -> tuple[type, ...]:
    """Returns a class and those that it comes from."""
    bases: tuple[type, ...] = _bases_of_class(kind)
    return bases


def names_defined_by(kind: type) -> Mapping[str, Any]:
    """Returns what a class itself defines."""
    names: Mapping[str, Any] = _names_of_class(kind)
    return names


def library_of(kind: type) -> str:
    """Returns the name of the outermost package that a class comes from."""
    module: Any = _module_of_class(kind)
    return module.partition(".")[0] if type(module) is str else ""


def bound_by(function: partial[Any]) -> tuple[Any, ...]:
    """Returns what a `functools.partial` holds: the function and its arguments."""
    layout = partial.__dict__
    given = layout["keywords"].__get__(function)
    return layout["func"].__get__(function), *layout["args"].__get__(function), *dict.values(given)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Tells a parameter, of a subclass too, which torch marks as one by an attribute."""
    kind = type(tensor)
    if kind is torch.Tensor:
        return False
    return issubclass(kind, torch.nn.Parameter) or attributes_of(tensor).get("_is_param") is True


def graph_of(tensor: torch.Tensor) -> Any:
    """Returns the node that computed the tensor.

    Raises:
        RuntimeError: a view whose base was changed in place has a graph that torch refuses to build.
    """
    return _GRAPH(tensor)


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the gradient that a tensor holds."""
    gradient: torch.Tensor | None = _GRADIENT(tensor)
    return gradient
