"""What is declared as meant is put aside and listed; what is declared in vain is reported, where proved."""

import msgspec
import pytest

from graphlint.lint.discovery import all_rules
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.runner import NONE_OTHER, NOT_SELECTED, judge
from graphlint.lint.selection import Selection
from graphlint.record.events import Backward, StepBoundary
from graphlint.record.expectations import ExpectBegin, ExpectEnd
from graphlint.record.identity import Serial, SiteId

PATH = "/home/me/train.py"
OTHER = "/home/me/model.py"
UNUSED = next(rule for rule in all_rules() if rule.code == "GL901")


def flags(*lines, path=PATH, step=None):
    def check(facts):
        for line in lines:
            yield Occurrence(
                message="m.", labels=(Label(path=path, line=line, text="l"),), fix="f.", step=step
            )

    return check


def silent(facts):
    yield from ()


@pytest.fixture
def judged(make_trace, make_rule):
    """Judges a source whose rules flag given lines; every line that is listed in `ran` was run."""

    def run(source, *lines, ran=(1, 2, 3, 4), rules=(), select=(), path=PATH, **end):
        sites = [(PATH, line, "<module>") for line in ran] + [(OTHER, 1, "forward")]
        events = [backward(number, site=number) for number in range(len(sites))]
        trace = make_trace(events, sources={PATH: source, OTHER: "y = 2\n"}, sites=sites, **end)
        known = [make_rule("GL301", flags(*lines, path=path)), make_rule("GL302"), *rules, UNUSED]
        return judge(trace, Selection(select=select), known)

    return run


def backward(serial, site=None):
    return Backward(
        serial=Serial(serial),
        end=Serial(serial),
        call="Tensor.backward",
        roots=(),
        site=None if site is None else SiteId(site),
    )


def found(report):
    return [(one.code, one.line) for one in report.findings]


def aside(report):
    return [(one.finding.code, one.finding.line, one.by, one.reason, one.line) for one in report.suppressed]


def words(report):
    return [one.message for one in report.findings if one.code == "GL901"]


SOURCE = """\
a = 1
b = f(  # graphlint: ignore[GL301] by hand
    2)
c = 3
"""


def test_a_comment_puts_the_finding_aside_and_says_why(judged):
    report = judged(SOURCE, 3, 4)
    assert found(report) == [("GL301", 4)]
    assert aside(report) == [("GL301", 3, "comment", "by hand", 2)]


def test_a_rule_whose_findings_are_all_put_aside_is_not_clean(judged):
    report = judged(SOURCE, 3)
    outcomes = {one.code: one.outcome for one in report.outcomes}
    assert outcomes == {"GL301": "findings", "GL302": "clean", "GL901": "clean"}


def test_a_comment_in_another_file_is_not_meant(judged):
    report = judged(SOURCE, 3, path=OTHER)
    assert set(found(report)) == {("GL301", 3), ("GL901", 2)}


def test_two_findings_on_one_line_need_both_codes(judged, make_rule):
    rules = [make_rule("GL303", flags(2))]
    assert found(judged(SOURCE, 2, rules=rules)) == [("GL303", 2)]
    assert found(judged(SOURCE.replace("GL301", "GL301,GL303"), 2, rules=rules)) == []


def test_two_findings_of_one_rule_on_one_statement_are_both_meant(judged):
    report = judged(SOURCE, 2, 3)
    assert found(report) == []
    assert len(report.suppressed) == 2


@pytest.mark.parametrize("entry", ["gl301", "GL3", "fault-gl301", "FAULT-GL301", "GL301 "])
def test_rules_are_named_as_on_the_command_line(judged, entry):
    assert found(judged(SOURCE.replace("GL301", entry), 2)) == []


def test_an_unused_comment_is_reported_at_its_line(judged):
    report = judged(SOURCE)
    assert [(one.code, one.line, one.severity) for one in report.findings] == [("GL901", 2, "warning")]
    assert "`GL301` was checked in this run of 1 step, and found nothing" in words(report)[0]


def test_the_unused_part_of_a_comment_is_reported(judged):
    report = judged(SOURCE.replace("GL301", "GL301, GL302"), 2)
    assert found(report) == [("GL901", 2)]
    assert "`GL302` was checked" in words(report)[0]
    assert report.findings[0].fix.startswith("take `GL302` out of it")


def test_duplicates_are_reported(judged):
    twice = SOURCE.replace("2)", "2)  # graphlint: ignore[GL301]")
    report = judged(twice, 2)
    assert found(report) == [("GL901", 3)]
    assert words(report) == ["The comment in line 2 suppresses `GL301` at this statement already."]
    assert found(judged(SOURCE.replace("GL301", "GL301,GL301"), 2)) == [("GL901", 2)]


def test_a_comment_at_a_line_that_is_only_labelled_is_told_where_to_go(judged, make_rule):
    def check(facts):
        for path in (PATH, OTHER):
            labels = (Label(path=path, line=1, text="l"), Label(path=PATH, line=3, text="m"))
            yield Occurrence(message="m.", labels=labels, fix="f.")

    source = SOURCE.replace("GL301", "GL303")
    report = judged(source, rules=[make_rule("GL303", check)], how="error", exit_code=1)
    assert sorted(found(report)) == [("GL303", 1), ("GL303", 1), ("GL901", 2)]
    (said,) = words(report)
    assert said in {
        "`GL303` is reported at line 1, not here: this comment suppresses nothing.",
        "`GL303` is reported at model.py:1, not here: this comment suppresses nothing.",
    }


def test_unknown_rules_and_slips_are_reported_whatever_was_checked(judged):
    report = judged(SOURCE.replace("GL301", "GL999"), 2, how="error", exit_code=1)
    assert found(report) == [("GL301", 2), ("GL901", 2)]
    assert words(report) == ["`GL999` names no rule: nothing is suppressed by it."]
    assert "GL301, GL302, GL901" in report.findings[1].fix
    report = judged(SOURCE.replace("[GL301]", " GL301"), how="error", exit_code=1)
    assert found(report) == [("GL901", 2)]


def test_what_was_not_selected_is_not_called_unused(judged):
    report = judged(SOURCE, select=("GL302", "GL901"))
    assert found(report) == []
    assert judged(SOURCE, select=("GL302",)).findings == ()


def test_what_was_not_checked_is_not_called_unused(judged, make_rule):
    rules = [make_rule("GL303", flags(2), needs=("operations",))]
    source = SOURCE.replace("GL301", "GL303")
    assert found(judged(source, rules=rules)) == []
    assert found(judged(source, rules=rules, level="watch")) == []
    assert found(judged(source.replace("GL303", "GL3"), rules=rules, level="watch")) == []


def test_alone_it_could_not_judge(judged):
    report = judged(SOURCE, select=("GL901",))
    assert {one.code: (one.outcome, one.reason) for one in report.outcomes} == {
        "GL301": ("not-checked", NOT_SELECTED),
        "GL302": ("not-checked", NOT_SELECTED),
        "GL901": ("not-checked", NONE_OTHER),
    }


@pytest.mark.parametrize(
    ("end", "severities"),
    [
        ({"how": "finished"}, ["warning"]),
        ({"how": "exit", "exit_code": 0}, ["warning"]),
        ({"how": "exit", "exit_code": None}, ["warning"]),
        ({"how": "steps"}, ["info"]),
        ({"how": "exit", "exit_code": 2}, []),
        ({"how": "error", "exit_code": 1}, []),
        ({"how": "interrupt"}, []),
        ({"how": "terminated"}, []),
    ],
)
def test_a_run_that_was_cut_short_proves_less(judged, end, severities):
    assert [one.severity for one in judged(SOURCE, **end).findings] == severities


BRANCH = """\
def train():
    a = 1
    if late:
        b = 2  # graphlint: ignore[GL301]
    c = 3
"""


@pytest.mark.parametrize(("ran", "reported"), [((2, 5), False), ((2, 4), True), ((), False), ((4,), True)])
def test_a_line_that_did_not_run_is_not_called_unused(judged, ran, reported):
    assert found(judged(BRANCH, ran=ran)) == ([("GL901", 4)] if reported else [])


def test_a_comment_may_name_the_report_of_itself(judged):
    assert found(judged(SOURCE.replace("GL301", "GL301, GL901"))) == []
    assert found(judged(SOURCE.replace("GL301", "GL301, GL901, GL999"))) == []
    report = judged(SOURCE.replace("GL301", "GL302, unused-suppression"))
    assert [(one.finding.code, one.by) for one in report.suppressed] == [("GL901", "comment")]


def test_a_comment_above_speaks_for_the_next_statement(judged):
    source = "# graphlint: ignore[GL301] above\n\na = f(\n  1)\n"
    assert found(judged(source, 4)) == []
    assert found(judged(source)) == [("GL901", 1)]


# --- blocks ----------------------------------------------------------------------------------------------


@pytest.fixture
def with_blocks(make_trace, make_rule):
    """Two steps, each with a backward at line 3 in a block at line 2, and one at line 4 behind it."""

    def run(check, *, entries=("GL301",), closed=True, select=(), **end):
        sites = [(PATH, line, "train") for line in (2, 3, 4)]
        events = []
        for at in (0, 10):
            events.append(StepBoundary(serial=Serial(at), after=Serial(at), reason="batch", level="full"))
            events.append(ExpectBegin(serial=Serial(at + 1), site=SiteId(0), rules=entries, reason="meant"))
            events.append(backward(at + 2, site=1))
            if closed or at == 0:
                events.append(ExpectEnd(serial=Serial(at + 3), begin=Serial(at + 1)))
            events.append(backward(at + 4, site=2))
        source = "def train():\n  with expect():\n    a()\n  b()\n"
        trace = make_trace(events, sources={PATH: source}, sites=sites, **end)
        known = [make_rule("GL301", check), make_rule("GL302"), UNUSED]
        return judge(trace, Selection(select=select), known)

    return run


def test_what_happens_in_a_block_is_meant(with_blocks):
    report = with_blocks(flags(3))
    assert found(report) == []
    assert aside(report) == [("GL301", 3, "expect", "meant", 2)]


def test_what_happens_behind_a_block_is_not(with_blocks):
    report = with_blocks(flags(4))
    assert set(found(report)) == {("GL301", 4), ("GL901", 2)}


def test_a_sighting_is_meant_by_any_line_of_it(with_blocks):
    def check(facts):
        labels = tuple(Label(path=PATH, line=line, text="l") for line in (1, 4, 3))
        yield Occurrence(message="m.", labels=labels, fix="f.", step=1)

    report = with_blocks(check)
    assert [one.finding.line for one in report.suppressed] == [1]


def test_a_block_without_an_end_lasts(with_blocks):
    assert found(with_blocks(flags(4, step=1), closed=False)) == []
    assert ("GL301", 4) in found(with_blocks(flags(4, step=0), closed=False))
    assert ("GL301", 4) in found(with_blocks(flags(4), closed=False))


def test_idle_blocks_are_reported_once(with_blocks):
    report = with_blocks(silent)
    assert found(report) == [("GL901", 2)]
    assert "found nothing in its block" in words(report)[0]
    assert found(with_blocks(silent, how="error", exit_code=1)) == []
    assert found(with_blocks(silent, select=("GL302", "GL901"))) == []


def test_unknown_rules_of_a_block_are_reported(with_blocks):
    report = with_blocks(flags(3), entries=("GL301", "GL999"))
    assert words(report) == ["`GL999` names no rule: nothing is suppressed by it."]
    assert "GL301, GL302, GL901" in report.findings[0].fix


def test_other_rules_are_not_meant(with_blocks):
    assert ("GL301", 3) in found(with_blocks(flags(3), entries=("GL302",)))


def test_the_report_lists_what_was_put_aside_in_order(with_blocks):
    report = with_blocks(flags(3))
    assert msgspec.json.encode(report.suppressed)
    assert report.suppressed[0].path == PATH
