"""Where one training step ends and the next begins."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphlint.capture import clock
from graphlint.capture.clock import MAX_REPEATED_UPDATES, StepClock
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import Backward, OptimizerStep, StepBoundary


def steps_of(trace, kind=OptimizerStep) -> list[int]:
    """Returns how many events of a kind each training step holds, in order."""
    starts = [event for event in trace.events if isinstance(event, StepBoundary)]
    counts = []
    for boundary, following in zip(starts, [*starts[1:], None], strict=True):
        inside = [
            event
            for event in trace.events
            if event.serial > boundary.after and (following is None or event.serial <= following.after)
        ]
        if any(isinstance(event, (Backward, OptimizerStep)) for event in inside):
            counts.append(sum(isinstance(event, kind) for event in inside))
    return counts


def batches(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(count, 2)), batch_size=1)


@pytest.fixture
def pair():
    net = nn.Linear(2, 1)
    return net, torch.optim.SGD(net.parameters(), 0.1)


@pytest.fixture
def gan():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    return generator, critic, *(torch.optim.SGD(net.parameters(), 0.1) for net in (generator, critic))


def update(net, optimizer, x=None) -> None:
    optimizer.zero_grad()
    net(torch.ones(1, 2) if x is None else x).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("level", ["full", "watch"])
def test_one_optimizer_without_a_loader(record, pair, level) -> None:
    trace = record(lambda: [update(*pair) for _ in range(4)], level)
    if level == "full":
        assert steps_of(trace) == [1] * 4
    assert trace.end.steps == 4


def test_a_loader(record, pair) -> None:
    def work() -> None:
        for (x,) in batches(4):
            update(*pair, x)

    trace = record(work)
    assert steps_of(trace) == [1] * 4
    assert trace.end.steps == 4


def test_epochs_with_a_validation_loop(record, pair) -> None:
    def work() -> None:
        training, validation = batches(3), batches(2)
        for _ in range(2):
            for (x,) in training:
                update(*pair, x)
            with torch.no_grad():
                for (x,) in validation:
                    pair[0](x)

    trace = record(work)
    assert steps_of(trace) == [1] * 6
    assert trace.end.steps == 6


def test_a_validation_loop_inside_of_a_step_does_not_split_it_in_two(record, pair) -> None:
    net, optimizer = pair

    def work() -> None:
        for (x,) in batches(3):
            net(x).sum().backward()
            for (held,) in batches(2):
                with torch.no_grad():
                    net(held)
            optimizer.step()
            optimizer.zero_grad()

    trace = record(work)
    assert steps_of(trace) == [1] * 3
    assert steps_of(trace, Backward) == [1] * 3


def test_accumulated_gradients_with_a_partial_group_at_the_end(record, pair) -> None:
    net, optimizer = pair

    def work() -> None:
        loader = batches(7)
        for index, (x,) in enumerate(loader, 1):
            net(x).sum().backward()
            if index % 3 == 0 or index == len(loader):
                optimizer.step()
                optimizer.zero_grad()

    trace = record(work)
    assert steps_of(trace) == [1, 1, 1]
    assert steps_of(trace, Backward) == [3, 3, 1]


def test_a_loop_that_breaks_out_each_epoch(record, pair) -> None:
    def work() -> None:
        for _ in range(3):
            for index, (x,) in enumerate(batches(5)):
                update(*pair, x)
                if index == 1:
                    break

    trace = record(work)
    assert steps_of(trace) == [1] * 6


def test_one_batch_drawn_by_hand_for_each_step(record, pair) -> None:
    def work() -> None:
        loader = batches(3)
        for _ in range(4):
            (x,) = next(iter(loader))
            update(*pair, x)

    assert steps_of(record(work)) == [1] * 4


@pytest.mark.parametrize("drawn", [True, False])
def test_a_gan(record, gan, drawn) -> None:
    generator, critic, generator_optimizer, critic_optimizer = gan

    def step(x) -> None:
        critic_optimizer.zero_grad()
        critic(generator(x).detach()).sum().backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        critic(generator(x)).sum().backward()
        generator_optimizer.step()

    def work() -> None:
        for x in (x for (x,) in batches(4)) if drawn else (torch.ones(1, 2) for _ in range(4)):
            step(x)

    trace = record(work)
    assert steps_of(trace) == [2] * 4
    assert trace.end.steps == 4


def test_critic_steps_without_a_loader(record, gan) -> None:
    generator, critic, generator_optimizer, critic_optimizer = gan

    def work() -> None:
        for _ in range(3):
            for _ in range(5):
                critic_optimizer.zero_grad()
                critic(generator(torch.ones(1, 2)).detach()).sum().backward()
                critic_optimizer.step()
            generator_optimizer.zero_grad()
            critic(generator(torch.ones(1, 2))).sum().backward()
            generator_optimizer.step()

    trace = record(work)
    assert steps_of(trace) == [6] * 3


def test_two_optimizers_that_step_together(record, gan) -> None:
    generator, critic, *optimizers = gan

    def work() -> None:
        for _ in range(4):
            critic(generator(torch.ones(1, 2))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    trace = record(work)
    assert steps_of(trace) == [2] * 4
    assert steps_of(trace, Backward) == [1] * 4


def test_closures(record) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = (weight - 3).pow(2).sum()
        loss.backward()
        return loss

    trace = record(lambda: [optimizer.step(closure) for _ in range(3)])
    assert steps_of(trace) == [1] * 3
    assert [event.closure for event in trace.events if isinstance(event, OptimizerStep)] == [True] * 3


@pytest.mark.parametrize("level", ["full", "watch"])
def test_updates_by_hand(record, level) -> None:
    weight = torch.ones(2, requires_grad=True)

    def work() -> None:
        for _ in range(4):
            (weight * 2).sum().backward()
            with torch.no_grad():
                weight.sub_(0.1 * weight.grad)
                weight.grad = None

    trace = record(work, level)
    assert trace.end.steps == 4
    if level == "full":
        assert steps_of(trace, Backward) == [1] * 4


def test_steps_that_a_scaler_leaves_out(record, pair) -> None:
    net, optimizer = pair
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)

    def work() -> None:
        for (x,) in batches(4):
            optimizer.zero_grad()
            scaler.scale(net(x * 1e20).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    trace = record(work)
    assert len([event for event in trace.events if isinstance(event, OptimizerStep)]) < 4
    assert steps_of(trace, Backward) == [1] * 4


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever(record) -> None:
    def work() -> None:
        critic, generator = nn.Linear(2, 1), nn.Linear(2, 2)
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (critic, generator)]
        for _ in range(MAX_REPEATED_UPDATES + 4):
            update(critic, optimizers[0])
        update(generator, optimizers[1])
        update(critic, optimizers[0])
        update(generator, optimizers[1])
        update(critic, optimizers[0])

    assert steps_of(record(work)) == [MAX_REPEATED_UPDATES, 1, 1, 1, 1, 2, 2]


def test_an_update_is_not_waited_for_for_ever(record, pair, monkeypatch) -> None:
    monkeypatch.setattr(clock, "MAX_UNFINISHED_BACKWARDS", 4)
    net, optimizer = pair

    def work() -> None:
        for _ in range(10):
            net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert steps_of(record(work), Backward) == [4, 4, 2]
    assert record(work, "watch").end.steps == 3


def test_backwards_without_an_update_are_folded_in_the_end(record, pair, monkeypatch) -> None:
    monkeypatch.setattr(clock, "MAX_UNFINISHED_BACKWARDS", 2)
    net, _ = pair

    def work() -> None:
        for _ in range(40):
            torch.autograd.grad(net(torch.ones(1, 2)).sum(), list(net.parameters()))

    trace = record(work, "auto")
    assert trace.end.steps == 20
    assert len([event for event in trace.events if isinstance(event, Backward)]) < 15


def test_marks_by_hand_win(record, pair) -> None:
    session = Session(CaptureOptions(level="full"))
    with session:
        for (x,) in batches(4):
            session.mark_step()
            update(*pair, x)
            update(*pair, x)
    assert steps_of(session.trace()) == [2] * 4


def test_decorated_calls_win(pair) -> None:
    session = Session(CaptureOptions(level="full"))
    with session:
        for (x,) in batches(3):
            with session.step_call():
                update(*pair, x)
                update(*pair, x)
    assert steps_of(session.trace()) == [2] * 3
    assert session.steps == 3


def test_a_call_that_raises_ends_its_step(pair) -> None:
    session = Session(CaptureOptions(level="full"))
    net, optimizer = pair

    def call(x) -> None:
        with session.step_call():
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            net(x)

    with session:
        with pytest.raises(RuntimeError):
            call(torch.ones(1, 3))
        call(torch.ones(1, 2))
    assert steps_of(session.trace()) == [1, 1]


def test_a_clock_cuts_after_the_event_that_it_was_told() -> None:
    cuts = []
    clock = StepClock(lambda reason, after: cuts.append((reason, after)), lambda: 1, lambda: 99)
    clock.optimizer_starts(0)
    clock.optimizer_ended(0, 7)
    assert cuts == [("optimizer", 7)]
    clock.marked("manual")
    clock.optimizer_starts(0)
    clock.optimizer_ended(0, 8)
    assert cuts == [("optimizer", 7), ("manual", 99)]
