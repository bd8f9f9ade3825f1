"""Optimizers as they are made, stepped, and fail."""

import pytest
import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import Op, OptimizerStep, ZeroGrad


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.add_(1)
        raise ValueError("no step today")


def test_made_and_given_a_group(record) -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def work() -> None:
        optimizer = torch.optim.SGD([first], 0.1)
        optimizer.add_param_group({"params": [second], "lr": 0.5})

    trace = record(work, "watch")
    (row,) = trace.optimizers.values()
    assert (row.type, row.groups, row.lrs) == ("SGD", ((0,), (1,)), (0.1, 0.5))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_what_a_step_changed(record, events, kind) -> None:
    used, idle = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = kind([used, idle], lr=0.1)

    def work() -> None:
        used.sum().backward()
        optimizer.step()

    trace = record(work, "watch")
    (event,) = events(trace, OptimizerStep)
    (change,) = event.changed
    assert change.after > change.before
    assert ((change.tensor, *event.without_grad),) == trace.optimizers[event.optimizer].groups
    assert event.unchanged == ()
    assert event.error is None


def test_a_fused_step_is_believed(record, events) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], fused=True)

    def work() -> None:
        weight.sum().backward()
        optimizer.step()

    (event,) = events(record(work, "watch"), OptimizerStep)
    assert [change.tensor for change in event.changed] == [0]


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_that_clears_the_gradients_itself(record, events, to_none) -> None:
    class Clearing(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            del closure
            for weight in self.param_groups[0]["params"]:
                weight.sub_(weight.grad)
            cleared.grad.zero_()
            if to_none:
                cleared.grad = None

    cleared, kept = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def work() -> None:
        optimizer = Clearing([cleared, kept], 0.1)
        (cleared + kept).sum().backward()
        optimizer.step()

    trace = record(work)
    (step,), (zero,) = events(trace, OptimizerStep), events(trace, ZeroGrad)
    assert step.without_grad == ()
    assert (zero.cleared, zero.set_to_none) == ((step.changed[0].tensor,), to_none)


@pytest.mark.parametrize("times", [1, 3])
def test_operations_are_recorded_after_a_step_that_raised(record, events, alone, times) -> None:
    weight, good = alone()
    bad = Failing([weight], 0.1)

    def work() -> None:
        (weight * 2).sum().backward()
        for _ in range(times):
            with pytest.raises(ValueError, match="no step today"):
                bad.step()
        weight.exp()
        good.step()
        weight.cos()

    trace = record(work)
    names = [event.name.rpartition(".")[2] for event in events(trace, Op)]
    assert [name for name in names if name in {"exp", "cos"}] == ["exp", "cos"]
    failed = [event for event in events(trace, OptimizerStep) if event.error is not None]
    assert [event.error for event in failed] == ["no step today"] * times
    assert len(events(trace, OptimizerStep)) == times + 1
    assert all(event.end > event.serial for event in failed)


def test_a_step_that_raises_in_its_closure(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight])

    def closure():
        raise ValueError("no loss today")

    def work() -> None:
        with pytest.raises(ValueError, match="no loss today"):
            optimizer.step(closure)
        weight.exp()

    trace = record(work)
    (event,) = events(trace, OptimizerStep)
    assert (event.closure, event.error) == (True, "no loss today")
    assert [event.name for event in events(trace, Op)] == ["torch.Tensor.exp"]


def test_a_closure_is_recorded_and_the_rest_of_the_step_is_not(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight], max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = weight.cosh().sum()
        loss.backward()
        return loss

    trace = record(lambda: optimizer.step(closure))
    names = {event.name.rpartition(".")[2] for event in events(trace, Op)}
    assert "cosh" in names
    assert not names & {"neg", "dot", "mul", "div", "add_", "addcmul", "cat"}


def test_an_optimizer_that_steps_another(record, events, alone) -> None:
    weight, inner = alone()

    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()
            super().step()
            torch.ones(1).sinh()

    outer = Outer([weight], 0.1)

    def work() -> None:
        weight.sum().backward()
        outer.step()
        weight.exp()

    trace = record(work)
    names = [event.name.rpartition(".")[2] for event in events(trace, Op)]
    assert names == ["sum", "exp"]
    assert all(event.error is None for event in events(trace, OptimizerStep))


def test_a_profiler_block_of_the_users_inside_a_step(record, events, alone) -> None:
    weight, _ = alone()

    class Profiled(torch.optim.SGD):
        def step(self, closure=None):
            with torch.autograd.profiler.record_function("inside"):
                super().step()
            weight.sinh()

    optimizer = Profiled([weight], 0.1)

    def work() -> None:
        with torch.autograd.profiler.record_function("outside"):
            weight.sum().backward()
            optimizer.step()
        weight.exp()

    trace = record(work)
    assert {event.error for event in events(trace, OptimizerStep)} == {None}
    assert [event.name.rpartition(".")[2] for event in events(trace, Op)] == ["sum", "exp"]


def test_a_step_under_torchs_profiler(record, events, alone) -> None:
    weight, optimizer = alone()

    def work() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            weight.sum().backward()
            optimizer.step()
            profile.step()
        weight.exp()

    trace = record(work)
    assert len(events(trace, OptimizerStep)) == 1
    assert [event.name.rpartition(".")[2] for event in events(trace, Op)] == ["sum", "exp"]


def test_the_end_of_a_run_inside_a_step_is_no_step() -> None:
    weight = nn.Parameter(torch.ones(1))
    first, second = (torch.optim.SGD([weight], 0.1) for _ in range(2))
    session = Session(CaptureOptions(level="full", steps=1))

    def work() -> None:
        for _ in range(3):
            for optimizer in (first, second):
                weight.sum().backward()
                optimizer.step()

    from graphlint.capture.stop import StopRun

    with pytest.raises(StopRun), session:
        work()
    steps = [event for event in session.trace().events if isinstance(event, OptimizerStep)]
    assert {event.error for event in steps} == {None}


def test_a_scheduler_made_during_the_session_keeps_nothing_of_it(alone) -> None:
    weight, optimizer = alone()
    with Session(CaptureOptions(level="full")):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        weight.sum().backward()
        optimizer.step()
        scheduler.step()
    code = optimizer.step.__wrapped__.__code__
    assert "graphlint" not in code.co_filename
    optimizer.step()
