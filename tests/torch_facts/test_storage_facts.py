"""What graphlint and its simulated devices believe about storages, moves of modules and `.data`."""

import copy
import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    @property
    def names(self):
        return [resolve_name(function) or function.__name__ for function, _, _ in self.calls]


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


SHARES = {
    "view": lambda x: x.view(3, 2),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[0],
    "Parameter": torch.nn.Parameter,
    "as_tensor": torch.as_tensor,
}


@pytest.mark.parametrize("name", SHARES)
def test_aliases_share_a_storage(name):
    x = torch.ones(2, 3)
    assert address(SHARES[name](x)) == address(x)


@pytest.mark.parametrize("function", [torch.clone, torch.exp, copy.deepcopy, lambda x: x.to(torch.float64)])
def test_results_have_a_storage_of_their_own(function):
    x = torch.ones(2, 3)
    assert address(function(x)) != address(x)


def test_a_weak_reference_tells_that_a_storage_is_gone():
    x = torch.ones(3)
    alive = StorageWeakRef(x.untyped_storage())
    assert not alive.expired()
    del x
    gc.collect()
    assert alive.expired()


def test_an_address_is_not_reused_while_a_weak_reference_is_held():
    x = torch.ones(3)
    held = StorageWeakRef(x.untyped_storage())
    taken = address(x)
    del x
    later = [torch.ones(3) for _ in range(200)]
    assert taken not in {address(y) for y in later}
    del held


def test_a_weak_reference_frees_the_values():
    deleted = torch.ones(1000)
    held = StorageWeakRef(deleted.untyped_storage())
    del deleted
    assert held.expired()


def test_module_move_calls_to_positionally_with_an_optional_dtype():
    module = torch.nn.Linear(2, 2)
    with Calls() as calls:
        module.to("cpu")
    moves = [(args, kwargs) for function, args, kwargs in calls.calls if function == torch.Tensor.to]
    assert len(moves) == 2
    for args, kwargs in moves:
        assert args[1:] == (torch.device("cpu"), None, False)
        assert kwargs == {}


def test_module_move_sets_data_on_the_same_parameter():
    module = torch.nn.Linear(2, 2)
    weight, before = module.weight, address(module.weight)
    with Calls() as calls:
        module.to(torch.float64)
    assert module.weight is weight
    assert address(module.weight) != before
    assert "torch.Tensor.data.__set__" in calls.names


def test_module_move_asks_whether_the_types_fit():
    module = torch.nn.Linear(2, 2)
    asked = []
    original = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda *pair: asked.append(pair) or original(*pair)
    try:
        module.to(torch.float64)
    finally:
        torch._has_compatible_shallow_copy_type = original
    assert len(asked) >= 2


def test_assigning_data_gives_a_fresh_version_counter_no_change():
    x = torch.nn.Parameter(torch.ones(3))
    before = x._version
    x.data = torch.zeros(3)
    assert x._version == before


def test_gradients_are_born_in_the_engine_out_of_sight_of_a_mode():
    layer = torch.nn.Linear(2, 1)
    loss = layer(torch.ones(1, 2)).sum()
    with Calls() as calls:
        loss.backward()
    assert layer.weight.grad is not None
    assert calls.names == ["torch.Tensor.backward"]


def test_a_zero_dimensional_cpu_tensor_mixes_with_another_device():
    mixed = torch.ones(2, device="meta") + torch.tensor(1.0)
    assert mixed.device.type == "meta"


def test_copy_may_mix_devices():
    target = torch.zeros(2)
    with Calls() as calls:
        target.copy_(torch.ones(2))
    assert calls.names[-1] == "torch.Tensor.copy_"
    torch.ones(2, device="meta").copy_(target)


def test_optimizer_state_is_made_like_its_parameter():
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.Adam([p])
    p.grad = torch.ones_like(p)
    with Calls() as calls:
        optimizer.step()
    assert "torch.zeros_like" in calls.names
    assert optimizer.state[p]["exp_avg"].dtype == torch.float64
