"""What a report means for the one who started the run: the exit code, and whether silence proves anything.

May import `record`, `analysis` and `lint`.
"""

from typing import Literal

from graphlint.analysis.steps import Steps
from graphlint.lint.finding import SEVERITIES
from graphlint.lint.needs import trained
from graphlint.lint.rule import Report
from graphlint.lint.runner import NOT_SELECTED
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
    as severe as `fail_on`; 3 when the run was ended by SIGTERM, because a time limit is no success; 2 when a
    rule or what it rests on failed, because then finding nothing proves nothing; else 0.
    """
    if script_failed(trace) and not explains(report, trace):
        return SCRIPT_FAILED
    if fail_on != "never":
        bar = SEVERITIES.index(fail_on)
        if any(SEVERITIES.index(finding.severity) <= bar for finding in report.findings):
            return FOUND
    if trace.end is not None and trace.end.how == "terminated":
        return SCRIPT_FAILED
    return FAULT if own_fault(report, trace) is not None else OK


def own_fault(report: Report, trace: Trace) -> str | None:
    """Returns the fault of graphlint's own that kept a rule from judging; None when there was none."""
    for outcome in report.outcomes:
        if outcome.outcome == "failed":
            return f"{outcome.code} failed by a fault of graphlint's own: {outcome.reason}"
    faults = [tap.fault for tap in trace.end.taps if tap.fault is not None] if trace.end is not None else []
    for outcome in report.outcomes:
        reason = outcome.reason or ""
        if outcome.outcome == "not-checked" and any(fault in reason for fault in faults):
            return f"{outcome.code} was not checked: {reason}"
    return None


def unchecked(report: Report, trace: Trace) -> str | None:
    """Returns, in one line, why finding nothing proves nothing here; None when a rule could judge.

    Of no interest where something was found.
    """
    if any(outcome.outcome != "not-checked" for outcome in report.outcomes):
        return None
    if not trained(trace):
        return f"nothing was checked: {_why_untrained(trace)}"
    if not trace.complete:
        steps = Steps(trace).count
        held = "the only step" if steps == 1 else f"the {steps} steps"
        return f"nothing was found in {held} that the trace holds, but it breaks off before the run ended"
    reasons = [outcome.reason for outcome in report.outcomes if outcome.reason not in {None, NOT_SELECTED}]
    return f"nothing was checked: {next((reason for reason in reasons if reason), 'no reason was given')}"


def _why_untrained(trace: Trace) -> str:
    if trace.end is None:
        return "the trace breaks off before the first backward or optimizer step"
    if trace.end.unseen:
        return f"no backward and no optimizer step was recorded; not seen: {', '.join(trace.end.unseen)}"
    return "no backward and no optimizer step was recorded; name a script that trains"


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
