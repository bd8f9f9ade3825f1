"""Module calls, moves of modules, and custom functions."""

import pytest
import torch
from torch import nn

from graphlint.record.events import ModuleCall, ModuleMove, Op, Transfer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(3, 1)

    def forward(self, x, *, scale=None):
        y = self.second(self.first(x))
        return {"score": y if scale is None else y * scale, "name": "net"}


def test_calls_are_nested_and_operations_lie_in_them(record, events) -> None:
    net = Net()
    trace = record(lambda: net(torch.ones(1, 2), scale=torch.ones(1)))
    calls = {trace.modules[event.module].path: event for event in events(trace, ModuleCall)}
    outer = calls[""]
    assert calls["first"].parent == calls["second"].parent == outer.serial
    assert outer.parent is None
    assert outer.serial < calls["first"].serial < calls["first"].end < calls["second"].serial < outer.end
    assert (len(outer.inputs), len(outer.outputs)) == (2, 1)
    assert outer.training
    places = {
        event.name.rpartition(".")[2]: event.call for event in events(trace, Op) if event.call is not None
    }
    assert places == {"linear": calls["second"].serial, "mul": outer.serial}


def test_mode_and_gradients_of_a_call(record, events) -> None:
    net = Net().eval()

    def work() -> None:
        with torch.no_grad():
            net(torch.ones(1, 2))

    found = events(record(work), ModuleCall)
    assert {(event.training, event.grad_mode) for event in found} == {(False, False)}


def test_a_call_that_raises_is_ended(record, events) -> None:
    net = Net()

    def work() -> None:
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 5))
        torch.ones(1).exp()

    trace = record(work)
    calls = events(trace, ModuleCall)
    assert len(calls) == 2
    assert all(call.error is not None and call.outputs == () for call in calls)
    (exp,) = [event for event in events(trace, Op) if event.name == "torch.Tensor.exp"]
    assert (exp.module, exp.call) == (None, None)


def test_forward_called_by_name_is_no_call(record, events) -> None:
    net = nn.Linear(2, 2)
    assert events(record(lambda: net.forward(torch.ones(1, 2))), ModuleCall) == []


def test_a_lazy_module(record, events) -> None:
    net = nn.LazyLinear(2)
    trace = record(lambda: net(torch.ones(1, 3)))
    assert len(events(trace, ModuleCall)) == 1
    assert not [tap for tap in trace.end.taps if tap.fault]


def test_moves_of_a_module_are_one_event(record, events) -> None:
    net = Net()

    def work() -> None:
        net.to("cpu")
        net.double()
        net.to("meta")

    trace = record(work)
    stays, moves = events(trace, ModuleMove)
    assert (stays.to_device, stays.tensors, stays.moved, stays.bytes) == ("cpu", 4, 0, 0)
    assert (moves.to_device, moves.tensors, moves.moved, moves.bytes) == ("meta", 4, 4, 13 * 8)
    assert events(trace, Transfer) == []


def test_a_custom_function_is_one_operation(record, events) -> None:
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, flag):
            ctx.mark_dirty(y)
            return x.cosh(), y.add_(1)

        @staticmethod
        def backward(ctx, one, other):
            return one, other, None

    def work() -> None:
        x, y = torch.ones(2, requires_grad=True), torch.zeros(2)
        Both.apply(x, y, "flag")

    trace = record(work)
    names = [event.name for event in events(trace, Op)]
    assert "Both.apply" in names
    assert not [name for name in names if "cosh" in name or "add_" in name]
    (event,) = [event for event in events(trace, Op) if event.name == "Both.apply"]
    assert (len(event.inputs), len(event.outputs)) == (2, 2)
    assert [change.tensor for change in event.changed] == [event.inputs[1].tensor]
    assert event.output_grads == (True, True)


def test_a_custom_function_inside_another_is_part_of_it(record, events) -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return Inner.apply(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    trace = record(lambda: Outer.apply(torch.ones(1, requires_grad=True)))
    assert [event.name for event in events(trace, Op) if event.name.endswith("apply")] == ["Outer.apply"]


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return doubled(x)


class Overridden(nn.Conv2d):
    def _conv_forward(self, *given):
        return doubled(super()._conv_forward(*given))


class Computed(nn.LeakyReLU):
    @property
    def negative_slope(self):
        return float(doubled(self.half))

    @negative_slope.setter
    def negative_slope(self, value):
        self.half = torch.tensor(value / 2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("module", "size"),
    [(Decorated(), (1,)), (Overridden(1, 1, 1), (1, 1, 1, 1)), (Computed(), (1,))],
)
def test_the_users_code_is_seen_where_torch_calls_it_in_a_module(record, events, module, size) -> None:
    trace = record(lambda: module(torch.ones(size)))
    (product,) = [event for event in events(trace, Op) if event.name.endswith(".mul")]
    assert trace.sites[product.site].frames[0].function == "doubled"
