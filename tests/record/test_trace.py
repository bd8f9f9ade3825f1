"""A trace files each record under its kind and puts the events in order."""

from typing import get_args

import pytest

from graphlint.errors import TraceError
from graphlint.record.events import AnyEvent, Cleanup, Event
from graphlint.record.header import End, Header
from graphlint.record.identity import OptimizerId, Serial, TensorId
from graphlint.record.tables import Optimizer
from graphlint.record.trace import Record, Trace

HEADER = Header(graphlint="0.1.0", torch="2.13.0", python="3.11.0")


def cleanup(serial):
    return Cleanup(serial=Serial(serial), call="gc.collect", duration_ns=1)


def test_events_come_in_the_order_of_their_serials():
    trace = Trace.from_records([HEADER, cleanup(5), cleanup(2), cleanup(9)])
    assert [event.serial for event in trace.events] == [2, 5, 9]


def test_trace_without_end_is_incomplete():
    assert not Trace.from_records([HEADER]).complete
    assert Trace.from_records([HEADER, End(how="finished")]).complete


def test_optimizer_appears_in_its_last_state():
    first = Optimizer(id=OptimizerId(0), type="SGD", groups=((TensorId(1),),))
    second = Optimizer(id=OptimizerId(0), type="SGD", groups=((TensorId(1),), (TensorId(2),)))
    assert Trace.from_records([HEADER, first, second]).optimizers == {OptimizerId(0): second}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "empty"),
        ([cleanup(1)], "1: not a graphlint trace"),
        ([HEADER, HEADER], "2: a second header"),
        ([HEADER, End(how="finished"), cleanup(1)], "3: a record follows the end"),
    ],
)
def test_disorder_is_refused(records, reason):
    with pytest.raises(TraceError, match=reason):
        Trace.from_records(records, origin="t")


def test_union_of_events_is_closed():
    kinds = set(get_args(AnyEvent))
    assert kinds == set(Event.__subclasses__())
    tags = [kind.__struct_config__.tag for kind in get_args(Record)]
    assert len(tags) == len(set(tags))


def test_records_cannot_be_changed():
    for kind in get_args(Record):
        assert kind.__struct_config__.frozen, kind
