"""What graphlint believes about Python's frames, where it reads the user's names and lines."""

import sys
import weakref

import pytest


class Thing:
    pass


def current_frame():
    return sys._getframe(1)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="f_locals is a live view since Python 3.13")
def test_f_locals_keeps_values_alive_until_it_is_cleared():
    thing = Thing()
    alive = weakref.ref(thing)
    snapshot = current_frame().f_locals
    del thing
    assert alive() is not None
    snapshot.clear()
    assert alive() is None


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="f_locals is a live view since Python 3.13")
def test_f_locals_is_one_dict_for_each_frame():
    frame = current_frame()
    assert frame.f_locals is frame.f_locals


@pytest.mark.skipif(sys.version_info < (3, 13), reason="f_locals is a snapshot before Python 3.13")
def test_f_locals_is_a_view_that_keeps_nothing_alive():
    thing = Thing()
    alive = weakref.ref(thing)
    view = current_frame().f_locals
    del thing
    assert alive() is None
    assert "thing" not in view


def test_clearing_the_snapshot_leaves_the_variables_alone():
    value = 3
    frame = current_frame()
    if sys.version_info < (3, 13):
        frame.f_locals.clear()
    assert value == 3
    assert frame.f_locals["value"] == 3


def test_a_chained_method_reports_the_line_of_its_own_name():
    class Chain:
        def first(self):
            return self

        def second(self):
            return sys._getframe(1).f_lineno

    start = current_frame().f_lineno + 1
    line = (
        Chain()
        .first(
            # a call over several lines
        )
        .second()
    )
    assert line == start + 5
