"""Runs a user's script under capture, exactly as Python would run it, and says how it ended.

May import `record`, `errors` and the rest of `capture`. Torch is imported when the script imports it, and no
earlier. A run belongs to the process: afterwards `sys.argv`, `sys.path` and `__main__` are as the script left
them, for its `atexit` functions and threads; the caller is expected to exit.
"""

import importlib
import os
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from graphlint.capture.options import CaptureOptions
from graphlint.capture.runner_arrival import Arrival
from graphlint.capture.runner_display import cut_frames, exit_code, show, show_exit
from graphlint.capture.runner_program import (
    ModuleTarget,
    Program,
    ScriptTarget,
    Target,
    load_module,
    load_script,
    stage_module,
    stage_script,
)
from graphlint.capture.runner_signals import Terminated, TerminationSignal
from graphlint.capture.stop import StopRun
from graphlint.errors import UsageError
from graphlint.record.header import Ending
from graphlint.record.trace import Trace

if TYPE_CHECKING:
    from graphlint.capture.session import Session


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    Attributes:
        trace: the record; empty of events when the script never imported torch.
        how: how the script ended.
        exit_code: what the script alone would have exited with; None when it was stopped from outside.
        error: the exception that ended it, already shown.
        forked: this process is a copy that the script made with `os.fork` and that came back here: it has
            nothing to report and should exit with `exit_code`.
        unrecorded: why nothing was recorded, when there is no trace for that reason.
    """

    trace: Trace | None
    how: Ending
    exit_code: int | None
    error: BaseException | None = None
    forked: bool = False
    unrecorded: str | None = None


class Runner:
    """A script that is ready to run: found, read and compiled.

    Args:
        target: what to run.
        argv: its arguments.

    Raises:
        UsageError: a script that is missing, unreadable or not Python.
    """

    def __init__(self, target: Target, argv: tuple[str, ...] = ()) -> None:
        self._target = target
        self._argv = argv
        self._program = load_script(target) if isinstance(target, ScriptTarget) else None

    def run(self, options: CaptureOptions) -> Run:
        """Runs the program to its end and shows the exception that ended it, if one did.

        Raises:
            UsageError: the module given to `-m` can't be run, or the options can't be met.
        """
        with ExitStack() as stack:
            return self._run(_Capture(options, stack))

    def _run(self, capture: "_Capture") -> Run:
        owner = os.getpid()
        ending = _ScriptEnding()
        arrival = Arrival(capture.open)
        with ending, TerminationSignal(), arrival:
            ending.problem = self._execute()
        if os.getpid() != owner:
            return Run(trace=None, how=ending.how, exit_code=ending.show(), error=ending.error, forked=True)
        if ending.problem is not None:
            raise ending.problem
        capture.leave(ending.how, ending.exit_code, ending.error)
        code = ending.show()
        trace, unrecorded = None, _unrecorded(arrival)
        if unrecorded is None:
            trace = capture.trace(ending.how, code, ending.error)
            unrecorded = capture.unrecorded
        return Run(trace=trace, how=ending.how, exit_code=code, error=ending.error, unrecorded=unrecorded)

    def _execute(self) -> UsageError | None:
        """Stages the program and runs it; returns what is wrong with the name given to `-m`."""
        program: Program | UsageError | None = self._program
        if isinstance(self._target, ModuleTarget):
            stage_module(self._argv)
            program = load_module(self._target)
        elif program is not None and not isinstance(program, UsageError):
            stage_script(self._target, program, self._argv)
        if program is None or isinstance(program, UsageError):
            return program
        exec(program.code, vars(program.main))  # noqa: S102 - running the user's script is the purpose
        return None


def _unrecorded(arrival: Arrival) -> str | None:
    """Returns why torch, which the script did ask for, could not be watched; None when it could."""
    if arrival.missed:
        return "the script imported torch outside of its main thread"
    return "the script's import of torch failed" if arrival.failed else None


class _Abandoned(BaseException):
    """Leaves the script because capture could not start; the reason is raised again outside of it."""


_STOPS = (StopRun, _Abandoned)


class _Capture:
    """Opens the session when torch arrives and closes it when the script has ended.

    The caller's `stack` closes it should a fault of graphlint's own come in between.
    """

    def __init__(self, options: CaptureOptions, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._session: Session | None = None
        self.fault: Exception | None = None
        self.unrecorded: str | None = None
        self._left = False

    def open(self) -> None:
        """Starts recording; what goes wrong is kept, and the script is left."""
        with _Keeping(self):
            self._enter()
        if self.fault is not None:
            raise _Abandoned

    def _enter(self) -> None:
        from graphlint.capture.session import Session

        self._session = self._stack.enter_context(Session(self._options))

    def leave(self, how: Ending, code: int | None, error: BaseException | None) -> None:
        """Ends the recording, when there is one; nothing of it is installed afterwards."""
        if self.fault is not None:
            raise self.fault
        if self._session is None:
            return
        self._left = True
        if error is not None:
            self._session.record_error(error)
        self._session.close(how, code)
        self._stack.close()

    def trace(self, how: Ending, code: int | None, error: BaseException | None) -> Trace | None:
        """Returns the record; that of a script that never imported torch holds how it ended and no more.

        None when torch can't be imported for that; `unrecorded` says so then.
        """
        if self._session is None:
            self._enter_late()
        if self._session is None:
            return None
        if not self._left:
            self.leave(how, code, error)
        return self._session.trace()

    def _enter_late(self) -> None:
        """Opens a session for a script that has ended without torch, if torch can be imported at all."""
        with _Keeping(self):
            importlib.import_module("torch")
        if self.fault is None:
            self._enter()
            return
        missing = isinstance(self.fault, ModuleNotFoundError) and self.fault.name == "torch"
        self.unrecorded = (
            "torch is not installed in this Python environment"
            if missing
            else f"torch can't be imported: {type(self.fault).__name__}: {self.fault}"
        )
        self.fault = None


class _Keeping:
    """Keeps the exception of a block, in place of raising it inside the script."""

    def __init__(self, capture: _Capture) -> None:
        self._capture = capture

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(raised, Exception):
            return False
        self._capture.fault = raised
        return True


class _ScriptEnding:
    """Catches whatever ends the script, and says what it was."""

    def __init__(self) -> None:
        self.how: Ending = "finished"
        self.exit_code: int | None = 0
        self.error: BaseException | None = None
        self.problem: UsageError | None = None
        self._exit: SystemExit | None = None

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if raised is None:
            return True
        stopped = _caused_by(raised, _STOPS)
        cut_frames(raised, hidden=(*_STOPS, Terminated))
        if isinstance(raised, _STOPS) or (stopped and isinstance(raised, SystemExit)):
            self.how, self.exit_code = "steps", None
        elif isinstance(raised, SystemExit):
            self.how, self.exit_code, self._exit = "exit", exit_code(raised), raised
        elif isinstance(raised, Terminated):
            self.how, self.exit_code = "terminated", None
        elif isinstance(raised, KeyboardInterrupt):
            self.how, self.exit_code, self.error = "interrupt", None, raised
        else:
            self.how, self.exit_code, self.error = "error", 1, raised
        return True

    def show(self) -> int | None:
        """Prints what the interpreter would print, and returns what it would exit with."""
        if self._exit is not None:
            show_exit(self._exit)
        if self.error is not None:
            code = show(self.error)
            return self.exit_code if code is None else code
        return self.exit_code


def _caused_by(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether the exception was raised while one of these kinds was on its way out."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and not any(current is known for known in seen):
        if isinstance(current, kinds):
            return True
        seen.append(current)
        current = current.__context__
    return False
