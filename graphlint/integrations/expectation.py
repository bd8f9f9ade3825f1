"""`graphlint.expect`: declares in code that a fault is meant, for a block or for every call of a function.

May import everything that imports no torch. Where nothing records, it does nothing and costs next to nothing,
so that it can stay in code that trains for real.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from graphlint.capture.open_blocks import OpenBlock, enter, leave
from graphlint.errors import UsageError

if TYPE_CHECKING:
    from graphlint.capture.expectations import Expectations

P = ParamSpec("P")
R = TypeVar("R")


class Expect:
    """A declaration that faults of some rules are meant.

    As a context manager it stands for its block, as a decorator for every call of the function. It may be
    entered again, also from within itself.
    """

    def __init__(self, rules: tuple[str, ...], reason: str) -> None:
        self._rules = rules
        self._reason = reason
        self._open: list[OpenBlock] = []

    def __enter__(self) -> Self:
        if _compiling():
            return self
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to the caller's line that costs nothing
        while frame.f_code.co_filename == contextlib.__file__ and frame.f_back is not None:
            frame = frame.f_back  # an ExitStack's
        self._enter(frame.f_code, frame.f_lineno)
        return self

    def _enter(self, code: CodeType, line: int) -> None:
        block = OpenBlock(self._rules, self._reason, code, line)
        enter(block)
        self._open.append(block)
        expectations = _expectations()
        if expectations is not None:
            expectations.begin(block)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _compiling():
            self._leave()

    def _leave(self) -> None:
        block = self._open.pop()
        leave(block)
        expectations = _expectations()
        if expectations is not None:
            expectations.end(block)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Returns the function with the declaration in force during each of its calls.

        Raises:
            UsageError: its body doesn't run during the call.
        """
        _refuse_late(function)
        frame = sys._getframe(1)  # noqa: SLF001 - as above
        code = getattr(inspect.unwrap(function), "__code__", None)
        at = (frame.f_code, frame.f_lineno) if code is None else (code, code.co_firstlineno)

        @functools.wraps(function)
        def expected(*args: P.args, **kwargs: P.kwargs) -> R:
            if _compiling():
                return function(*args, **kwargs)
            self._enter(*at)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return expected


def expect(*rules: str, reason: str = "") -> Expect:
    """Returns a declaration that what these rules report is meant, for a `with` block or as a decorator.

    What happens in the block is not reported by these rules, but listed as suppressed, with the reason. A
    declaration under which nothing was found is reported itself, as GL901.

    Args:
        rules: codes, beginnings of codes or names; each may hold several, separated by commas.
        reason: why it is meant.

    Raises:
        UsageError: no rule is named, or an argument is no text.
    """
    _refuse_no_text("the reason", reason)
    for given in rules:
        _refuse_no_text("a rule", given)
    named = tuple(entry.strip() for given in rules for entry in given.split(","))
    if not named or not all(named):
        raise UsageError(
            'graphlint.expect names the rules that are meant: graphlint.expect("GL301", reason="...")'
        )
    return Expect(named, reason)


def _refuse_late(function: object) -> None:
    """Refuses what has no body that runs during the call."""
    late = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if inspect.isclass(function) or not callable(function) or any(test(function) for test in late):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise UsageError(
            f"graphlint.expect decorates a plain function or method, not {name}; "
            "write `with graphlint.expect(...):` inside of it"
        )


def _refuse_no_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"graphlint.expect: {what} is given as text, not as {type(value).__name__}")


def _compiling() -> bool:
    """Whether this call is being traced by torch.compile: nothing is recorded of what is compiled."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())


def _expectations() -> "Expectations | None":
    """Returns what takes the declarations of the capture that records now, without importing anything."""
    session_module = sys.modules.get("graphlint.capture.session")
    session = session_module.active_session() if session_module is not None else None
    return getattr(session, "expectations", None)  # another thread may be opening it just now
