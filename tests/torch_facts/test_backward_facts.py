"""What graphlint believes about the calls of the autograd engine."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

FREED = "backward through the graph a second time"


@pytest.fixture
def engine_calls(monkeypatch):
    """Counts the calls that arrive by the name in `torch.autograd`."""
    calls = []
    original = torch.autograd._engine_run_backward

    def counted(outputs, *args, **kwargs):
        calls.append((outputs, args, kwargs))
        return original(outputs, *args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", counted)
    return calls


def square(x):
    return (x * x).sum()


def test_engine_is_imported_by_name():
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


@pytest.mark.parametrize(
    "call",
    [
        lambda x: square(x).backward(),
        lambda x: torch.autograd.backward(square(x)),
        lambda x: torch.autograd.grad(square(x), x),
        lambda x: torch.autograd.grad(square(x), x, create_graph=True),
        lambda x: torch.autograd.grad(square(x), x, is_grads_batched=False, allow_unused=True),
    ],
)
def test_every_backward_goes_through_the_engine_once(engine_calls, call):
    call(torch.ones(3, requires_grad=True))
    assert len(engine_calls) == 1


def test_replacing_the_name_in_graph_alone_is_not_enough(monkeypatch):
    calls = []
    original = torch.autograd.graph._engine_run_backward
    monkeypatch.setattr(
        torch.autograd.graph,
        "_engine_run_backward",
        lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs),
    )
    square(torch.ones(3, requires_grad=True)).backward()
    assert calls == []


def test_engine_gets_roots_gradients_and_flags_in_order(engine_calls):
    x = torch.ones(3, requires_grad=True)
    loss = square(x)
    loss.backward(retain_graph=True)
    loss.backward()
    ((outputs, args, kwargs), (_, later, _)) = engine_calls
    assert outputs[0] is loss
    gradients, retain_graph, create_graph, inputs = args
    assert gradients[0].item() == 1.0
    assert (retain_graph, create_graph, inputs) == (True, False, ())
    assert later[1] is False
    assert kwargs["accumulate_grad"] is True


def test_retain_graph_defaults_to_create_graph(engine_calls):
    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(square(x), x, create_graph=True)
    ((_, args, kwargs),) = engine_calls
    assert args[1:3] == (True, True)
    assert kwargs["accumulate_grad"] is False


def test_backward_with_inputs_fills_those_leaves_alone():
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    (x * y).sum().backward(inputs=[x])
    assert x.grad is not None
    assert y.grad is None


def test_grad_fills_no_leaf():
    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(square(x), x)
    assert x.grad is None


def test_backward_frees_what_it_walked_only():
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b = x.exp(), y.exp()
    a.sum().backward()
    with pytest.raises(RuntimeError, match=FREED):
        a.sum().backward()
    b.sum().backward()
    assert y.grad is not None


def test_backward_that_fails_has_freed_what_it_ran_before():
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    first, second = x.exp(), y.exp()
    both = first.sum() + second.sum()
    first.sum().backward()
    with pytest.raises(RuntimeError, match=FREED):
        both.backward()
    assert y.grad is not None
    with pytest.raises(RuntimeError, match=FREED):
        second.sum().backward()


def test_engine_runs_younger_nodes_first():
    ran = []
    x = torch.ones(3, requires_grad=True)
    older, younger = x.exp(), x.exp()
    older.grad_fn.register_prehook(lambda grads: ran.append("older"))
    younger.grad_fn.register_prehook(lambda grads: ran.append("younger"))
    (older + younger).sum().backward()
    assert ran == ["younger", "older"]


def test_reentrant_checkpointing_runs_a_backward_inside_a_backward(engine_calls):
    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=True).sum().backward()
    assert len(engine_calls) == 2


def test_checkpointing_without_reentry_runs_one_backward(engine_calls):
    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
    assert len(engine_calls) == 1


def test_backward_on_a_tensor_without_a_graph_reaches_the_engine_and_raises_there(engine_calls):
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        torch.ones(1).backward()
    assert len(engine_calls) == 1


def test_gradients_add_up_in_place():
    x = torch.ones(3, requires_grad=True)
    square(x).backward()
    first = x.grad
    square(x).backward()
    assert x.grad is first
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_setting_requires_grad_on_a_cut_loss_makes_a_leaf_that_reaches_nothing():
    x = torch.ones(3, requires_grad=True)
    loss = square(x.detach())
    loss.requires_grad = True
    loss.backward()
    assert loss.grad is not None
    assert x.grad is None


def test_a_graph_deeper_than_the_recursion_limit_is_walked_and_freed_by_torch():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1
    y.backward()
    assert x.grad is not None
