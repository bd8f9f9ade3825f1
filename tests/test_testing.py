"""The tester of examples distrusts the examples: each way to be wrong is found."""

import pytest

from graphlint.errors import RuleLoadError
from graphlint.lint.discovery import all_rules
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward
from graphlint.testing import ExampleError, cases, check_example

LOOP = """import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(1, 2)).sum()
    loss.backward(){marker}
    optimizer.step()
    optimizer.zero_grad()
"""
MARKED = Example(title="Marked", code=LOOP.format(marker="  # <- GL900"))
UNMARKED = Example(title="Not marked", code=LOOP.format(marker=""))


def backwards(facts):
    """Yields a sighting for each backward."""
    for event in facts.trace.events:
        if isinstance(event, Backward):
            frame = facts.trace.sites[event.site].frames[0]
            label = Label(path=frame.path, line=frame.line, text="here")
            yield Occurrence(message="m.", labels=(label,), fix="f.")


def nothing(facts):
    yield from ()


def crash(facts):
    yield from ()
    raise KeyError("crash")


def make_rule(*, bad=(MARKED,), good=(), check=backwards, code="GL900", needs=()):
    return Rule(
        code=code, name="any", severity="info", since="0.1", needs=needs, check=check, bad=bad, good=good
    )


def failure(rule, *others):
    (case,) = cases(rule)
    with pytest.raises(ExampleError) as caught:
        case.check([rule, *others])
    return str(caught.value)


def test_right_example_passes():
    (case,) = cases(make_rule())
    assert str(case) == "GL900-bad-marked"
    assert case.expected == (("GL900", 7),)
    case.check([make_rule()])


def test_marked_line_that_is_not_flagged_fails():
    assert "flagged nothing; the markers say GL900 in line 7" in failure(make_rule(check=nothing))


def test_flagged_line_that_is_not_marked_fails():
    rule = make_rule(bad=(), good=(UNMARKED,))
    text = failure(rule)
    assert "flagged GL900 in line 7; the markers say nothing" in text
    assert "   7     loss.backward()" in text


def test_any_other_rule_that_flags_fails():
    text = failure(make_rule(), make_rule(code="GL901", bad=()))
    assert "flagged GL900 in line 7, GL901 in line 7; the markers say GL900 in line 7" in text


def test_any_other_rule_that_crashes_fails():
    assert "GL901 failed: KeyError: 'crash'" in failure(make_rule(), make_rule(code="GL901", check=crash))


def test_rule_that_never_trains_proves_nothing():
    quiet = Example(title="No training", code="import torch\ntorch.ones(2).sum()\n")
    assert "could not judge its own example" in failure(make_rule(bad=(), good=(quiet,)))


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (Example(title="t", code=MARKED.code + "raise ValueError('no')\n"), "it ended in ValueError: no"),
        (
            Example(title="t", code=MARKED.code, raises="second time"),
            "it was to end in an error that says 'second time', and ended well",
        ),
        (
            Example(title="t", code=MARKED.code + "raise ValueError('no')\n", raises="second time"),
            "it was to end in an error that says 'second time', and ended in: no",
        ),
    ],
)
def test_wrong_ending_fails(example, reason):
    assert reason in failure(make_rule(bad=(example,)))


def test_expected_ending_passes():
    example = Example(title="t", code=MARKED.code + "raise ValueError('it ends here')\n", raises="ends here")
    (case,) = cases(make_rule(bad=(example,)))
    case.check([make_rule()])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bad": (UNMARKED,)}, "no line is marked with # <- GL900"),
        ({"bad": (Example(title="t", code="x  # <- GL901"),)}, "no line is marked with # <- GL900"),
        ({"bad": (Example(title="t", code="x  # <- GL900, GL901"),)}, "a marker looks like"),
        ({"bad": (Example(title="t", code="x  # <- here"),)}, "a marker looks like"),
        ({"bad": (Example(title="t", code="x\ny  # <-"),)}, "line 2: a marker looks like"),
        ({"good": (Example(title="t", code="x  # <- GL900"),)}, "a good example can't have a marker"),
        ({"bad": (MARKED, Example(title="other", code=MARKED.code))}, "there twice"),
        ({"bad": (MARKED, Example(title="marked!", code=MARKED.code + "\n"))}, "there twice"),
    ],
)
def test_markers_that_do_not_fit_are_refused(fields, reason):
    with pytest.raises(RuleLoadError, match=reason):
        cases(make_rule(**fields))


def test_several_codes_on_a_line_and_twice_the_same():
    example = Example(title="t", code="x  # <- GL900 GL901\ny  # <- GL900 GL900\n")
    (case,) = cases(make_rule(bad=(example,)))
    assert case.expected == (("GL900", 1), ("GL900", 2), ("GL900", 2), ("GL901", 1))


def test_every_shipped_rule_has_its_cases():
    found = cases()
    for rule in all_rules():
        mine = [case for case in found if case.rule.code == rule.code]
        assert len(mine) == len(rule.bad) + len(rule.good)
        assert {case.kind for case in mine} == {"bad", "good"}


def test_unknown_example_is_refused():
    with pytest.raises(RuleLoadError, match="GL101 has no example 'Marked'"):
        check_example("GL101", MARKED)
