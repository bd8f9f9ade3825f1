"""What torch does with `.grad`, which the account of the gradients rests on."""

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_the_other_name_of_the_gradient_is_seen_as_the_first() -> None:
    weight = nn.Parameter(torch.ones(2))
    with Seen() as seen:
        weight._grad = torch.zeros(2)
        _ = weight._grad
    assert torch.Tensor.grad.__set__ in seen.calls
    assert torch.Tensor.grad.__get__ in seen.calls


def test_a_second_backward_adds_to_the_same_tensor_in_place() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.sum().backward()
    gradient = weight.grad
    assert gradient is not None
    before = gradient._version
    weight.sum().backward()
    assert weight.grad is gradient
    assert gradient._version > before


def test_zeroing_in_place_raises_the_version() -> None:
    gradient = torch.ones(2)
    before = gradient._version
    gradient.zero_()
    assert gradient._version > before


def test_an_optimizer_without_gradients_changes_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1, weight_decay=0.1)
    before = weight._version
    optimizer.step()
    assert weight._version == before


def test_a_hook_of_one_optimizer_runs_before_those_of_all() -> None:
    order: list[str] = []
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    everywhere = register_optimizer_step_post_hook(lambda *_: order.append("all"))
    optimizer.register_step_post_hook(lambda *_: order.append("one"))
    optimizer.step()
    everywhere.remove()
    assert order == ["one", "all"]
