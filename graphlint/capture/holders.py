"""Finds what the user's variables keep of autograd graphs: tensors in variables, attributes and collections.

May import the rest of `capture` and torch. Variables are read as `capture.names` reads them, and nothing of
what is found outlives the look. Types are asked, never `__class__`; no code of the user's is run.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

from graphlint.capture.names import SNAPSHOTS, touches_snapshot
from graphlint.capture.unasked import (
    attributes_of,
    bases_of,
    bound_by,
    gradient_of,
    graph_of,
    is_parameter,
    library_of,
    maxlen_of,
    names_defined_by,
)

MAX_LOOKED_AT = 10_000
"""Objects that one look goes through, nearest first."""

_MAX_DEPTH = 8
_MAX_NAMESPACE = 32
_MAX_ITEMS = 8192
_MAX_OTHERS = 256
_LEAVES = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
)
_PLAIN = frozenset(map(id, _LEAVES))
"""Types of what holds nothing, by address: a class may have a hash of its own."""

_COLLECTIONS = (list, tuple, set, frozenset, deque)


UserCode = Callable[[CodeType], bool]
"""Tells whether a code object is the user's own."""


class Place:
    """A way to a value: the frame that holds it, and the steps to it, spelled only when asked for.

    `collection` is the place of the outermost collection on the way; None outside of one. `limit` is that
    collection's `maxlen`, `whole` tells whether all of what it holds was looked at.
    """

    __slots__ = ("_above", "_key", "collection", "depth", "frame", "limit", "whole")

    def __init__(self, frame: FrameType, key: str, above: "Place | None" = None) -> None:
        self._key = key
        self._above = above
        self.frame = frame
        self.depth: int = 0 if above is None else above.depth + 1
        self.collection: Place | None = None if above is None else above.collection
        self.limit: int | None = None if above is None else above.limit
        self.whole: bool = above is None or above.whole

    def attribute(self, name: str) -> "Place":
        """Returns the place of an attribute."""
        return Place(self.frame, f".{name}", self)

    def item(self, key: Any) -> "Place":
        """Returns the place of what a namespace has under a key."""
        return Place(self.frame, f"[{key!r}]", self)

    def closed_over(self, name: str) -> "Place":
        """Returns the place of a variable that a function brings along; it is known by its own name."""
        place = Place(self.frame, name)
        place.depth = self.depth + 1
        return place

    def member(self, key: str, *, limit: int | None, whole: bool) -> "Place":
        """Returns the place of what lies in a collection."""
        place = Place(self.frame, f"[{key}]", self)
        if self.collection is None:
            place.collection, place.limit, place.whole = self, limit, whole
        return place

    @property
    def spelled(self) -> str:
        """The way as the user would write it."""
        return self._key if self._above is None else self._above.spelled + self._key

    @property
    def holder(self) -> str:
        """The outermost collection on the way, or the value itself."""
        return self.spelled if self.collection is None else self.collection.spelled

    @property
    def inside(self) -> str:
        """What follows the collection's own index."""
        rest = "" if self.collection is None else self.spelled[len(self.collection.spelled) :]
        return rest.partition("]")[2]


Found = tuple[torch.Tensor, Place]


def find_graph_tensors(frames: list[FrameType], is_user_code: UserCode) -> list[Found]:
    """Returns the tensors with a graph that the frames can reach, each once, by the shortest way."""
    search = _Search(is_user_code)
    for frame in frames:
        search.add_variables(frame)
    for frame in frames:
        search.add_globals(frame)
    return search.run()


class _Search:
    """One look, breadth first. Everything that was met is held until it ends: addresses stay unique."""

    def __init__(self, is_user_code: UserCode) -> None:
        self._is_user_code = is_user_code
        self._waiting: deque[tuple[Any, Place]] = deque()
        self._met: dict[int, Any] = {}
        self._found: list[Found] = []

    def add_variables(self, frame: FrameType) -> None:
        """Adds what a function's variables hold."""
        if frame.f_code.co_name == "<module>":
            return
        for name, value in _variables(frame):
            self._add(value, Place(frame, name))

    def add_globals(self, frame: FrameType) -> None:
        """Adds what the variables of a frame's file hold."""
        variables = frame.f_globals
        if id(variables) not in self._met:
            self._met[id(variables)] = variables
            for name, value in list(variables.items()):
                if type(name) is str and not name.startswith("__"):
                    self._add(value, Place(frame, name))

    def _add(self, value: Any, place: Place) -> None:
        if id(type(value)) not in _PLAIN and id(value) not in self._met and len(self._met) < MAX_LOOKED_AT:
            self._met[id(value)] = value
            self._waiting.append((value, place))

    def run(self) -> list[Found]:
        """Returns the tensors."""
        while self._waiting:
            value, place = self._waiting.popleft()
            kind = type(value)
            if issubclass(kind, torch.Tensor):
                self._tensor(value, place)
            elif place.depth < _MAX_DEPTH:
                self._enter(value, kind, place)
        return self._found

    def _enter(self, value: Any, kind: type, place: Place) -> None:
        try:
            for inner, at in self._inside(value, kind, place):
                self._add(inner, at)
        except RuntimeError:
            # Another thread has changed the collection meanwhile.
            return

    def _tensor(self, tensor: torch.Tensor, place: Place) -> None:
        try:
            if graph_of(tensor) is not None:
                self._found.append((tensor, place))
            elif is_parameter(tensor):
                # Of other leaves the gradient may have no Python object yet, and is not to get one.
                gradient = gradient_of(tensor)
                if gradient is not None and graph_of(gradient) is not None:
                    self._found.append((gradient, place.attribute("grad")))
        except RuntimeError:
            # A view whose base was changed in place has a graph that torch refuses to build.
            return

    def _inside(self, value: Any, kind: type, place: Place) -> Iterable[tuple[Any, Place]]:
        if issubclass(kind, dict):
            return _entries(value, place)
        if issubclass(kind, _COLLECTIONS):
            return _members(value, kind, place)
        if issubclass(kind, torch.nn.Module):
            return _parts(value, place)
        if issubclass(kind, (FunctionType, MethodType, partial)):
            return self._bound(value, kind, place)
        if issubclass(kind, (type, ModuleType)):
            return self._defined(value, place)
        library = library_of(kind)
        closed = library in {"builtins", "graphlint"} or issubclass(kind, torch.optim.Optimizer)
        return () if closed else _attributes(value, kind, place)

    def _bound(self, value: Any, kind: type, place: Place) -> Iterator[tuple[Any, Place]]:
        """Yields what a function brings along: what it closes over, its defaults, its owner."""
        if issubclass(kind, MethodType):
            yield value.__self__, place
            return
        if issubclass(kind, partial):
            for inner in bound_by(value):
                yield inner, place
            return
        if not self._is_user_code(value.__code__):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield cell.cell_contents, place.closed_over(name)
            except ValueError:
                continue
        for inner in value.__defaults__ or ():
            yield inner, place

    def _defined(self, value: Any, place: Place) -> Iterator[tuple[Any, Place]]:
        """Yields what the user's own classes and modules define."""
        defined = list(attributes_of(value).items())
        functions = (inner for _, inner in defined if type(inner) is FunctionType)
        if any(self._is_user_code(function.__code__) for function in islice(functions, 4)):
            for name, inner in defined:
                if not name.startswith("__") and type(inner) is not FunctionType:
                    yield inner, place.attribute(name)


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    snapshot = SNAPSHOTS and bool(frame.f_code.co_flags & CO_OPTIMIZED)
    if snapshot and touches_snapshot(frame.f_code):
        return []
    variables = frame.f_locals
    found = list(variables.items())
    if snapshot:
        variables.clear()
    return found


def _entries(value: Any, place: Place) -> Iterator[tuple[Any, Place]]:
    """Yields a dict's values: a small one with words for keys is a namespace, any other a collection."""
    length = dict.__len__(value)
    if length <= _MAX_NAMESPACE and all(type(key) is str for key in dict.keys(value)):
        for key, inner in list(dict.items(value)):
            if id(type(inner)) not in _PLAIN:
                yield inner, place.item(key)
        return
    pairs = ((repr(key) if type(key) in {str, int} else "...", inner) for key, inner in dict.items(value))
    yield from _collected(pairs, length, place, None)


def _members(value: Any, kind: type, place: Place) -> Iterator[tuple[Any, Place]]:
    base = next(base for base in _COLLECTIONS if issubclass(kind, base))
    limit = maxlen_of(value) if issubclass(kind, deque) else None
    pairs = ((str(index), inner) for index, inner in enumerate(base.__iter__(value)))
    yield from _collected(pairs, base.__len__(value), place, limit)


def _collected(
    pairs: Iterable[tuple[str, Any]], length: int, place: Place, limit: int | None
) -> Iterator[tuple[Any, Place]]:
    """Yields what a collection holds: tensors, and of other things in a large one its ends."""
    whole = length <= _MAX_OTHERS
    for index, (key, inner) in enumerate(islice(pairs, _MAX_ITEMS)):
        kind = type(inner)
        if id(kind) in _PLAIN:
            continue
        near_an_end = whole or index < _MAX_OTHERS // 2 or index >= length - _MAX_OTHERS // 2
        if near_an_end or issubclass(kind, torch.Tensor):
            member = place.member(key, limit=limit, whole=whole or issubclass(kind, torch.Tensor))
            yield inner, member


def _parts(module: torch.nn.Module, place: Place) -> Iterator[tuple[Any, Place]]:
    held = attributes_of(module)
    for name in ("_parameters", "_buffers", "_modules"):
        for key, inner in _items(held.get(name)):
            yield inner, place.attribute(key)
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
        for _, inner in _items(held.get(name)):
            yield inner, place
    for name, inner in list(held.items()):
        if id(type(inner)) not in _PLAIN and name not in _MODULE_OWN:
            yield inner, place.attribute(name)


def _items(held: Any) -> list[tuple[Any, Any]]:
    """Returns keys and values of a dict; a module compiled by `torch.jit` has something else in its place."""
    return list(dict.items(held)) if issubclass(type(held), dict) else []


_MODULE_OWN = frozenset(vars(torch.nn.Module()))


def _attributes(value: Any, kind: type, place: Place) -> Iterator[tuple[Any, Place]]:
    for name, inner in list(attributes_of(value).items()):
        if id(type(inner)) not in _PLAIN:
            yield inner, place.attribute(name)
    for base in bases_of(kind)[:-1]:
        defined = names_defined_by(base)
        if "__slots__" not in defined:
            continue
        for name, slot in list(defined.items()):
            if type(slot) is MemberDescriptorType and not name.startswith("__"):
                try:
                    yield slot.__get__(value, kind), place.attribute(name)
                except (AttributeError, TypeError):
                    continue
