"""A run that is only watched is recorded in full again where it evaluates, within bounds."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphlint.capture import evaluation
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import ModuleCall, OptimizerStep, StepBoundary
from graphlint.record.trace import Trace


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    # Wide enough for dropout to leave some gradient in each step.
    return nn.Sequential(nn.Linear(2, 32), nn.Dropout(0.5))


def batches(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(count, 2)), batch_size=1)


def update(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None) -> None:
    optimizer.zero_grad()
    net(torch.ones(1, 2) if x is None else x).sum().backward()
    optimizer.step()


def calls_of(trace: Trace, net_type: str = "Sequential") -> list[str]:
    """Returns the calls of the whole model: T in train mode, E in eval mode; small without gradients."""
    letters = []
    for event in trace.events:
        if isinstance(event, ModuleCall) and trace.modules[event.module].type == net_type:
            letter = "T" if event.training else "E"
            letters.append(letter if event.grad_mode else letter.lower())
    return letters


def updates_in_full(trace: Trace) -> int:
    """Returns how many updates lie in stretches at the full level."""
    level, count = "full", 0
    for event in sorted(trace.events, key=lambda event: event.serial):
        if isinstance(event, StepBoundary):
            level = event.level
        elif isinstance(event, OptimizerStep):
            count += level == "full"
    return count


def sgd(*nets: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for net in nets for weight in net.parameters()], 0.1)


def test_a_validation_loop_after_each_epoch(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for _ in range(6):
            net.train()
            for (x,) in batches(6):
                update(net, optimizer, x)
            net.eval()
            with torch.no_grad():
                for (x,) in batches(5):
                    net(x)

    trace = record(work, "auto")
    assert "".join(calls_of(trace)) == "TTT" + "ee" + "TT" + "ee" + "TT"
    assert trace.end.steps == 36
    assert trace.end.full_steps == 7


def test_a_model_that_a_validation_leaves_in_eval_mode(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for step in range(20):
            update(net, optimizer)
            if step % 5 == 4:
                net.eval()
                with torch.no_grad():
                    net(torch.ones(3, 2))

    trace = record(work, "auto")
    assert "".join(calls_of(trace)) == "TTT" + "eEE"
    assert trace.end.steps == 20


def test_a_loader_goes_on_after_a_validation_within_the_epoch(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for step, (x,) in enumerate(batches(12)):
            update(net, optimizer, x)
            if step == 5:
                net.eval()
                for (held,) in batches(4):
                    net(held)

    trace = record(work, "auto")
    assert "".join(calls_of(trace)) == "TTT" + "EE" + "EE"
    assert trace.end.steps == 12
    assert updates_in_full(trace) == 5


def test_a_tensor_evaluated_between_the_batches_of_a_loader(record, net) -> None:
    held = torch.ones(9, 2)

    def work() -> None:
        optimizer = sgd(net)
        for step, (x,) in enumerate(batches(12)):
            update(net, optimizer, x)
            if step % 4 == 3:
                net.eval()
                net(held)
                net.train()

    trace = record(work, "auto")
    assert "".join(calls_of(trace)) == "TTT" + "ET" + "ET"
    assert trace.end.steps == 12


def test_two_optimizers_and_no_loader(record, net) -> None:
    critic = nn.Linear(2, 1)

    def work() -> None:
        chosen, other = sgd(net), sgd(critic)
        for step in range(10):
            update(critic, other)
            update(net, chosen)
            if step == 6:
                net.eval()
                net(torch.ones(2, 2))
                net.train()

    trace = record(work, "auto")
    assert "".join(calls_of(trace)) == "TTT" + "E" + "TT"
    assert trace.end.steps == 10


def test_a_mode_that_changes_in_every_step_splits_none_and_is_bounded(record, net) -> None:
    critic = nn.Linear(2, 1)

    def work() -> None:
        chosen, other = sgd(net), sgd(critic)
        for _ in range(60):
            update(critic, other)
            net.eval()
            with torch.no_grad():
                net(torch.ones(2, 2))
            net.train()
            update(net, chosen)

    trace = record(work, "auto")
    assert trace.end.steps == 60
    assert trace.end.full_steps <= 3 + 2 * evaluation.MAX_PHASES_OF_PLACE * evaluation.SEGMENTS_OF_PHASE


def test_acting_in_eval_mode_in_every_step_is_bounded(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for _ in range(60):
            net.eval()
            for _ in range(3):
                with torch.no_grad():
                    net(torch.ones(1, 2))
            net.train()
            update(net, optimizer)

    trace = record(work, "auto")
    assert trace.end.steps == 60
    assert trace.end.full_steps <= 12


def test_a_train_that_turns_parts_off_in_every_step_is_no_evaluation(record) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def work() -> None:
        optimizer = sgd(net)
        for _ in range(30):
            net.train()
            net[1].eval()
            update(net, optimizer, torch.randn(4, 2))

    trace = record(work, "auto")
    assert trace.end.full_steps <= 3 + evaluation.MAX_PHASES_OF_PLACE * evaluation.SEGMENTS_OF_PHASE
    assert trace.end.steps == 30
    assert len(trace.events) < 300


def test_many_places_are_bounded_all_together(record, net) -> None:
    source = "\n".join(f"    if step % 40 == {line}: net.eval(); net(x); net.train()" for line in range(40))
    scope = {"net": net, "x": torch.ones(1, 2), "update": update, "optimizer": sgd(net)}
    code = f"for step in range(400):\n    update(net, optimizer)\n{source}"
    trace = record(lambda: exec(compile(code, "<string>", "exec"), scope), "auto")  # noqa: S102 - as typed
    assert trace.end.steps == 400
    assert trace.end.full_steps <= 3 + evaluation.MAX_PHASES * evaluation.SEGMENTS_OF_PHASE


def test_a_long_evaluation_without_a_loader_is_left_half_way(record, monkeypatch, net) -> None:
    monkeypatch.setattr(evaluation, "MAX_OPERATIONS_OF_PHASE", 30)

    def work() -> None:
        optimizer = sgd(net)
        for step in range(12):
            update(net, optimizer)
            if step == 5:
                net.eval()
                for _ in range(100):
                    net(torch.ones(1, 2))

    trace = record(work, "auto")
    letters = "".join(calls_of(trace))
    assert letters.startswith("TTT" + "E" * 8)
    assert len(letters) < 40
    # The step right after it had begun unseen; the one that follows is seen.
    assert updates_in_full(trace) == 4
    assert trace.end.steps == 12


def test_a_validation_before_the_training_leaves_its_steps_to_it(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for (x,) in batches(200):
            net(x)
        for (x,) in batches(6):
            update(net, optimizer, x)

    trace = record(work, "auto")
    # What came before the first batch is a stretch of its own.
    assert len(calls_of(trace)) == evaluation.MAX_UNTRAINED_BATCHES - 1 + 3
    assert trace.end.full_steps == 3


@pytest.mark.parametrize("level", ["watch", "full"])
def test_only_the_automatic_level_changes(record, net, level) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for _ in range(3):
            for (x,) in batches(3):
                update(net, optimizer, x)
            net.eval()
            for (x,) in batches(2):
                net(x)
            net.train()

    trace = record(work, level)
    assert {event.level for event in trace.events if isinstance(event, StepBoundary)} == {level}


def test_marked_steps_are_never_cut(net) -> None:
    session = Session(CaptureOptions(level="auto"))
    with session:
        optimizer = sgd(net)
        for _ in range(10):
            session.mark_step()
            update(net, optimizer)
            net.eval()
            net(torch.ones(1, 2))
            net.train()
    reasons = [event.reason for event in session.trace().events if isinstance(event, StepBoundary)]
    assert set(reasons) == {"start", "manual"}
    assert session.trace().end.steps == 10


def test_two_loaders_drawn_in_turn_are_one_phase_each(record, net) -> None:
    def work() -> None:
        optimizer = sgd(net)
        for (x,), (y,) in zip(batches(30), batches(30), strict=True):
            update(net, optimizer, x + y)

    trace = record(work, "auto")
    assert trace.end.steps == 30
    assert trace.end.full_steps <= 3 + 2 * evaluation.MAX_PHASES_OF_PLACE * evaluation.SEGMENTS_OF_PHASE
