"""The exit code: 3 for a failure that no finding explains, 1 for findings, 2 for graphlint's own fault."""

import msgspec
import pytest

from graphlint.lint.finding import Finding, Label
from graphlint.lint.rule import Report, RuleOutcome
from graphlint.lint.verdict import exit_code, explains, script_failed, unchecked
from graphlint.record.events import ScriptError
from graphlint.record.header import TapReport
from graphlint.record.identity import Serial
from graphlint.record.tables import Frame

PATH = "/home/me/train.py"


def finding(severity="error", lines=(7,)):
    labels = tuple(Label(path=PATH, line=line, text="") for line in lines)
    return Finding(
        code="GL101",
        rule="r",
        severity=severity,
        message="",
        path=PATH,
        line=lines[0],
        labels=labels,
        fix="",
        count=1,
        first_step=0,
        last_step=0,
        fingerprint="",
    )


def report(*findings, outcome="findings"):
    return Report(findings=findings, outcomes=(RuleOutcome(code="GL101", outcome=outcome),), tracebacks={})


@pytest.fixture
def crashed(make_trace, make_backward):
    frames = (Frame(PATH, 7, "inner", 1), Frame(PATH, 20, "<module>", 1))
    error = ScriptError(serial=Serial(1), type="RuntimeError", message="m", frames=frames)
    return make_trace([make_backward(0), error], how="error", exit_code=1)


@pytest.mark.parametrize(
    ("severity", "fail_on", "expected"),
    [
        ("error", "error", 1),
        ("error", "info", 1),
        ("error", "never", 0),
        ("warning", "error", 0),
        ("warning", "warning", 1),
        ("info", "warning", 0),
        ("info", "info", 1),
    ],
)
def test_findings_at_or_above_the_level(make_trace, severity, fail_on, expected):
    assert exit_code(report(finding(severity)), make_trace(), fail_on) == expected


def test_clean_run(make_trace):
    assert exit_code(report(outcome="clean"), make_trace(), "info") == 0


@pytest.mark.parametrize("fail_on", ["error", "never"])
def test_unexplained_failure_whatever_else_was_found(crashed, fail_on):
    assert exit_code(report(), crashed, fail_on) == 3
    assert exit_code(report(finding(lines=(6,))), crashed, fail_on) == 3


@pytest.mark.parametrize("line", [7, 20])
def test_error_on_a_line_of_the_traceback_explains(crashed, line):
    assert exit_code(report(finding(lines=(3, line))), crashed, "warning") == 1


def test_warning_does_not_explain(crashed):
    assert not explains(report(finding("warning")), crashed)
    assert exit_code(report(finding("warning")), crashed, "warning") == 3


def test_same_line_of_another_file_does_not_explain(make_trace, make_backward):
    frames = (Frame("/home/me/other.py", 7, "f", 1),)
    error = ScriptError(serial=Serial(1), type="RuntimeError", message="m", frames=frames)
    trace = make_trace([make_backward(0), error], how="error", exit_code=1)
    assert not explains(report(finding()), trace)


@pytest.mark.parametrize(
    ("how", "code", "failed"),
    [
        ("finished", 0, False),
        ("steps", None, False),
        ("interrupt", 130, False),
        ("terminated", None, False),
        ("exit", 0, False),
        ("exit", None, False),
        ("exit", 2, True),
        ("error", 1, True),
    ],
)
def test_what_counts_as_a_failure_of_the_script(make_trace, how, code, failed):
    trace = make_trace(how=how, exit_code=code)
    assert script_failed(trace) is failed
    no_success = failed or how == "terminated"
    assert exit_code(report(outcome="clean"), trace, "warning") == (3 if no_success else 0)


@pytest.mark.parametrize(("fail_on", "expected"), [("warning", 1), ("never", 3)])
def test_findings_count_though_the_run_was_terminated(make_trace, fail_on, expected):
    assert exit_code(report(finding()), make_trace(how="terminated"), fail_on) == expected


def test_fault_of_a_tap_is_graphlints_own_failure(make_trace, make_backward):
    taps = (TapReport(capability="operations", armed=True, fault="KeyError: 3"),)
    trace = make_trace([make_backward(0)], taps=taps)
    reason = "operations were no longer recorded after a fault of graphlint's own: KeyError: 3"
    outcomes = (
        RuleOutcome(code="GL101", outcome="clean"),
        RuleOutcome(code="GL401", outcome="not-checked", reason=reason),
    )
    judged = Report(findings=(), outcomes=outcomes, tracebacks={})
    assert exit_code(judged, trace, "warning") == 2
    unselected = msgspec.structs.replace(judged, outcomes=outcomes[:1])
    assert exit_code(unselected, trace, "warning") == 0


def test_silence_that_proves_nothing_is_told_why(make_trace, make_backward):
    silent = report(outcome="not-checked")
    assert unchecked(report(outcome="clean"), make_trace([make_backward(0)])) is None
    assert unchecked(silent, make_trace([])) == (
        "nothing was checked: no backward and no optimizer step was recorded; name a script that trains"
    )
    elsewhere = make_trace([], unseen=("backward calls in other threads",))
    assert unchecked(silent, elsewhere) == (
        "nothing was checked: no backward and no optimizer step was recorded; "
        "not seen: backward calls in other threads"
    )


def test_failed_rule_is_graphlints_own_failure(make_trace):
    assert exit_code(report(outcome="failed"), make_trace(), "warning") == 2
    assert exit_code(report(finding(), outcome="failed"), make_trace(), "warning") == 1
