"""What is asked of gradient scalers, in the order of the calls, without what they do by themselves."""

import pytest
import torch

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import OptimizerStep, ScalerCall


def calls(trace) -> list[ScalerCall]:
    return [event for event in trace.events if isinstance(event, ScalerCall)]


def trained(weight, optimizer, scaler, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale((weight * 2).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("level", ["full", "watch"])
def test_a_step_with_a_scaler(record, events, alone, level) -> None:
    weight, optimizer = alone()
    trace = record(lambda: trained(weight, optimizer, torch.amp.GradScaler("cpu")), level)
    found = calls(trace)
    assert [event.method for event in found] == ["scale", "unscale_", "step", "update"]
    assert [event.optimizer for event in found] == [None, 0, 0, None]
    assert {(event.scaler, event.enabled, event.error) for event in found} == {(0, True, None)}
    assert (len(found[0].tensors), len(found[0].scaled)) == ((1, 1) if level == "full" else (0, 0))
    (stepped,) = events(trace, OptimizerStep)
    assert found[2].serial < stepped.serial < found[3].serial
    assert stepped.site == found[2].site


def test_the_loss_and_what_became_of_it(record, events, alone) -> None:
    weight, _ = alone()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def work() -> None:
        scaled = scaler.scale([weight.sum(), weight.max()])
        assert [value.item() for value in scaled] == [24.0, 12.0]

    (event,) = calls(record(work))
    assert (len(event.tensors), len(event.scaled)) == (2, 2)
    assert set(event.tensors).isdisjoint(event.scaled)


def test_a_step_that_is_left_out(record, events, alone) -> None:
    weight, optimizer = alone()
    scaler = torch.amp.GradScaler("cpu")

    def work() -> None:
        scaler.scale((weight * float("inf")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    trace = record(work)
    assert [event.method for event in calls(trace)] == ["scale", "step", "skipped", "update"]
    assert events(trace, OptimizerStep) == []


def test_one_that_is_disabled(record, alone) -> None:
    weight, optimizer = alone()
    trace = record(lambda: trained(weight, optimizer, torch.amp.GradScaler("cpu", enabled=False)))
    assert {event.enabled for event in calls(trace)} == {False}


def test_errors_pass_and_are_noted(record, alone) -> None:
    weight, optimizer = alone()
    scaler = torch.amp.GradScaler("cpu")

    def work() -> None:
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called on this optimizer"):
            scaler.unscale_(optimizer)

    *_, failed = calls(record(work))
    assert failed.method == "unscale_"
    assert failed.error is not None
    assert failed.error.startswith("unscale_() has already been called on this optimizer")


def test_the_scale_that_is_read(record, alone) -> None:
    scaler = torch.amp.GradScaler("cpu")

    def work() -> None:
        scaler.get_scale()

    assert [event.method for event in calls(record(work))] == ["get_scale"]


def test_steps_with_a_scaler_are_folded(record, alone) -> None:
    weight, optimizer = alone()
    trace = record(lambda: trained(weight, optimizer, torch.amp.GradScaler("cpu"), steps=8), "watch")
    assert len(calls(trace)) <= 16
    assert trace.end.steps == 8


def test_numbers_are_the_same_with_and_without(alone) -> None:
    results = []
    for level in (None, "full", "watch"):
        weight, optimizer = alone()
        scaler = torch.amp.GradScaler("cpu")
        if level is None:
            trained(weight, optimizer, scaler, steps=5)
        else:
            with Session(CaptureOptions(level=level)):
                trained(weight, optimizer, scaler, steps=5)
        results.append((weight.detach().tolist(), scaler.get_scale()))
    assert results[0] == results[1] == results[2]


def test_a_run_that_ends_inside_a_scalers_step(alone) -> None:
    weight, optimizer = alone()
    session = Session(CaptureOptions(level="full", steps=2))
    from graphlint.capture.stop import StopRun

    with pytest.raises(StopRun), session:
        trained(weight, optimizer, torch.amp.GradScaler("cpu"), steps=5)
    trace = session.trace()
    assert trace.end.steps == 2
    assert {event.error for event in calls(trace)} == {None}


def test_a_method_of_the_users_is_not_asked_whether_it_is_enabled(record, events) -> None:
    asked = []

    class Counting(torch.amp.GradScaler):
        def is_enabled(self) -> bool:
            asked.append("enabled")
            return super().is_enabled()

    scaler = Counting("cpu", enabled=False)
    plain = len(asked)
    scaler.scale(torch.ones(1))
    plain = len(asked) - plain
    before = len(asked)
    (call,) = events(record(lambda: scaler.scale(torch.ones(1))), ScalerCall)
    assert len(asked) - before == plain
    assert not call.enabled
