"""What is told of the gradients that a step is given."""

import pytest
import torch
from torch import nn

from graphlint.record.events import OptimizerStep, Repeat


def fill(parameter: nn.Parameter, value: float) -> None:
    (parameter * value).sum().backward()


def test_zero_and_bad_gradients(record, events) -> None:
    zero, good, nan, inf, none = (nn.Parameter(torch.ones(2)) for _ in range(5))
    optimizer = torch.optim.SGD([zero, good, nan, inf, none], 0.1)

    def work() -> None:
        for parameter, value in ((zero, 0.0), (good, 1.0), (nan, float("nan")), (inf, float("inf"))):
            fill(parameter, value)
        optimizer.step()

    trace = record(work)
    (step,) = events(trace, OptimizerStep)
    (row,) = trace.optimizers.values()
    (group,) = row.groups
    assert step.gradients_checked
    assert step.zero_gradients == group[:1]
    assert step.bad_gradients == group[2:4]


def test_a_closure_s_gradients_are_those_that_it_filled(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)

    def closure() -> float:
        optimizer.zero_grad()
        fill(weight, 0.0)
        return 0.0

    (step,) = events(record(lambda: optimizer.step(closure)), OptimizerStep)
    assert step.gradients_checked
    assert len(step.zero_gradients) == 1


def test_a_watched_run_looks_ever_more_seldom_and_folds(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.0)

    def work() -> None:
        for _ in range(100):
            optimizer.zero_grad()
            fill(weight, 0.0)
            optimizer.step()

    trace = record(work, "watch")
    stored = events(trace, OptimizerStep)
    assert {step.gradients_checked for step in stored} == {True, False}
    assert len(stored) <= 4


def test_gradients_that_stay_as_they_were_add_nothing_to_a_record(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.0)

    def work() -> None:
        for _ in range(300):
            optimizer.zero_grad()
            fill(weight, 1.0)
            optimizer.step()

    trace = record(work, "auto")
    assert len(events(trace, OptimizerStep)) == 4
    assert len(events(trace, Repeat)) == 1


def test_a_gradient_that_ends_to_be_zero_is_seen_at_the_watch_level(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.0)

    def work() -> None:
        for index in range(20):
            optimizer.zero_grad()
            fill(weight, 0.0 if index < 10 else 1.0)
            optimizer.step()

    stored = [step for step in events(record(work, "watch"), OptimizerStep) if step.gradients_checked]
    assert {bool(step.zero_gradients) for step in stored} == {True, False}


def test_a_fused_step_that_a_scaler_guards_has_no_bad_gradients(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], fused=True)
    scaler = torch.amp.GradScaler("cpu")

    def work() -> None:
        scaler.scale((weight * float("inf")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    (step,) = events(record(work), OptimizerStep)
    assert step.gradients_checked
    assert step.bad_gradients == ()
    assert torch.equal(weight, torch.ones(2))


@pytest.mark.parametrize("level", ["full", "watch"])
def test_gradients_stay_as_they_are(record, level) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    seen = []

    def work() -> None:
        (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
        weight.grad = gradient
        version, state = gradient._version, torch.get_rng_state()
        optimizer.step()
        seen.append((gradient._version == version, torch.equal(torch.get_rng_state(), state)))
        seen.append((weight.grad is gradient, gradient.requires_grad))

    record(work, level)
    assert seen == [(True, True), (True, True)]


def test_whole_numbers_and_sparse_gradients(record, events) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))

    def work() -> None:
        (table(torch.tensor([1, 2])) * float("nan")).sum().backward()
        optimizer.step()

    (step,) = events(record(work), OptimizerStep)
    assert len(step.bad_gradients) == 1
