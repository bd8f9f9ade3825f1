"""Each rule ends in exactly one of four ways, and none hides another."""

import pytest

from graphlint.errors import UsageError
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.needs import CUT_SHORT, NO_STEP
from graphlint.lint.runner import NOT_SELECTED, judge
from graphlint.lint.selection import Selection
from graphlint.record.events import CaptureFault, ScriptError
from graphlint.record.header import TapReport
from graphlint.record.identity import Serial
from graphlint.record.trace import Trace

ALL = Selection()


def sighting(line=3, **fields):
    return Occurrence(
        message="m.", labels=(Label(path="/home/me/a.py", line=line, text="here"),), fix="f.", **fields
    )


def flags(facts):
    yield sighting()


def crashes_late(facts):
    yield sighting()
    raise KeyError("late")


def outcomes(report):
    return {outcome.code: (outcome.outcome, outcome.reason) for outcome in report.outcomes}


def without_end(trace):
    fields = {name: getattr(trace, name) for name in trace.__struct_fields__}
    return Trace(**(fields | {"end": None}))


def test_findings_and_clean(make_trace, make_rule):
    report = judge(make_trace(), ALL, [make_rule("GL901", flags), make_rule("GL902")])
    assert outcomes(report) == {"GL901": ("findings", None), "GL902": ("clean", None)}
    assert [(found.code, found.line, found.count) for found in report.findings] == [("GL901", 3, 1)]
    assert report.tracebacks == {}


def test_rule_reads_the_facts_of_the_trace(make_trace, make_rule):
    trace = make_trace()

    def same_trace(facts):
        assert facts.trace is trace
        yield sighting()

    assert outcomes(judge(trace, ALL, [make_rule("GL901", same_trace)]))["GL901"] == ("findings", None)


def test_crash_is_shown_and_hides_nothing(make_trace, make_rule):
    rules = [make_rule("GL901", crashes_late), make_rule("GL902", flags)]
    report = judge(make_trace(), ALL, rules)
    assert outcomes(report)["GL901"] == ("failed", "KeyError: 'late'")
    assert outcomes(report)["GL902"] == ("findings", None)
    assert "crashes_late" in report.tracebacks["GL901"]
    assert {found.code for found in report.findings} == {"GL902"}


def test_sighting_without_a_line_is_the_rules_fault(make_trace, make_rule):
    def nowhere(facts):
        yield Occurrence(message="m.", labels=(), fix="")

    assert outcomes(judge(make_trace(), ALL, [make_rule("GL901", nowhere)]))["GL901"][0] == "failed"


def test_interrupt_is_not_a_failure(make_trace, make_rule):
    def interrupted(facts):
        yield sighting()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(make_trace(), ALL, [make_rule("GL901", interrupted)])


def test_unselected_rule_does_not_run_and_is_not_clean(make_trace, make_rule):
    rules = [make_rule("GL901", crashes_late), make_rule("GL902")]
    report = judge(make_trace(), Selection(select=("GL902",)), rules)
    assert outcomes(report) == {"GL901": ("not-checked", NOT_SELECTED), "GL902": ("clean", None)}


def test_unknown_selection_is_refused(make_trace, make_rule):
    with pytest.raises(UsageError):
        judge(make_trace(), Selection(select=("GL1",)), [make_rule("GL901")])


def test_faulty_tap_means_not_checked(make_trace, make_rule):
    taps = (TapReport(capability="zero-grad", armed=True, fault="TypeError: no"),)
    rules = [make_rule("GL901", flags, needs=("zero-grad",)), make_rule("GL902", flags)]
    report = judge(make_trace(taps=taps), ALL, rules)
    outcome, reason = outcomes(report)["GL901"]
    assert outcome == "not-checked"
    assert "zero_grad" in reason
    assert "TypeError: no" in reason
    assert [found.code for found in report.findings] == ["GL902"]


@pytest.mark.parametrize("taps", [(), (TapReport(capability="cleanup", armed=False),)])
def test_tap_that_was_not_armed_means_not_checked(make_trace, make_rule, taps):
    report = judge(make_trace(taps=taps), ALL, [make_rule("GL901", flags, needs=("cleanup",))])
    assert outcomes(report)["GL901"] == (
        "not-checked",
        "calls of gc.collect and empty_cache were not recorded",
    )


@pytest.mark.parametrize("need", ["operations", "modules"])
def test_watch_level_lacks_what_only_full_records(make_trace, make_rule, need):
    rules = [make_rule("GL901", flags, needs=(need,)), make_rule("GL902", needs=("backward",))]
    seen = outcomes(judge(make_trace(level="watch"), ALL, rules))
    assert seen["GL901"][0] == "not-checked"
    assert "full level" in seen["GL901"][1]
    assert seen["GL902"] == ("clean", None)


def test_run_that_never_trains_is_not_clean(make_trace, make_rule):
    error = ScriptError(serial=Serial(0), type="RuntimeError", message="devices")
    rules = [make_rule("GL404", flags), make_rule("GL902")]
    seen = outcomes(judge(make_trace([error]), ALL, rules))
    assert seen == {"GL404": ("findings", None), "GL902": ("not-checked", NO_STEP)}


def test_broken_off_trace_proves_faults_but_no_absence(make_trace, make_rule):
    rules = [make_rule("GL901", flags, needs=("backward",)), make_rule("GL902")]
    seen = outcomes(judge(without_end(make_trace()), ALL, rules))
    assert seen == {
        "GL901": ("findings", None),
        "GL902": ("not-checked", f"found nothing in 1 step, but {CUT_SHORT}"),
    }


def test_broken_off_trace_with_a_fault_proves_nothing(make_trace, make_rule, make_backward):
    fault = CaptureFault(serial=Serial(1), tap="backward", message="ValueError: x", traceback="")
    trace = without_end(make_trace([make_backward(0), fault]))
    outcome, reason = outcomes(judge(trace, ALL, [make_rule("GL901", flags, needs=("optimizer",))]))["GL901"]
    assert outcome == "not-checked"
    assert "ValueError: x" in reason


def test_findings_come_errors_first_then_by_place(make_trace, make_rule):
    def at(*lines):
        def check(facts):
            yield from (sighting(line) for line in lines)

        return check

    rules = [
        make_rule("GL901", at(9, 2), severity="info"),
        make_rule("GL902", at(7), severity="error"),
        make_rule("GL903", at(2)),
    ]
    report = judge(make_trace(), ALL, rules)
    assert [(found.code, found.line) for found in report.findings] == [
        ("GL902", 7),
        ("GL903", 2),
        ("GL901", 2),
        ("GL901", 9),
    ]
