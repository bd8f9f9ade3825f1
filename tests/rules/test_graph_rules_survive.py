"""The graph rules never fail, whatever a record lacks: a killed run, a lost tap, missing tables."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlint.analysis.facts import Facts
from graphlint.lint.discovery import all_rules
from graphlint.lint.rule import Example, Rule
from graphlint.record.trace import Trace
from graphlint.testing import run_example

RULES = [rule for rule in all_rules() if rule.code.startswith(("GL1", "GL2", "GL3"))]
TABLES = ("sites", "sources", "tensors", "modules", "optimizers", "graphs")
LISTS = ("parameters", "names", "events")


# What torch warns of in the examples is not the subject; as an error it would end them early.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> list[Trace]:
    """The records of every bad example, each of which has a story to tell."""
    found = []
    for rule in RULES:
        for example in rule.bad:
            path = tmp_path_factory.mktemp("survive") / "train.py"
            path.write_text(example.code, encoding="utf-8")
            found.append(run_example(Example(title=example.title, code=example.code), path)[0])
    return found


def judge(rules: list[Rule], trace: Trace) -> int:
    facts = Facts(trace)
    return sum(len(list(rule.check(facts))) for rule in rules)


def test_every_trace_has_a_story(traces):
    assert all(judge(RULES, trace) for trace in traces)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_may_be_missing(traces, data):
    trace = data.draw(st.sampled_from(traces))
    keep = data.draw(st.randoms(use_true_random=False))
    share = data.draw(st.sampled_from([0.2, 0.7, 0.95]))
    hit = data.draw(st.sets(st.sampled_from([*TABLES, *LISTS]), min_size=1))
    lacking = {
        name: {key: row for key, row in getattr(trace, name).items() if keep.random() < share}
        for name in TABLES
        if name in hit
    }
    shorter = {
        name: tuple(row for row in getattr(trace, name) if keep.random() < share)
        for name in LISTS
        if name in hit
    }
    judge(RULES, msgspec.structs.replace(trace, **lacking, **shorter))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_run_may_be_killed_anywhere(traces, data):
    trace = data.draw(st.sampled_from(traces))
    length = data.draw(st.integers(min_value=0, max_value=len(trace.events)))
    judge(RULES, msgspec.structs.replace(trace, events=trace.events[:length], end=None))
