"""Every way to call a backward, other threads, and the limits."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.capture.taps import backward as tap
from graphlint.record.events import Backward, Op


@pytest.mark.parametrize("level", ["full", "watch"])
def test_which_function_was_called(record, events, level) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        x.exp().sum().backward()
        torch.autograd.backward(x.exp().sum())
        torch.autograd.backward([x.exp().sum(), x.sin().sum()])
        torch.autograd.grad(x.exp().sum(), x)
        x.exp().backward(torch.ones(2))

    found = events(record(work, level), Backward)
    assert [event.call for event in found] == [
        *("Tensor.backward", "autograd.backward", "autograd.backward", "autograd.grad", "Tensor.backward")
    ]
    assert [len(event.roots) for event in found] == [1, 1, 2, 1, 1]
    assert [len(event.targets) for event in found] == [0, 0, 0, 1, 0]
    assert [len(event.reached) for event in found] == [1, 1, 1, 0, 1]


def test_a_gradient_edge_as_root(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        edge = torch.autograd.graph.get_gradient_edge(x.exp().sum())
        torch.autograd.backward(edge)

    (event,) = events(record(work), Backward)
    assert event.roots == ()
    assert event.nodes == 3
    assert len(event.reached) == 1


def test_outputs_of_grad(record, events) -> None:
    def work() -> None:
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        gx, _ = torch.autograd.grad(x.exp().sum(), (x, y), allow_unused=True)
        gx.sin()

    trace = record(work)
    (event,) = events(trace, Backward)
    (output,) = event.outputs
    (sine,) = [op for op in events(trace, Op) if op.name == "torch.Tensor.sin"]
    assert sine.inputs[0].tensor == output


def test_a_backward_inside_a_backward(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(nn.Linear(3, 3), x, use_reentrant=True).sum().backward()

    inner, outer = sorted(events(record(work), Backward), key=lambda event: -event.serial)
    assert (outer.nested, inner.nested) == (False, True)
    assert outer.serial < inner.serial < inner.end < outer.end


def test_what_hooks_compute_inside_a_backward_is_not_recorded(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda grad: grad.cosh())
        x.exp().sum().backward()

    names = {event.name.rpartition(".")[2] for event in events(record(work), Op)}
    assert "cosh" not in names


def test_another_thread_is_told_and_not_recorded(record, events) -> None:
    def work() -> None:
        def train() -> None:
            x = torch.ones(2, requires_grad=True)
            x.exp().sum().backward()
            torch.optim.SGD([x], 0.1).step()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    trace = record(work)
    assert events(trace, Backward) == []
    assert {what.partition(" in other threads")[0] for what in trace.end.unseen} >= {
        "backward calls",
        "optimizer steps",
    }


def test_graphs_past_the_limit_are_counted_only(record, events, monkeypatch) -> None:
    monkeypatch.setattr(tap, "MAX_GRAPHS", 2)

    def work() -> None:
        for depth in range(1, 5):
            x = torch.ones(2, requires_grad=True)
            y = x
            for _ in range(depth):
                y = y.sin()
            y.sum().backward()

    trace = record(work, "watch")
    found = events(trace, Backward)
    assert len(trace.graphs) == 2
    assert [event.graph is None for event in found] == [False, False, True, True]
    assert [event.nodes for event in found] == [3, 4, 5, 6]
    assert trace.end.unseen == ("graphs of further shapes than the first 2",)


def test_nodes_of_all_graphs_are_limited(record, events, monkeypatch) -> None:
    monkeypatch.setattr(tap, "MAX_NODES", 5)

    def work() -> None:
        for _ in range(3):
            torch.ones(2, requires_grad=True).sin().sum().backward()

    trace = record(work)
    assert len(trace.graphs) == 2
    assert [event.graph is None for event in events(trace, Backward)] == [False, False, True]
    assert trace.end.unseen == ("graphs of further shapes than the first 2",)


def test_two_lines_that_build_one_shape_are_two_graphs(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        x.exp().sum().backward()
        x.exp().sum().backward()

    first, second = events(record(work, "watch"), Backward)
    assert first.site != second.site
    assert not first.same_shape
    assert not second.same_shape


def test_watched_backwards_name_the_stored_graph(record, events) -> None:
    net = nn.Linear(2, 1)

    def work() -> None:
        for _ in range(4):
            net(torch.ones(1, 2)).sum().backward()

    trace = record(work, "watch")
    found = events(trace, Backward)
    assert [event.same_shape for event in found] == [False] + [True] * (len(found) - 1)
    assert len({event.graph for event in found}) == len(trace.graphs) == 1


def test_the_graph_is_not_held_after_the_backward() -> None:
    import weakref

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad

    def work() -> weakref.ref:
        x = torch.ones(2, requires_grad=True)
        y = Held.apply(x)
        held = weakref.ref(y)
        loss = y.sum()
        loss.backward(retain_graph=True)
        del y, loss
        return held

    with Session(CaptureOptions(level="full")):
        assert work()() is None
