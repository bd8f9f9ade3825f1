"""What torch does that the census of live graphs and the placing of parameters rest on."""

import gc

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


def test_a_graph_that_a_backward_freed_keeps_its_nodes_as_long_as_a_tensor_has_them() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = (x * 2).exp().sum()
    loss.backward()
    node = loss.grad_fn
    names = []
    while node is not None and node.next_functions:
        names.append(node.name())
        node = node.next_functions[0][0]
    assert names == ["SumBackward0", "ExpBackward0", "MulBackward0"]


def test_a_node_has_the_number_that_was_next_when_it_was_built() -> None:
    x = torch.ones(3, requires_grad=True)
    before = torch.autograd._get_sequence_nr()
    early = x * 2
    between = torch.autograd._get_sequence_nr()
    late = early * 3
    assert before <= early.grad_fn._sequence_nr() < between <= late.grad_fn._sequence_nr()


def test_adding_in_place_builds_a_node_on_top_of_the_old_graph() -> None:
    total = torch.ones(1, requires_grad=True) * 1
    first = total.grad_fn
    total += torch.ones(1, requires_grad=True) * 2
    assert total.grad_fn is not first
    assert first in [node for node, _ in total.grad_fn.next_functions]


def test_looking_at_a_gradient_makes_a_python_object_of_it_that_stays() -> None:
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()
    gc.collect()

    def tensors() -> int:
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    before = tensors()
    assert x.grad is not None
    assert tensors() == before + 1


def test_a_hook_sees_each_parameter_that_a_module_is_given_and_nothing_else() -> None:
    seen: list[tuple[str, str]] = []

    def placed(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        seen.append((type(module).__name__, name))

    handle = register_module_parameter_registration_hook(placed)
    try:
        layer = nn.Linear(2, 2)
        layer.weight = nn.Parameter(torch.ones(2, 2))
        layer.scale = nn.Parameter(torch.ones(2)).double()
        layer.register_buffer("mean", torch.zeros(2))
        layer.double()
    finally:
        handle.remove()
    nn.Linear(2, 2)
    assert seen == [("Linear", "weight"), ("Linear", "bias"), ("Linear", "weight")]


def test_a_parameter_that_is_cast_is_no_parameter_and_no_leaf() -> None:
    own = nn.Parameter(torch.ones(2))
    cast = own.to(torch.float64)
    assert not isinstance(cast, nn.Parameter)
    assert not cast.is_leaf
    (cast * 2).sum().backward()
    assert own.grad is not None
