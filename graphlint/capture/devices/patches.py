"""Puts attributes in place for the time of a simulation and back again; imports nothing of torch."""

from contextlib import ExitStack
from typing import Any

_MISSING = object()


class Patches:
    """Replaced attributes, each restored by the exit stack that it was put on."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Sets `owner.name` and returns what it was, None where it wasn't there."""
        own = vars(owner).get(name, _MISSING)
        before = getattr(owner, name, None)
        self._stack.callback(_restore, owner, name, own)
        setattr(owner, name, value)
        return before

    def set_many(self, owner: Any, values: dict[str, Any]) -> None:
        """Sets those attributes of `owner` that it has; torch versions differ in what they offer."""
        for name, value in values.items():
            if hasattr(owner, name):
                self.set(owner, name, value)


def _restore(owner: Any, name: str, own: Any) -> None:
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
