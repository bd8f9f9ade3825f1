"""`graphlint.audit` and `graphlint.step`: an audit from inside the user's code, as decorator or `with` block.

May import everything that imports no torch; torch comes with the first audited call. What a user's code
raises passes through unchanged, and a fault of graphlint's own is printed and never stops the training.
"""

import atexit
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, cast, get_args, overload

from graphlint.capture.options import FULL_STEPS, CaptureOptions
from graphlint.errors import NothingCheckedError, UsageError
from graphlint.integrations.auditing import Auditing, uncaught_error
from graphlint.lint.rule import Report
from graphlint.lint.selection import Selection
from graphlint.record.header import Level

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

OnFinding = Literal["report", "raise"]

RAISING_STEPS = 3
"""Calls after which a decorator with `on_finding="raise"` ends its audit, when `steps` says nothing else."""


class Audited(Protocol[P, R_co]):
    """A decorated function: called as before, with the audit and its result at hand.

    Attributes:
        audit: the audit around the function.
        report: what was found; None until the audit has ended.
    """

    audit: "Audit"
    report: Report | None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the function."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: "Audited[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "Audited[Q, R]": ...


class Audit:
    """One audit: around the calls of one function, or around one `with` block.

    As a decorator, each outermost call is a training step. The audit begins with the first call and ends
    after `steps` calls, when a call raises, by `end()`, or with the process. As a context manager it spans
    the block; steps are found as under `graphlint run`, or marked by `graphlint.step()`; of a longer block
    the report covers the first `steps`. What was found is printed once, on stderr: of a decorated function
    after its third call, and the rest with the summary when the audit ends. Inside `graphlint run`
    calls only mark steps: the run reports.

    Attributes:
        report: what was found; None until the audit has ended, and under `graphlint run`.
    """

    def __init__(
        self, *, options: CaptureOptions, selection: Selection, on_finding: OnFinding, steps: int | None
    ) -> None:
        self._auditing = Auditing(options, selection, steps)
        self._on_finding = on_finding
        self._steps = steps
        self._calls = 0
        self._use: str | None = None  # what it serves, in words
        self._wrapper: Any = None
        self.running = False
        self.report: Report | None = None

    def __call__(self, function: Callable[P, R]) -> Audited[P, R]:
        """Returns the function with each of its outermost calls audited as one training step.

        Raises:
            UsageError: this audit is taken, or it is no function whose calls can be audited.
        """
        if isinstance(function, staticmethod | classmethod):
            return cast("Audited[P, R]", type(function)(self(function.__func__)))
        name = getattr(function, "__qualname__", type(function).__qualname__)
        _refuse_uncallable(function, name)
        self._take(f"the function {name}")
        if self._steps is None and self._on_finding == "raise":
            self._steps = RAISING_STEPS
        wrapper: Any = _async_wrapper(self, function) if _is_async(function) else _wrapper(self, function)
        self._wrapper = wrapper
        wrapper.audit, wrapper.report = self, None
        return cast("Audited[P, R]", wrapper)

    def __enter__(self) -> Self:
        self._take("a with block")
        self._auditing.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)

    def end(self) -> Report | None:
        """Ends the audit now, prints what was found and returns it; later calls run as if undecorated."""
        self.finish(None)
        return self.report

    def _take(self, use: str) -> None:
        if self._use is not None:
            raise UsageError(
                f"this audit already serves {self._use}; make another graphlint.audit, or one around both"
            )
        self._use = use

    def begin_call(self, stack: ExitStack) -> bool:
        """Returns whether this call is a step of its own; if so, its end is put on `stack`.

        Opens the audit with the first call. A call inside another, in another thread or after the end is
        none.

        Raises:
            UsageError: another audit is active.
        """
        auditing = self._auditing
        if self.running or auditing.state == "ended" or not auditing.here():
            return False
        if auditing.state == "new":
            auditing.open()
            atexit.register(self._at_exit)
            if not auditing.here():  # in a thread beside the one that `graphlint run` records
                return False
        if auditing.session is not None:
            stack.enter_context(auditing.session.step_call())
        self.running = True
        return True

    def end_call(self, error: BaseException | None) -> None:
        """Counts a call that was a step, and ends the audit when it was the last one or raised.

        After the steps that are recorded in full, what they show is printed without waiting for the end.

        Raises:
            FindingsError: something was found, and the user asked to raise.
            NothingCheckedError: the same, and nothing was found because nothing was checked.
        """
        self.running = False
        if self._auditing.state != "recording":
            return
        self._calls += 1
        if error is not None or self._calls == self._steps:
            self.finish(error, all_steps=error is None)
        elif self._calls == FULL_STEPS:
            raising = self._on_finding == "raise"
            if self._auditing.report_early(raising=raising) and raising:
                self.finish(None, all_steps=True)

    def finish(self, error: BaseException | None, *, all_steps: bool = False) -> None:
        """Ends the audit if it is under way; `error` is what ended the audited code.

        Raises:
            FindingsError: something was found, the user asked to raise, and nothing else is being raised.
            NothingCheckedError: so it is, and nothing was found because nothing was checked.
        """
        raising = self._on_finding == "raise" and error is None
        if self._auditing.state == "new" and raising:
            raise NothingCheckedError("nothing was checked: the audited function was never called")
        if self._auditing.state in {"new", "ended"}:
            return
        atexit.unregister(self._at_exit)
        try:
            self._auditing.finish(error, all_steps=all_steps, raising=raising)
        finally:
            self.report = self._auditing.report
            if self._wrapper is not None:
                self._wrapper.report = self.report

    def _at_exit(self) -> None:
        if self._auditing.here():
            self._on_finding = "report"  # nobody is left to catch it
            self.finish(uncaught_error())


class _Call:
    """One call of a decorated function, while it runs."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._stack = ExitStack()
        self._is_step = False

    def __enter__(self) -> None:
        self._is_step = self._audit.begin_call(self._stack)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_step:
            self._stack.__exit__(kind, error, trace)
            self._audit.end_call(error)


def _wrapper(audit: Audit, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def audited(*args: Any, **kwargs: Any) -> Any:
        with _Call(audit):
            return function(*args, **kwargs)

    return audited


def _async_wrapper(audit: Audit, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def audited(*args: Any, **kwargs: Any) -> Any:
        with _Call(audit):
            return await function(*args, **kwargs)

    return audited


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _refuse_uncallable(function: object, name: str) -> None:
    """Refuses what has no body that runs during the call."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{name} is a generator: its body runs after the call has returned; decorate the function that "
            "does one training step, or put `with graphlint.audit():` around the loop"
        )
    if inspect.isclass(function) or not callable(function):
        raise UsageError(f"graphlint.audit decorates a function or a method, not {name}")


@overload
def audit(function: Callable[P, R], /) -> Audited[P, R]: ...
@overload
def audit(
    *,
    steps: int | None = None,
    level: Level = "auto",
    simulate: str | Sequence[str] = (),
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    on_finding: OnFinding = "report",
) -> Audit: ...
def audit(
    function: Callable[P, R] | None = None,
    /,
    *,
    steps: int | None = None,
    level: Level = "auto",
    simulate: str | Sequence[str] = (),
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    on_finding: OnFinding = "report",
) -> "Audited[P, R] | Audit":
    """Returns an audit for a training-step function (as decorator) or a loop (as context manager).

    Used bare (`@graphlint.audit`) it returns the decorated function. `[tool.graphlint]` of the nearest
    pyproject.toml says which rules to check and what to put aside, beside the arguments; how to record is
    said by the arguments alone.

    Args:
        function: the function, when used bare.
        steps: training steps to audit; None: all of them, the first three in full and the rest watched at
            small cost (see `level`). The code goes on afterwards.
        level: as `graphlint run --level`.
        simulate: simulated devices, as `graphlint run --simulate`.
        select: rules to check, as `graphlint run --select`.
        ignore: rules to leave out.
        on_finding: "report" prints what was found; "raise" raises it as a `FindingsError`, once, when a
            warning or an error is among it: at the end of the block; of a function, when something was found,
            after its third call or the last of `steps` (which are three when not given), and the audit ends
            with that. Where nothing was found because nothing was checked, it raises `NothingCheckedError`.

    Raises:
        UsageError: an argument is wrong.
    """
    if steps is not None:
        _refuse_no_count("steps", steps)
    _refuse_unknown("level", level, get_args(Level))
    _refuse_unknown("on_finding", on_finding, get_args(OnFinding))
    if level == "full" and steps is not None and steps <= FULL_STEPS:
        level = "auto"  # the same for these steps, and a longer block is not recorded in full for nothing
    made = Audit(
        options=CaptureOptions(level=level, simulate=_entries(simulate)),
        selection=Selection(_entries(select), _entries(ignore)),
        on_finding=on_finding,
        steps=steps,
    )
    return made if function is None else made(function)


def _refuse_no_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}={value!r}: give a whole number from 1, or None")


def _refuse_unknown(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}={value!r}: give one of {', '.join(known)}")


def _entries(value: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise UsageError(f"{value!r}: give a name or a list of names")
    return tuple(value.split(",")) if isinstance(value, str) and value else tuple(value)


def step() -> None:
    """Marks the beginning of a training step by hand, in an audited block or under `graphlint run`.

    Raises:
        UsageError: no audit is active in this thread.
    """
    session_module = sys.modules.get("graphlint.capture.session")
    session = session_module.active_session() if session_module is not None else None
    if session is None or not session.here():
        raise UsageError(
            "graphlint.step() was called outside of an audit; call it inside `with graphlint.audit():` or in "
            "a script started by `graphlint run`"
        )
    session.mark_step()
