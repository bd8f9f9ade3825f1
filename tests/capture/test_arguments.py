"""For which parameter each tensor was passed to a module, and by which keyword to an operation."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphlint.record.events import ModuleCall, Op


class Pair(nn.Module):
    def forward(self, ids, mask=None, *more, scale=None, **others):
        return ids * 1


def kept(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    @kept
    def forward(self, first, second):
        return first + second


A, B, C = torch.ones(1), torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((A, B), {}, ("ids", "mask")),
        ((A, None, B), {}, ("ids", "*2")),
        ((A,), {"mask": B, "scale": C}, ("ids", "mask", "scale")),
        ((A, [B, {"key": C}]), {}, ("ids", "mask", "mask")),
        ((A, B), {"extra": (C, A)}, ("ids", "mask", "extra", "extra")),
    ],
)
def test_each_tensor_of_a_call_has_its_parameter(record, events, args, kwargs, expected) -> None:
    trace = record(lambda: Pair()(*args, **kwargs))
    (call,) = events(trace, ModuleCall)
    assert call.arguments == expected
    assert len(call.inputs) == len(call.arguments)


def test_a_decorator_is_seen_through(record, events) -> None:
    trace = record(lambda: Decorated()(A, second=A))
    (call,) = events(trace, ModuleCall)
    assert call.arguments == ("first", "second")


def test_a_forward_that_is_no_function_of_python_names_none(record, events) -> None:
    net = nn.Module()
    net.forward = torch.relu
    trace = record(lambda: net(A))
    (call,) = events(trace, ModuleCall)
    assert call.arguments == ("*0",)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("loss", [functional.mse_loss, functional.binary_cross_entropy, functional.kl_div])
def test_a_loss_of_torch_comes_in_the_order_declared_whatever_the_keywords(record, events, loss) -> None:
    wanted = torch.full((1,), 0.5, requires_grad=True)
    trace = record(lambda: loss(target=A, input=wanted))
    (call,) = [event for event in events(trace, Op) if event.name.startswith("torch.nn.functional")]
    assert [use.requires_grad for use in call.inputs] == [True, False]
