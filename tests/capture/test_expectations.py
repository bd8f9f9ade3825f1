"""Blocks are noted where the user wrote them, at both levels, by the capture of their thread only."""

import os

import pytest
import torch

from graphlint.capture import open_blocks
from graphlint.capture.open_blocks import OpenBlock
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.expectations import ExpectBegin, ExpectEnd


def declared():
    """Returns a block that this line declares."""
    code = declared.__code__
    return OpenBlock(("GL301",), "meant", code, code.co_firstlineno)


@pytest.mark.parametrize("level", ["full", "watch"])
def test_a_block_is_an_event_at_its_beginning_and_one_at_its_end(level):
    block = declared()
    with Session(CaptureOptions(level=level)) as session:
        session.expectations.begin(block)
        torch.ones(1)
        session.expectations.end(block)
    trace = session.trace()
    begin, end = [one for one in trace.events if isinstance(one, ExpectBegin | ExpectEnd)]
    assert isinstance(begin, ExpectBegin)
    assert isinstance(end, ExpectEnd)
    assert (begin.rules, begin.reason, end.begin) == (("GL301",), "meant", begin.serial)
    assert begin.site is not None
    (frame,) = trace.sites[begin.site].frames
    assert (frame.path, frame.line) == (__file__, declared.__code__.co_firstlineno)
    assert "def declared" in trace.sources[__file__]


def test_the_tap_is_reported():
    with Session(CaptureOptions()) as session:
        pass
    end = session.trace().end
    assert end is not None
    assert [(tap.armed, tap.fault) for tap in end.taps if tap.capability == "expectations"] == [(True, None)]


def test_a_fault_of_its_own_goes_no_further(monkeypatch):
    block = declared()
    with Session(CaptureOptions()) as session:
        monkeypatch.setattr(session.expectations, "_begin", lambda block: 1 / 0)
        session.expectations.begin(block)
    end = session.trace().end
    assert end is not None
    assert block.noted is None
    assert [tap.fault for tap in end.taps if tap.fault] == ["ZeroDivisionError: division by zero"]


def test_the_end_of_another_captures_block_is_not_noted():
    block = declared()
    with Session(CaptureOptions()) as first:
        first.expectations.begin(block)
    with Session(CaptureOptions()) as second:
        second.expectations.end(block)
    assert not [one for one in second.trace().events if isinstance(one, ExpectEnd)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_notes_nothing(monkeypatch):
    block = declared()
    with Session(CaptureOptions()) as session, monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        session.expectations.begin(block)
    assert block.noted is None


def test_open_blocks_are_those_that_were_entered_and_not_left():
    before = open_blocks.opened_here()
    outer, inner = declared(), declared()
    open_blocks.enter(outer)
    open_blocks.enter(inner)
    assert open_blocks.opened_here() == (*before, outer, inner)
    open_blocks.leave(outer)
    assert open_blocks.opened_here() == (*before, inner)
    open_blocks.leave(inner)
    assert open_blocks.opened_here() == before
