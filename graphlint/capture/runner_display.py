"""Shows the script's exception the way the interpreter would have, had graphlint not been there.

Imports the standard library and `capture.messages` only. The frames that graphlint put on the stack are
unlinked from the traceback objects themselves and the rest is left to `sys.excepthook`: so the text is the
interpreter's own, and a hook that the script installed sees the same traceback as without graphlint.
"""

import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, TracebackType
from typing import TextIO

from graphlint.capture.messages import Forgiving, text_of

_OWN_ROOT = str(Path(__file__).parent.parent) + os.sep
_OWN_PARTS = tuple(
    _OWN_ROOT + part for part in ("capture" + os.sep, "cli" + os.sep, "integrations" + os.sep, "__main__.py")
)
_DISPATCH = ("handle_torch_function", os.path.join("torch", "overrides.py"))  # noqa: PTH118 - a path's end


def cut_frames(error: BaseException, *, hidden: tuple[type[BaseException], ...] = ()) -> None:
    """Unlinks graphlint's frames from the exception and from all that it is chained to or groups.

    A chained exception of a `hidden` type is replaced by what it was itself chained to. The exceptions are
    changed in place.
    """
    pending = [error]
    seen: list[BaseException] = []
    while pending:
        current = pending.pop()
        if any(current is known for known in seen):
            continue
        seen.append(current)
        current.__traceback__ = _cut(current.__traceback__)
        while isinstance(context := current.__context__, hidden):
            current.__context__ = context.__context__
        linked = (current.__cause__, current.__context__)
        pending.extend(other for other in linked if other is not None)
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)


def _cut(head: TracebackType | None) -> TracebackType | None:
    entries = list(_entries(head))
    kept: list[TracebackType] = []
    in_own = False
    for entry in entries:
        code = entry.tb_frame.f_code
        if _is_own(code):
            if not in_own:
                _drop_importlib(kept)
            in_own = True
            continue
        if in_own:
            _drop_dispatch(kept, code)
        in_own = False
        kept.append(entry)
    if not kept:
        return None
    for entry, following in pairwise(kept):
        entry.tb_next = following
    kept[-1].tb_next = None
    return kept[0]


def _entries(head: TracebackType | None) -> Iterator[TracebackType]:
    while head is not None:
        yield head
        head = head.tb_next


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN_PARTS)


def _drop_importlib(kept: list[TracebackType]) -> None:
    """Removes the import system's frames before one of graphlint's, as Python does for a plain import."""
    while kept and kept[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
        kept.pop()


def _drop_dispatch(kept: list[TracebackType], code: CodeType) -> None:
    """Removes the detour through a function mode: torch's dispatcher, and the function's first entry.

    A Python function of torch that meets a mode calls the dispatcher, which calls the mode, which calls the
    function again: without the mode only that last entry is there.
    """
    name, ending = _DISPATCH
    if not kept or kept[-1].tb_frame.f_code.co_name != name:
        return
    if not kept[-1].tb_frame.f_code.co_filename.endswith(ending):
        return
    kept.pop()
    if kept and kept[-1].tb_frame.f_code is code:
        kept.pop()


def show(error: BaseException) -> int | None:
    """Hands the exception to `sys.excepthook`, as the interpreter does for one that nothing caught.

    Returns:
        The exit code, when a hook of the script's ended in `SystemExit`; None otherwise.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    trial = _HookTrial(error)
    with trial:
        sys.excepthook(type(error), error, error.__traceback__)
    return trial.exit_code


class _HookTrial:
    """Deals with what a hook of the script's raises, in the interpreter's words."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.exit_code: int | None = None

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if raised is None:
            return False
        if isinstance(raised, SystemExit):
            self.exit_code = exit_code(raised)
            show_exit(raised)
            return True
        cut_frames(raised)
        _write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(raised), raised, raised.__traceback__)
        _write("\nOriginal exception was:\n")
        sys.__excepthook__(type(self._error), self._error, self._error.__traceback__)
        return True


def exit_code(error: SystemExit) -> int:
    """Returns the status that the interpreter would end with."""
    if error.code is None:
        return 0
    return int(error.code) if isinstance(error.code, int) else 1


def show_exit(error: SystemExit) -> None:
    """Prints what the interpreter prints for `sys.exit("text")`: the text on stderr; nothing for a number."""
    if error.code is not None and not isinstance(error.code, int):
        _write(text_of(error.code, otherwise="") + "\n")


def _write(text: str) -> None:
    """Writes on the script's stderr; one that is missing or refuses is left alone."""
    stream: TextIO | None = sys.stderr
    if stream is not None:
        with Forgiving():
            stream.write(text)
