"""What graphlint believes about TorchFunctionMode: what passes it by, and the order of the stack."""

import threading

import pytest
import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
    resolve_name,
)
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions.append(func)
        return func(*args, **(kwargs or {}))

    @property
    def names(self):
        return [resolve_name(function) for function in self.functions]


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


SEEN = {
    "torch.Tensor.to": lambda x: x.to("cpu"),
    "torch.Tensor.cpu": lambda x: x.cpu(),
    "torch.Tensor.detach": lambda x: x.detach(),
    "torch.Tensor.data.__get__": lambda x: x.data,
    "torch.Tensor.grad.__get__": lambda x: x.grad,
    "torch.Tensor.device.__get__": lambda x: x.device,
    "torch.Tensor.item": lambda x: x.item(),
    "torch.Tensor.tolist": lambda x: x.tolist(),
    "torch.Tensor.__bool__": lambda x: bool(x.detach()),
    "torch.Tensor.__float__": lambda x: float(x.detach()),
    "torch.Tensor.__int__": lambda x: int(x.detach()),
    "torch.Tensor.__format__": lambda x: f"{x.detach():.2f}",
    "torch.Tensor.backward": lambda x: (x * 2).backward(),
    "torch.Tensor.__setitem__": lambda x: x.detach().view(1).__setitem__(0, 1.0),
    "torch.nn.functional.linear": lambda x: torch.nn.Linear(1, 1)(x.view(1, 1)),
}


@pytest.mark.parametrize("name", SEEN)
def test_mode_sees(name):
    x = torch.tensor(1.0, requires_grad=True)
    with Calls() as calls:
        SEEN[name](x)
    assert name in calls.names


@pytest.mark.parametrize("assign", ["data", "grad", "requires_grad"])
def test_mode_sees_assignments(assign):
    x = torch.tensor(1.0, requires_grad=True)
    value = {"data": torch.tensor(2.0), "grad": torch.tensor(2.0), "requires_grad": True}[assign]
    with Calls() as calls:
        setattr(x, assign, value)
    assert calls.names == [f"torch.Tensor.{assign}.__set__"]


def test_mode_sees_autograd_grad_and_backward_called_with_tensors():
    x = torch.tensor(1.0, requires_grad=True)
    loss, other = x * 2, x * 3
    with Calls() as calls:
        torch.autograd.backward(loss)
        torch.autograd.grad(other, x)
    assert calls.functions == [torch.autograd.backward, torch.autograd.grad]


def test_a_noop_move_returns_the_same_object_and_never_dispatches():
    x = torch.ones(3)
    with Dispatched() as dispatched:
        assert x.to("cpu") is x
        assert x.cpu() is x
        assert x.to(torch.float32) is x
    assert dispatched.functions == []


def test_dispatcher_does_not_see_which_python_call_read_the_value():
    x = torch.ones(3)
    with Dispatched() as dispatched:
        _ = x.data
    assert all("data" not in str(function) for function in dispatched.functions)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
        lambda x: torch.nn.functional.interpolate(x.view(1, 1, 4, 4), scale_factor=2),
    ],
)
def test_a_composite_function_is_one_call(call):
    with Calls() as calls:
        call(torch.ones(4, 4))
    names = [name for name in calls.names if name.startswith("torch.nn.functional")]
    assert len(names) == 1
    assert calls.names[-1] == names[0]


def test_mode_is_off_inside_its_own_handler():
    class Nested(TorchFunctionMode):
        depth = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Nested.depth += 1
            torch.ones(2).exp()
            return func(*args, **(kwargs or {}))

    with Nested():
        torch.ones(3)
    assert Nested.depth == 1


def test_mode_does_not_see_a_custom_function_being_applied():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    with Calls() as calls:
        Double.apply(torch.ones(3, requires_grad=True))
    assert [name for name in calls.names if name != "torch.ones"] == ["torch.Tensor.mul"]


def test_mode_does_not_see_other_threads():
    with Calls() as calls:
        thread = threading.Thread(target=lambda: torch.ones(3).exp())
        thread.start()
        thread.join()
    assert calls.functions == []


def test_a_foreach_step_reaches_the_mode_as_functions_of_lists():
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([x], lr=0.1, foreach=True)
    x.grad = torch.ones(3)
    with Calls() as calls:
        optimizer.step()
    assert torch._foreach_add_ in calls.functions


def test_getters_compare_equal_but_are_not_the_same_object():
    with Calls() as calls:
        _ = torch.ones(3).device
    getter = calls.functions[-1]
    assert getter == torch.Tensor.device.__get__
    assert getter is not torch.Tensor.device.__get__


def test_default_device_goes_to_the_bottom_of_the_stack():
    with Calls() as calls:
        torch.set_default_device("cpu")
        try:
            stack = _get_current_function_mode_stack()
            assert isinstance(stack[0], DeviceContext)
            assert stack[1] is calls
            assert torch.device("cpu") == torch.utils._device.CURRENT_DEVICE
        finally:
            torch.set_default_device(None)


def test_a_device_used_as_a_block_goes_to_the_top_of_the_stack():
    with Calls() as calls, torch.device("cpu"):
        stack = _get_current_function_mode_stack()
        assert stack[0] is calls
        assert isinstance(stack[1], DeviceContext)
        assert torch.utils._device.CURRENT_DEVICE is None
    assert _get_current_function_mode_stack() == []


def test_a_device_block_takes_off_whatever_is_on_top_when_it_ends():
    calls = Calls()
    try:
        with torch.device("cpu"):
            _push_mode(calls)
        left = _get_current_function_mode_stack()
    finally:
        while _get_current_function_mode_stack():
            _pop_mode()
    assert calls not in left
    assert isinstance(left[0], DeviceContext)


def test_disabled_torch_function_reaches_no_mode():
    with Calls() as calls, torch._C.DisableTorchFunction():
        torch.ones(3).exp()
    assert calls.functions == []


def test_a_jump_out_of_a_mode_still_restores_the_stack():
    with pytest.raises(KeyError), Calls():
        raise KeyError
    assert _get_current_function_mode_stack() == []
