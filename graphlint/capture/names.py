"""Finds the names that the user gave: variables, attributes of self, items of named containers.

May import the rest of `capture` and torch. Reading a function's variables must not keep them alive: up to
Python 3.12 `frame.f_locals` fills a dict that the frame then holds, so it is emptied after the look. Since
Python 3.13 it is a live view (PEP 667) and holds nothing.
"""

import dis
import sys
from inspect import CO_OPTIMIZED
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from graphlint.capture.containers import items_of
from graphlint.capture.recorder import Recorder
from graphlint.capture.unasked import attributes_of

_MAX_ITEMS = 64
SNAPSHOTS = sys.version_info < (3, 13)
_KEYS = frozenset({str, int})
_NAMED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, LRScheduler)
TOUCHES_SNAPSHOT = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})
"""Names in a function's code that tell that the user may hold the dict of its variables."""

_BARE_ONLY = frozenset({"vars", "dir"})
_NO_PART_OF_A_CALL = frozenset({"CACHE", "PRECALL", "PUSH_NULL", "NOP"})


def touches_snapshot(code: CodeType) -> bool:
    """Tells whether a function may take the dict of its own variables: `locals()`, not `vars(args)`."""
    used = TOUCHES_SNAPSHOT.intersection(code.co_names)
    if not used <= _BARE_ONLY:
        return True
    if not used:
        return False
    calls = [line for line in dis.get_instructions(code) if line.opname not in _NO_PART_OF_A_CALL]
    return any(
        name.argval in used and not (after.opname.startswith("LOAD_") or name.opname.startswith("STORE"))
        for name, after in pairwise(calls)
    )


class NameFinder:
    """Looks at the variables of the user's frames, once for each line that a frame has reached."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._reached: list[tuple[int, int]] = []
        self._touching: dict[int, tuple[CodeType, bool]] = {}

    def new_step(self) -> None:
        """Looks at every line anew: a frame may lie where that of an earlier call of one function lay."""
        self._reached.clear()

    def look(self, frames: list[FrameType], *, entering: bool = False) -> None:
        """Names what the frames hold; the outermost first, so that a model is named before its layers.

        A frame that stands at the line where it was looked at last is passed over, as long as those around
        it do too. `entering` tells that a function is about to be called from here, whose frame may lie at an
        address that was looked at before.
        """
        reached = self._reached
        for depth, frame in enumerate(reversed(frames)):
            place = (id(frame), frame.f_lineno)
            if depth >= len(reached) or reached[depth] != place:
                del reached[depth:]
                reached.append(place)
                self._look_at(frame)
        if entering:
            del reached[len(frames) :]

    def look_again(self, frames: list[FrameType]) -> None:
        """Names what the frames hold now, whether their lines were looked at or not."""
        for frame in reversed(frames):
            self._look_at(frame)

    def _look_at(self, frame: FrameType) -> None:
        optimized = bool(frame.f_code.co_flags & CO_OPTIMIZED)
        snapshot = SNAPSHOTS and optimized
        if snapshot and self._touches(frame.f_code):
            # The user may hold this very dict, from a call of locals(): it is neither filled nor emptied.
            return
        variables = frame.f_locals
        scope = frame.f_code.co_qualname
        owner = _name_of_self(frame.f_code)
        for name, value in list(variables.items()):
            if name == owner:
                self._name_attributes(value, name, scope)
            else:
                self._name(value, name, scope)
        if snapshot:
            variables.clear()

    def _touches(self, code: CodeType) -> bool:
        if TOUCHES_SNAPSHOT.isdisjoint(code.co_names):
            return False
        known = self._touching.get(id(code))
        if known is None:
            known = self._touching[id(code)] = (code, touches_snapshot(code))
        return known[1]

    def _name(self, value: Any, name: str, scope: str) -> None:
        if type(name) is not str or name.startswith("__"):
            return
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._name_tensor(value, name, scope)
        elif issubclass(kind, torch.nn.Module):
            self._recorder.name("module", self._recorder.module(value), name, scope)
        elif issubclass(kind, torch.optim.Optimizer):
            self._recorder.name("optimizer", self._recorder.optimizer(value), name, scope)
        elif issubclass(kind, LRScheduler):
            self._recorder.name("scheduler", self._recorder.scheduler(value), name, scope)
        elif issubclass(kind, (dict, list, tuple)):
            self._name_items(value, name, scope)

    def _name_tensor(self, tensor: torch.Tensor, name: str, scope: str) -> None:
        number = self._recorder.tensors.find(tensor)
        if number is not None:
            self._recorder.name("tensor", number, name, scope)

    def _name_attributes(self, owner: Any, name: str, scope: str) -> None:
        """Names what a method's `self` holds; a module's own parts are named by their place in it."""
        for attribute, held in _attributes(owner):
            if held is not owner:
                self._name(held, f"{name}.{attribute}", scope)

    def _name_items(self, container: Any, name: str, scope: str) -> None:
        for key, item in items_of(container, _MAX_ITEMS):
            if type(key) in _KEYS and issubclass(type(item), _NAMED):
                self._name(item, f"{name}[{key!r}]", scope)


def _name_of_self(code: CodeType) -> str | None:
    """Returns the first argument's name where the code is a method's."""
    outer = code.co_qualname.rpartition(".")[0]
    if not code.co_argcount or not outer or outer.endswith("<locals>"):
        return None
    return code.co_varnames[0]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    attributes = list(attributes_of(value).items())
    return [(name, held) for name, held in attributes if type(name) is str and not name.startswith("_")]
