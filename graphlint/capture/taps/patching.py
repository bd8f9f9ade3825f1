"""Replaces an attribute for the time of a capture, and puts back exactly what was there."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

_ABSENT = object()


def patch(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces `owner.name` by `make(original)` until the stack is closed.

    What is put back is the very object of the owner's `__dict__` (a descriptor, not what it binds to); a
    name that the owner only inherited is deleted again. If somebody else replaced it in the meantime, theirs
    stays.
    """
    held = vars(owner).get(name, _ABSENT)
    replacement = make(getattr(owner, name) if held is _ABSENT else held)
    setattr(owner, name, replacement)
    stack.callback(_restore, owner, name, replacement, held)


def _restore(owner: Any, name: str, replacement: Any, held: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not replacement:
        return
    if held is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, held)
