"""Hand-built traces and rules, for what a training snippet can't make."""

import pytest

from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward
from graphlint.record.header import CAPABILITIES, End, Header, TapReport
from graphlint.record.identity import Serial, SiteId
from graphlint.record.tables import Frame, Site
from graphlint.record.trace import Trace


def _trace(events=None, *, level="auto", directory="/home/me", sources=None, sites=(), **end):
    events = (backward(0),) if events is None else tuple(events)
    taps = tuple(TapReport(capability=name, armed=True) for name in CAPABILITIES)
    frames = {
        SiteId(number): Site(id=SiteId(number), frames=(Frame(path, line, function, 1),))
        for number, (path, line, function) in enumerate(sites)
    }
    return Trace(
        header=Header(graphlint="0.1.0", torch="2.13.0", python="3.11.0", directory=directory, level=level),
        sites=frames,
        sources=sources or {},
        tensors={},
        modules={},
        parameters=(),
        optimizers={},
        names=(),
        graphs={},
        events=events,
        end=End(**({"how": "finished", "steps": 1, "full_steps": 1, "taps": taps} | end)),
    )


def backward(serial):
    return Backward(serial=Serial(serial), end=Serial(serial), call="Tensor.backward", roots=())


def _silent(facts):
    yield from ()


def _rule(code="GL900", check=_silent, *, needs=(), severity="warning", name=None):
    example = Example(title="any", code="import torch\n")
    return Rule(
        code=code,
        name=name or f"fault-{code.lower()}",
        severity=severity,
        since="0.1",
        needs=needs,
        check=check,
        bad=(example,),
        good=(example,),
    )


@pytest.fixture
def make_trace():
    return _trace


@pytest.fixture
def make_rule():
    return _rule


@pytest.fixture
def make_backward():
    return backward
