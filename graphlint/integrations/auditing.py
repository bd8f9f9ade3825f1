"""The life of one audit's capture: opened once, ended once, judged and printed once.

May import everything that imports no torch; capture's session comes with `open`. A fault of graphlint's own
at the end of an audit is printed and goes no further: the user's training is not its business.
"""

import io
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from graphlint.capture.options import FULL_STEPS, CaptureOptions
from graphlint.errors import FindingsError, GraphlintError, NothingCheckedError, UsageError
from graphlint.integrations.first_steps import first_steps
from graphlint.lint.config import find
from graphlint.lint.policy import Policy, make_policy
from graphlint.lint.rule import Report, Rule
from graphlint.lint.selection import Selection
from graphlint.record.header import Ending
from graphlint.record.trace import Trace

if TYPE_CHECKING:
    from graphlint.capture.session import Session

_WIDTH = 100

State = Literal["new", "recording", "passive", "ended"]


class Auditing:
    """Opens a capture, and ends it with a report on stderr.

    `state` is `passive` inside `graphlint run`, which records and reports itself: then calls only mark steps.
    `report` is what was found, once it has ended.

    Args:
        options: what to capture.
        selection: the rules to judge by.
        steps: how many of the first steps to report on; None: all.
    """

    def __init__(self, options: CaptureOptions, selection: Selection, steps: int | None) -> None:
        self._options = options
        self._selection = selection
        self._policy = Policy(selection=selection)
        self._show_info = False
        self._steps = steps
        self._stack = ExitStack()
        self._trace: Trace | None = None
        self._told: frozenset[str] = frozenset()
        self.session: Session | None = None
        self.report: Report | None = None
        self.state: State = "new"

    def open(self) -> None:
        """Begins to record, or joins the recording of `graphlint run`.

        Raises:
            UsageError: another audit is active, the selection or a device is unknown, or the config file asks
                for what isn't there.
        """
        from graphlint.capture.session import Session, active_session
        from graphlint.lint.discovery import all_rules

        outer = active_session()
        if outer is not None and not outer.options.script:
            raise UsageError(
                "another graphlint.audit is active, and audits can't be nested; put a single one around the "
                "whole training step, or call end() on the first"
            )
        self._selection.codes(all_rules())
        if outer is not None:
            self.session, self.state = outer, "passive"
        else:
            self._configure(all_rules())
            self.session = self._stack.enter_context(Session(self._options))
            self.state = "recording"

    def _configure(self, rules: Sequence[Rule]) -> None:
        """Takes from the nearest config file how to judge, but not how to run: that is the user's code."""
        config = find([Path.cwd()], rules)
        select, ignore = self._selection.select, self._selection.ignore
        self._policy = make_policy(config, rules, select=select, ignore=ignore, baseline=config.baseline)
        self._show_info = config.show_info

    def here(self) -> bool:
        """Whether this is the thread and the process that the audit records; True before it was opened."""
        return self.session is None or self.session.here()

    def finish(
        self, error: BaseException | None, *, all_steps: bool = False, raising: bool = False
    ) -> Report | None:
        """Ends the recording, judges it and prints the report; None where `graphlint run` does that.

        Args:
            error: the exception that ended the audited code.
            all_steps: it ended because all the steps asked for were seen.
            raising: to raise what there is to tell, instead of printing it.

        Raises:
            FindingsError: something was found.
            NothingCheckedError: nothing was found, and that proves nothing.
        """
        recording = self.state == "recording"
        self.state = "ended"
        if not recording or self.session is None:
            return None
        problem: GraphlintError | None = NothingCheckedError("the audit ended without a report; see above")
        with _OwnFault():
            self._close(error, all_steps=all_steps)
            self.report = self._judge()
            problem = self._problem(self.report) if raising else None
            if problem is None:
                _write(self.text(self.report, width=_width(), color=_colored()))
        if raising and problem is not None:
            raise problem
        return self.report

    def _problem(self, report: Report) -> GraphlintError | None:
        """Returns what there is to raise; None for a report that some rule gave and none a finding."""
        from graphlint.lint.verdict import own_fault, unchecked

        if _grave(report):
            return FindingsError(self.text(report))
        why = unchecked(report, self._judged) or own_fault(report, self._judged)
        return NothingCheckedError(why) if why is not None else None

    def report_early(self, *, raising: bool) -> bool:
        """Returns whether the steps so far show anything; prints it unless it is `raising`, once for all."""
        if self.session is None:
            return False
        found = False
        with _OwnFault():
            self._trace = self.session.trace()
            report = self._judge()
            shown = self._show_info and not raising and bool(report.findings)
            found = _grave(report) or shown
            if found and not raising:
                self._print_early(report)
        return found

    def _close(self, error: BaseException | None, *, all_steps: bool) -> None:
        session = self.session
        if session is None:
            return
        with self._stack:
            how, code = _ending(error, all_steps=all_steps)
            if how in {"error", "interrupt"} and error is not None:
                session.record_error(error)
            session.close(how, code)
        trace = session.trace()
        header = msgspec.structs.replace(trace.header, steps_wanted=self._steps)
        trace = msgspec.structs.replace(trace, header=header)
        self._trace = trace if self._steps is None or error is not None else first_steps(trace, self._steps)
        self.session = None

    @property
    def _judged(self) -> Trace:
        if self._trace is None:
            raise UsageError("nothing was recorded")
        return self._trace

    def _judge(self) -> Report:
        return self._policy.judge(self._judged)

    def _print_early(self, report: Report) -> None:
        """Prints what is found so far; the summary waits for the end, as only then it is known."""
        report = msgspec.structs.replace(report, tracebacks={})
        text = self.text(report, width=_width(), color=_colored(), summary=False)
        _write(f"{text}\ngraphlint: found in the first {FULL_STEPS} calls; the audit goes on\n")
        self._told = frozenset(finding.fingerprint for finding in report.findings)

    def text(self, report: Report, *, width: int = _WIDTH, color: bool = False, summary: bool = True) -> str:
        """Returns the report on this audit as text, without the findings that were printed early."""
        from graphlint.report.text import render

        text = io.StringIO()
        render(
            report,
            self._judged,
            text,
            width=width,
            color=color,
            summary=summary,
            told=self._told,
            show_info=self._show_info,
        )
        return text.getvalue()


def _grave(report: Report) -> bool:
    """Returns whether a report holds more than hints."""
    return any(finding.severity != "info" for finding in report.findings)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stderr.isatty() else _WIDTH


def _colored() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _ending(error: BaseException | None, *, all_steps: bool) -> tuple[Ending, int | None]:
    match error:
        case None:
            return ("steps", None) if all_steps else ("finished", 0)
        case KeyboardInterrupt():
            return "interrupt", None
        case SystemExit():
            return "exit", error.code if isinstance(error.code, int) else int(error.code is not None)
        case _:
            return "error", 1


class _OwnFault:
    """Prints a fault of graphlint's own in its block and lets the user's code go on."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, GraphlintError):
            sys.stderr.write(f"graphlint: error: {error}\n")
            return True
        sys.stderr.write("".join(traceback.format_exception(error)))
        sys.stderr.write(
            "graphlint: error: the audit ended without a report, by a fault of graphlint's own; please "
            "report it with the text above. Your code goes on.\n"
        )
        return True


def uncaught_error() -> BaseException | None:
    """Returns the exception that is ending this process, as far as the interpreter says; None at a prompt."""
    if sys.flags.interactive or hasattr(sys, "ps1"):
        return None
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None
