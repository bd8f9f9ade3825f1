"""What graphlint believes about hooks on nodes and about looking at values; one test per belief."""

import math

import torch
from torch import nn


def node_of_first(loss: torch.Tensor):
    return loss.grad_fn.next_functions[0][0]


def test_a_hook_on_a_node_is_given_what_it_gives_and_what_it_was_given() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 3).sum()
    seen = []
    node_of_first(loss).register_hook(lambda given, taken: seen.append((len(given), len(taken))))
    loss.backward()
    assert seen == [(2, 1)]
    assert len(node_of_first(loss).next_functions) == 2


def test_a_hook_on_a_node_can_be_taken_off_when_the_node_is_gone() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 3).sum()
    handle = node_of_first(loss).register_hook(lambda given, taken: None)
    loss.backward()
    del loss
    handle.remove()


def test_a_custom_function_s_node_takes_a_hook_too() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    weight = torch.ones(2, requires_grad=True)
    seen = []
    result = Same.apply(weight)
    result.grad_fn.register_hook(lambda given, taken: seen.append(len(given)))
    result.sum().backward()
    assert seen == [1]


def test_a_sum_of_something_not_finite_is_not_finite() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert not math.isfinite(torch.tensor([1.0, bad, 2.0]).sum().item())
    assert not math.isfinite(torch.tensor([math.inf, -math.inf]).sum().item())


def test_aminmax_lets_a_nan_through() -> None:
    least, most = torch.aminmax(torch.tensor([1.0, math.nan, 2.0]))
    assert math.isnan(least)
    assert math.isnan(most)


def test_the_derivative_of_a_sign_is_zero_and_not_missing() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.sign().sum().backward()
    assert torch.equal(weight.grad, torch.zeros(2))


def test_the_norm_of_zeros_has_a_gradient_of_zero_and_the_root_has_none() -> None:
    zero = torch.zeros(2, requires_grad=True)
    zero.norm().backward()
    assert torch.equal(zero.grad, torch.zeros(2))
    zero.grad = None
    zero.pow(2).sum().sqrt().backward()
    assert torch.isnan(zero.grad).all()


def test_a_scaler_tells_a_fused_step_what_it_found() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], fused=True)
    scaler = torch.amp.GradScaler("cpu")
    found = []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: found.append(float(opt.found_inf)))
    scaler.scale((weight * math.inf).sum()).backward()
    scaler.step(optimizer)
    assert found == [1.0]
    assert not hasattr(optimizer, "found_inf")
