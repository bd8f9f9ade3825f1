"""Schedulers that step: once each, told from what their constructors do, with the rates before and after."""

import warnings

import pytest
import torch
from torch.optim import lr_scheduler

from graphlint.record.events import SchedulerStep

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.5**e),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 1, 0.5)], [1]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.5), lr_scheduler.StepLR(o, 1, 0.5)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=2),
}


def steps(trace) -> list[SchedulerStep]:
    return [event for event in trace.events if isinstance(event, SchedulerStep)]


@pytest.mark.parametrize("level", ["full", "watch"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_one_event_for_each_step(record, alone, level, name) -> None:
    rates = []

    def work() -> None:
        weight, optimizer = alone()
        scheduler = SCHEDULERS[name](optimizer)
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()
            rates.append((optimizer.param_groups[0]["lr"],))
            scheduler.step()
            rates.append((optimizer.param_groups[0]["lr"],))

    trace = record(work, level)
    first, second = [event for event in steps(trace) if not event.initial]
    assert {event.type for event in (first, second)} == {name}
    assert [first.before, first.after, second.before, second.after] == rates
    assert first.optimizer_stepped
    assert first.scheduler == second.scheduler
    assert first.position == (None if name == "ChainedScheduler" else 1.0)


def test_the_constructor_steps_by_itself(record, alone) -> None:
    _, optimizer = alone()
    (event,) = steps(record(lambda: lr_scheduler.StepLR(optimizer, 1)))
    assert (event.initial, event.position, event.optimizer_stepped) == (True, 0.0, False)


def test_one_that_was_made_before(record, alone) -> None:
    weight, optimizer = alone()
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    weight.sum().backward()
    optimizer.step()
    (event,) = steps(record(scheduler.step))
    assert (event.initial, event.position, event.optimizer_stepped) == (False, 1.0, True)
    assert (event.before, event.after) == ((0.1,), (0.05,))


def test_one_that_follows_a_metric(record, alone) -> None:
    _, optimizer = alone()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    (event,) = steps(record(lambda: scheduler.step(1.0)))
    assert event.by_metric


def test_a_users_own_with_another_inside(record, alone) -> None:
    class WarmUp(lr_scheduler.LRScheduler):
        def __init__(self, optimizer, after) -> None:
            self.then = after
            super().__init__(optimizer)

        def get_lr(self):
            return [rate / 10 for rate in self.base_lrs]

        def step(self, epoch=None) -> None:
            if self.last_epoch >= 1:
                self.then.step()
            else:
                super().step()

    def work() -> None:
        weight, optimizer = alone()
        scheduler = WarmUp(optimizer, lr_scheduler.StepLR(optimizer, 1))
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
            scheduler.step()

    told = [(event.type, event.initial) for event in steps(record(work))]
    assert told == [
        ("StepLR", True),
        ("WarmUp", True),
        ("WarmUp", False),
        ("StepLR", False),
        ("StepLR", False),
    ]


def test_torchs_warning_names_the_users_line(record, alone, line_of) -> None:
    _, optimizer = alone()
    scheduler = lr_scheduler.StepLR(optimizer, 1)

    def work() -> None:
        scheduler.step()  # here

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = record(work)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line_of("here"))]
    (event,) = steps(trace)
    assert trace.sites[event.site].frames[0].line == line_of("here")
    assert not event.optimizer_stepped


def test_its_name_is_the_users(record, alone, names) -> None:
    weight, optimizer = alone()

    def work() -> None:
        warm_up = lr_scheduler.StepLR(optimizer, 1)
        weight.sum().backward()
        optimizer.step()
        warm_up.step()

    assert names(record(work), "scheduler") == {"warm_up": {0}}


def test_steps_that_go_through_a_schedule_are_folded(record, alone) -> None:
    weight, optimizer = alone()
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.9)

    def work() -> None:
        for _ in range(8):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
            scheduler.step()

    assert len(steps(record(work, "watch"))) < 4


def test_state_that_is_loaded_is_no_step(record, alone) -> None:
    _, optimizer = alone()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    state = scheduler.state_dict()
    assert steps(record(lambda: scheduler.load_state_dict(state))) == []
