"""No rule crashes on a record with holes in it: a killed run, a watched step, a name that was never met."""

import warnings

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.events import Backward, Event
from graphlint.report.json import to_json
from graphlint.report.text import layout
from graphlint.testing import cases, run_example


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The records of each rule's first bad example, made once."""
    path = tmp_path_factory.mktemp("examples") / "example.py"
    first = {case.rule.code: case.example for case in reversed(cases()) if case.kind == "bad"}
    traces = []
    for example in first.values():
        path.write_text(example.code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some faults make torch warn
            traces.append(run_example(example, path)[0])
    return traces


def drop_some(draw, items):
    """Returns the items without a few that are drawn, or without everything after one."""
    if not items:
        return items
    gone = draw(st.sets(st.integers(0, len(items) - 1), max_size=6))
    cut = draw(st.one_of(st.just(len(items)), st.integers(0, len(items))))
    return tuple(item for index, item in enumerate(items[:cut]) if index not in gone)


def without_sites(draw, events):
    """Returns the events, some of which happened where no line of the user's was on the stack."""
    blind = draw(st.sets(st.sampled_from([event.serial for event in events] or [0]), max_size=4))
    return tuple(
        msgspec.structs.replace(event, site=None) if event.serial in blind else event for event in events
    )


@st.composite
def holes(draw, trace):
    events: tuple[Event, ...] = without_sites(draw, drop_some(draw, trace.events))
    if draw(st.booleans()):
        events = tuple(
            msgspec.structs.replace(event, graph=None) if isinstance(event, Backward) else event
            for event in events
        )
    keep = draw(st.fixed_dictionaries(dict.fromkeys(("sources", "end", "parameters"), st.booleans())))
    return msgspec.structs.replace(
        trace,
        events=events,
        names=drop_some(draw, trace.names),
        sources=trace.sources if keep["sources"] else {},
        parameters=trace.parameters if keep["parameters"] else (),
        end=trace.end if keep["end"] else None,
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_rule_crashes_and_every_report_renders(recorded, data):
    trace = data.draw(st.sampled_from(recorded).flatmap(holes))
    report = judge(trace, Selection())
    assert report.tracebacks == {}
    assert "failed" not in {outcome.outcome for outcome in report.outcomes}
    assert list(layout(report, trace, width=80))
    assert to_json(report, trace)


def test_examples_are_whole_before_holes_are_made(recorded):
    assert len(recorded) > 5
    for trace in recorded:
        assert trace.complete
        assert judge(trace, Selection()).findings
