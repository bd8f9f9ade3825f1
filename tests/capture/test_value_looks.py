"""Where gradients and values cease to be finite or become zero; that looking changes nothing."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphlint.capture import probes, values
from graphlint.record.events import Backward, Op
from graphlint.record.values import ValuesSeen

NAN = float("nan")


def turns(trace, event):
    """Returns the turns of a backward as (node, node that received, what)."""
    graph = trace.graphs[event.graph]
    return [
        (graph.nodes[turn.source].name, graph.nodes[turn.target].name, turn.to) for turn in event.values.turns
    ]


def train(weight, loss, optimizer) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def test_the_node_that_makes_nan_of_a_finite_gradient(record, events) -> None:
    weight = nn.Parameter(torch.zeros(2))

    def work() -> None:
        (weight * 2).sqrt().sum().backward()

    trace = record(work)
    (event,) = events(trace, Backward)
    assert turns(trace, event) == [("SqrtBackward0", "MulBackward0", "inf")]
    assert event.values.root is None
    assert not event.values.probed


def test_where_gradients_become_zero_is_looked_for_once_some_were(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)

    def work() -> None:
        for _ in range(3):
            train(weight, lambda: (weight * 2).sign().sum(), optimizer)

    trace = record(work)
    first, *others = events(trace, Backward)
    assert first.values is None
    for event in others:
        assert event.values.probed
        assert turns(trace, event) == [("SignBackward0", "MulBackward0", "zero")]


def test_results_are_told_where_the_loss_is_bad(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    batch = torch.tensor([1.0, NAN])

    def work() -> None:
        ((weight * batch).exp() / 2).mean().backward()

    trace = record(work)
    (event,) = events(trace, Backward)
    (told,) = events(trace, ValuesSeen)
    assert event.values.root == "nan"
    assert event.values.bad_leaves == ()
    operations = {op.serial: op.name.rpartition(".")[2] for op in events(trace, Op)}
    (multiplied,) = [op for op in events(trace, Op) if op.name.endswith((".mul", ".__mul__"))]
    numbers = [use.tensor for use in multiplied.inputs]
    made = {operations[seen.at]: seen.extent for seen in told.values if seen.made}
    held = {seen.tensor: seen.extent for seen in told.values if seen.at == told.serial}
    assert made["exp"] == made["mean"] == "nan"
    assert [held[number] for number in numbers] == ["finite", "nan"]


def test_a_watched_loss_that_turns_bad(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    batches = [1.0] * 6 + [NAN, NAN]

    def work() -> None:
        for value in batches:
            train(weight, lambda: (weight * value).exp().sum(), optimizer)  # noqa: B023 - called at once

    trace = record(work, "watch")
    bad = [event for event in events(trace, Backward) if event.values is not None]
    assert bad[0].values.root == "nan"
    assert bad[0].values.bad_leaves == ()
    assert len(bad[0].values.before) == 4
    assert bad[0].values.saved
    assert len(bad[1].values.bad_leaves) == 1


def test_a_loss_that_stays_bad_folds(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)

    def work() -> None:
        for _ in range(40):
            train(weight, (weight * NAN).sum, optimizer)

    assert len(events(record(work, "watch"), Backward)) < 8


def test_no_hook_outlasts_the_backward(record, monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(probes.Probe, "_look", lambda probe, *args: looks.append(probe))
    weight = nn.Parameter(torch.ones(2))
    losses = []

    def work() -> None:
        losses.append(weight.sqrt().sum())
        losses[0].backward(retain_graph=True)

    record(work)
    assert len(looks) == 1
    losses[0].backward()
    assert len(looks) == 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def programs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    batch = torch.randn(4, 6, requires_grad=True)

    def penalty() -> torch.Tensor:
        out = net(batch)
        (gradient,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
        return (gradient.norm(dim=1) - 1).pow(2).mean()

    return {
        "plain": (net, optimizer, lambda: (net(batch).pow(2) + 1).sqrt().mean()),
        "double": (net, optimizer, penalty),
        "checkpointed": (net, optimizer, lambda: checkpoint(net, batch, use_reentrant=False).pow(2).mean()),
        "reentrant": (net, optimizer, lambda: checkpoint(net, batch, use_reentrant=True).pow(2).mean()),
        "custom": (net, optimizer, lambda: Doubled.apply(net(batch)).std()),
    }


@pytest.mark.parametrize("program", ["plain", "double", "checkpointed", "reentrant", "custom"])
def test_training_is_the_same_to_the_bit(record, monkeypatch, program) -> None:
    def run(level: str | None) -> list[torch.Tensor]:
        net, optimizer, loss = programs()[program]

        def work() -> None:
            for _ in range(4):
                train(net, loss, optimizer)

        record(work, level) if level else work()
        return [*net.state_dict().values(), torch.get_rng_state()]

    plain = run(None)
    monkeypatch.setattr(values.ValueWatch, "new_step", lambda watch: setattr(watch, "bad_result", True))
    for level in ("full", "watch"):
        assert all(torch.equal(one, other) for one, other in zip(plain, run(level), strict=True))


def test_gradients_are_handed_to_the_leaves_without_a_copy(record) -> None:
    weight = nn.Parameter(torch.ones(3))
    addresses = []

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            mine = gradient.clone()
            addresses.append(mine.data_ptr())
            return mine

    record(lambda: (Keeping.apply(weight) * 3).sum().backward())
    assert weight.grad.data_ptr() == addresses[0]
