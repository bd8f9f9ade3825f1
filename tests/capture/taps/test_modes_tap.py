"""Which modules a call of `train` or `eval` turned."""

import pytest
import torch
from torch import nn

from graphlint.record.modes import ModeChange
from graphlint.record.trace import Trace


class Frozen(nn.Module):
    """Keeps its normalisation in eval mode, whatever it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

    def train(self, mode=True):  # noqa: FBT002 - as torch declares it
        super().train(mode)
        self.norm.eval()
        return self


def turns(trace: Trace) -> list[tuple[str, bool, list[str], list[str]]]:
    """Returns each call: whose, to which mode, what it turned, what it turned the other way."""
    paths = {row.id: row.path or row.type for row in trace.modules.values()}
    return [
        (
            paths[event.module],
            event.training,
            [paths[part] for part in event.changed],
            [paths[part] for part in event.opposed],
        )
        for event in trace.events
        if isinstance(event, ModeChange)
    ]


@pytest.mark.parametrize("level", ["full", "watch"])
def test_the_outermost_call_with_all_that_it_turned(record, events, line_of, level) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))

    def work() -> None:
        net.eval()  # here
        net[1].train()
        net.train()

    trace = record(work, level)
    assert turns(trace) == [
        ("Sequential", False, ["Sequential", "0", "1"], []),
        ("1", True, ["1"], []),
        ("Sequential", True, ["Sequential", "0"], []),
    ]
    first = events(trace, ModeChange)[0]
    site = trace.sites[first.site]
    assert site.frames[0].line == line_of("here")
    assert site.direct


def test_a_call_that_turns_nothing_is_told_at_the_full_level_only(record) -> None:
    net = nn.Linear(2, 2)
    assert turns(record(lambda: net.train(mode=True), "full")) == [("Linear", True, [], [])]
    assert turns(record(lambda: net.train(mode=True), "watch")) == []


def test_a_train_of_the_users_own(record) -> None:
    net = Frozen()
    trace = record(lambda: net.train(mode=True), "watch")
    assert turns(trace) == [("BatchNorm1d", False, ["BatchNorm1d"], [])]
    whole = nn.Sequential(Frozen(), nn.Linear(2, 2))
    whole.eval()
    trace = record(lambda: whole.train(mode=True), "watch")
    assert turns(trace) == [("Sequential", True, ["Sequential", "0", "0.body", "1"], [])]
    whole[0].norm.train()
    trace = record(lambda: whole.train(mode=True), "full")
    assert turns(trace) == [("Sequential", True, [], ["0.norm"])]


def test_a_part_that_is_used_twice_is_told_once(record) -> None:
    shared = nn.Dropout(0.1)
    net = nn.Sequential(shared, shared)
    assert turns(record(net.eval, "watch")) == [("Sequential", False, ["Sequential", "0"], [])]


def test_a_mode_set_by_assignment_is_found_at_the_next_call(record) -> None:
    net = nn.Sequential(nn.Dropout(0.1))
    net[0].training = False
    assert turns(record(net.eval, "watch")) == [("Sequential", False, ["Sequential"], [])]


def test_what_it_raises_and_returns_is_as_ever(record) -> None:
    class Broken(nn.Module):
        def train(self, mode=True):  # noqa: FBT002 - as torch declares it
            raise ValueError("no")

    net = nn.Sequential(nn.Linear(2, 2), Broken())

    def work() -> None:
        assert net[0].eval() is net[0]
        with pytest.raises(ValueError, match=r"^no$"):
            net.eval()
        with pytest.raises(ValueError, match="mode is expected to be boolean"):
            net[0].train(3)
        net[0].train()

    trace = record(work, "watch")
    assert turns(trace) == [
        ("0", False, ["0"], []),
        ("Sequential", False, ["Sequential"], []),
        ("0", True, ["0"], []),
    ]


def test_a_module_whose_constructor_has_not_run(record) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            self.eval()

    def work() -> None:
        with pytest.raises(AttributeError) as captured:
            Bare()
        told.append(str(captured.value))

    told: list[str] = []
    work()
    record(work, "watch")
    assert told[0] == told[1]


def test_a_mode_that_the_module_computes_is_left_alone(record) -> None:
    class Mirror(nn.Module):
        @property
        def training(self):
            return self.inner.training

        @training.setter
        def training(self, mode):
            pass

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Dropout(0.1)

    net = Mirror()
    trace = record(net.eval, "watch")
    assert turns(trace) == [("Mirror", False, ["inner"], [])]


def test_no_module_is_held(record) -> None:
    import gc
    import weakref

    seen = []

    def work() -> None:
        net = nn.Sequential(nn.Linear(2, 2))
        net.eval()
        seen.append(weakref.ref(net[0]))
        del net
        gc.collect()
        assert seen[0]() is None

    record(work, "watch")
    assert torch.is_grad_enabled()
