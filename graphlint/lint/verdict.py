"""What a report means for the one who started the run: the exit code; may import `record` and `lint`."""

from typing import Literal

from graphlint.lint.finding import SEVERITIES
from graphlint.lint.rule import Report
from graphlint.record.events import ScriptError
from graphlint.record.trace import Trace

FailOn = Literal["error", "warning", "info", "never"]

OK = 0
FOUND = 1
FAULT = 2
SCRIPT_FAILED = 3


def exit_code(report: Report, trace: Trace, fail_on: FailOn) -> int:
    """Returns the exit code of a run.

    3 when the script failed and no finding explains it, whatever else was found; 1 when a finding is at least
    as severe as `fail_on`; 2 when a rule failed, because then finding nothing proves nothing; else 0.
    """
    if script_failed(trace) and not explains(report, trace):
        return SCRIPT_FAILED
    if fail_on != "never":
        bar = SEVERITIES.index(fail_on)
        if any(SEVERITIES.index(finding.severity) <= bar for finding in report.findings):
            return FOUND
    if any(outcome.outcome == "failed" for outcome in report.outcomes):
        return FAULT
    return OK


def script_failed(trace: Trace) -> bool:
    """Returns whether the script ended in an exception or with a non-zero exit code; Ctrl-C is neither."""
    if trace.end is None:
        return script_error(trace) is not None
    return trace.end.how == "error" or (trace.end.how == "exit" and trace.end.exit_code not in {None, 0})


def script_error(trace: Trace) -> ScriptError | None:
    """Returns the exception that ended the run, if one did."""
    errors = [event for event in trace.events if isinstance(event, ScriptError)]
    return errors[-1] if errors else None


def explains(report: Report, trace: Trace) -> bool:
    """Returns whether a finding explains why the script failed.

    It does when it is an error and one of its labels is a line that the exception passed through.
    """
    error = script_error(trace)
    if error is None:
        return False
    raised = {(frame.path, frame.line) for frame in error.frames}
    return any(
        (label.path, label.line) in raised
        for finding in report.findings
        if finding.severity == "error"
        for label in finding.labels
    )
