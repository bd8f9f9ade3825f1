"""Operations, transfers, host reads and gradients touched by hand."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.capture.taps import operations
from graphlint.record.events import (
    Backward,
    CaptureFault,
    GradRead,
    GradWrite,
    HostRead,
    Op,
    Transfer,
    ZeroGrad,
)


def ops(trace, events) -> dict[str, Op]:
    return {event.name.rpartition(".")[2]: event for event in events(trace, Op)}


def test_inputs_outputs_and_versions(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.add_(1)
        y[0] = 5.0

    found = ops(record(work), events)
    (x,) = found["mul"].inputs
    assert (x.version, x.requires_grad) == (0, True)
    assert found["mul"].output_grads == (True,)
    assert found["add_"].outputs == found["mul"].outputs
    assert [(c.before, c.after) for c in found["add_"].changed] == [(0, 1)]
    assert [(c.before, c.after) for c in found["__setitem__"].changed] == [(1, 2)]
    assert found["mul"].seq[1] == found["mul"].seq[0] + 1


def test_views_of_no_grad_whose_base_changed(record, events) -> None:
    """Torch refuses to say whether such a view is a leaf; initialising a weight makes one."""

    def work() -> None:
        layer = nn.Linear(3, 3)
        nn.init.orthogonal_(layer.weight)
        with torch.no_grad():
            row = layer.weight[0]
            layer.weight.mul_(2)
            row.add(1)

    trace = record(work)
    assert not events(trace, CaptureFault)
    assert {"view_as", "mul_", "add"} <= set(ops(trace, events))


def test_containers_and_keywords_as_arguments(record, events) -> None:
    def work() -> None:
        a, b = torch.ones(2), torch.ones(2)
        torch.cat([a, b])
        torch.stack(tensors=(a, b))
        torch.add(input=a, other=b)

    found = ops(record(work), events)
    assert [len(found[name].inputs) for name in ("cat", "stack", "add")] == [2, 2, 2]


def test_composite_functions_are_one_operation(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, 3)
        nn.functional.cross_entropy(x, torch.tensor([0, 1]))

    found = events(record(work), Op)
    assert [event.name for event in found if "cross" in event.name] == ["torch.nn.functional.cross_entropy"]
    assert not [event for event in found if "log_softmax" in event.name]


def test_blocks_without_gradients(record, events, line_of) -> None:
    def work() -> None:
        x = torch.ones(1, requires_grad=True)
        with torch.no_grad():  # outer
            x.sin()
            with torch.inference_mode():  # inner
                x.cos()
            x.tan()
        x.exp()

    trace = record(work)
    found = ops(trace, events)
    lines = {
        name: None if found[name].grad_site is None else trace.sites[found[name].grad_site].frames[0].line
        for name in ("sin", "cos", "tan", "exp")
    }
    assert lines == {"sin": line_of("outer"), "cos": line_of("inner"), "tan": line_of("outer"), "exp": None}
    assert [found[name].grad_mode for name in ("sin", "cos", "tan", "exp")] == [False, False, False, True]


def test_a_decorated_function_without_gradients(record, events, line_of) -> None:
    @torch.no_grad()
    def evaluate(x):
        return x.sin()

    trace = record(lambda: evaluate(torch.ones(1)))  # decorated call
    site = ops(trace, events)["sin"].grad_site
    assert trace.sites[site].frames[0].line == line_of("decorated call")


def test_gradients_switched_off_by_a_call(record, events, line_of) -> None:
    def work() -> None:
        x = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        with torch.set_grad_enabled(False):  # block
            x.sin()
        x.cos()
        torch.set_grad_enabled(False)  # function
        optimizer.step()
        x.tan()
        torch.set_grad_enabled(True)
        x.exp()

    trace = record(work)
    found = ops(trace, events)
    sites = {name: found[name].grad_site for name in ("sin", "cos", "tan", "exp")}
    lines = {name: trace.sites[site].frames[0].line for name, site in sites.items() if site is not None}
    assert lines == {"sin": line_of("block"), "tan": line_of("function")}


def test_moves_and_conversions(record, events) -> None:
    def work() -> None:
        x = torch.ones(2)
        assert x.to("cpu") is x
        x.to(torch.float64)
        assert x.float() is x
        x.to("cpu", torch.float64)
        assert x.contiguous() is x

    trace = record(work)
    (noop,) = events(trace, Transfer)
    assert noop.noop
    assert noop.result == noop.source.tensor
    assert (noop.from_device, noop.to_device, noop.bytes) == ("cpu", "cpu", 0)
    assert [event.name for event in events(trace, Op)].count("torch.Tensor.to") == 2


def test_a_move_to_another_device(record, events) -> None:
    trace = record(lambda: torch.ones(2).to("meta"))
    (move,) = events(trace, Transfer)
    assert (move.from_device, move.to_device, move.bytes, move.noop) == ("cpu", "meta", 8, False)


def test_reads_by_the_host_and_what_comes_back(record, events) -> None:
    def work() -> None:
        x = torch.ones(2)
        value = x.sum().item()
        x * value
        x * 1.5
        values = x.tolist()
        torch.tensor(values)
        if x.sum() > 0:
            x.numpy()

    trace = record(work)
    reads = events(trace, HostRead)
    assert [event.method for event in reads] == ["item", "tolist", "bool", "numpy"]
    linked = [event.host_inputs for event in events(trace, Op) if event.host_inputs]
    assert linked == [(reads[0].serial,), (reads[1].serial,)]


def test_gradients_by_hand(record, events) -> None:
    def work() -> None:
        weight = nn.Parameter(torch.ones(2))
        weight.sum().backward()
        weight.grad.zero_()
        weight.grad = torch.ones(2)
        weight.grad = None

    trace = record(work)
    (weight,) = [row.id for row in trace.tensors.values() if row.parameter]
    cleared = events(trace, ZeroGrad)
    assert [(event.set_to_none, event.cleared) for event in cleared] == [
        (False, (weight,)),
        (True, (weight,)),
    ]
    (write,) = events(trace, GradWrite)
    assert write.tensor == weight


def test_a_gradient_read_by_the_user_is_noted_once(record, events) -> None:
    def work() -> None:
        weight = nn.Parameter(torch.ones(2))
        _ = weight.grad
        weight.sum().backward()
        for _ in range(2):
            weight.grad.mul_(0.5)

    trace = record(work)
    (read,) = events(trace, GradRead)
    scaled = [event for event in events(trace, Op) if event.name == "torch.Tensor.mul_"]
    assert trace.tensors[read.tensor].parameter
    assert [change.tensor for op in scaled for change in op.changed] == [read.grad, read.grad]


def test_a_gradient_that_is_not_there_is_not_cleared(record, events) -> None:
    def work() -> None:
        weight = nn.Parameter(torch.ones(2))
        weight.grad = None

    (event,) = events(record(work), ZeroGrad)
    assert event.cleared == ()
    assert event.already_clear == 1


def test_an_operation_that_raises(record, events) -> None:
    def work() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(2) @ torch.ones(3)

    (event,) = [event for event in events(record(work), Op) if event.error]
    assert event.outputs == ()
    assert len(event.inputs) == 2


def test_operations_of_an_optimizer_are_not_recorded(record, events, alone) -> None:
    weight, _ = alone()
    optimizer = torch.optim.Adam([weight], foreach=False)

    def work() -> None:
        weight.sum().backward()
        optimizer.step()
        weight.exp()

    names = [event.name.rpartition(".")[2] for event in events(record(work), Op)]
    assert names == ["sum", "exp"]


def test_operations_past_the_limit_are_told(record, events, monkeypatch) -> None:
    monkeypatch.setattr(operations, "MAX_OPERATIONS", 5)

    def work() -> None:
        x = torch.ones(1)
        for _ in range(10):
            x = x + 1

    trace = record(work)
    assert len(events(trace, Op)) == 5
    assert trace.end.unseen == ("operations of a step beyond the first 5",)


def test_transforms_are_told(record) -> None:
    trace = record(lambda: torch.func.grad(lambda x: x.sin().sum())(torch.ones(2)))
    assert trace.end.unseen == ("operations inside torch.func transforms",)


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def train(steps: int = 6) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(steps):
        (weight * 2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
def test_a_mode_of_the_users_around_the_session(level: str) -> None:
    mode, plain = Counting(), Counting()
    with plain:
        train()
    with mode:
        with Session(CaptureOptions(level=level)):
            train()
        assert _get_current_function_mode_stack() == [mode]
    assert mode.calls == plain.calls


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
def test_a_mode_of_the_users_across_levels_and_the_end(level: str) -> None:
    mode = Counting()
    session = Session(CaptureOptions(level=level))
    with session:
        mode.__enter__()
        train()
        assert _get_current_function_mode_stack()[-1] is mode
    assert _get_current_function_mode_stack() == [mode]
    before = mode.calls
    torch.ones(1)
    assert mode.calls == before + 1
    mode.__exit__(None, None, None)
    assert session.trace().end.steps == 6


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
def test_a_device_block_across_levels_and_the_end(level: str) -> None:
    block = torch.device("meta")
    with Session(CaptureOptions(level=level)):
        train(2)
        block.__enter__()
        with torch.device("cpu"):
            train(6)
        assert torch.ones(1).is_meta
    assert torch.ones(1).is_meta
    block.__exit__(None, None, None)
    assert not torch.ones(1).is_meta
    assert _get_current_function_mode_stack() == []


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
def test_a_default_device_across_levels(level: str) -> None:
    with Session(CaptureOptions(level=level)):
        torch.set_default_device("cpu")
        train()
        torch.set_default_device(None)
        train()
    assert _get_current_function_mode_stack() == []


def test_nothing_inside_the_mode_of_the_user_is_recorded_twice(record, events) -> None:
    with Counting():
        trace = record(lambda: torch.ones(1).add(1))
    assert [event.name for event in events(trace, Op)].count("torch.Tensor.add") == 1


def test_a_mode_that_calls_torch_is_seen_through(record, events) -> None:
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.Tensor.exp else result

    def work() -> None:
        with Doubling():
            torch.zeros(1).exp()

    names = [event.name for event in events(record(work), Op)]
    assert names.count("torch.Tensor.exp") == names.count("torch.Tensor.mul") == 1


def test_no_backward_is_an_operation(record, events) -> None:
    trace = record(lambda: torch.ones(1, requires_grad=True).exp().backward())
    assert len(events(trace, Backward)) == 1
    assert "torch.Tensor.backward" not in {event.name for event in events(trace, Op)}


def test_moves_that_torch_makes_by_itself_are_no_transfers_of_the_users(record, events) -> None:
    def work() -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones((), requires_grad=True) * 2)
        torch.ones(2).to("cpu")
        with torch.device("cpu"):
            torch.ones(3).to("cpu")

    moves = events(record(work), Transfer)
    assert [move.noop for move in moves] == [True, True]
