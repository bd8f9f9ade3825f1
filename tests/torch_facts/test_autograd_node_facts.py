"""What graphlint believes about autograd nodes; one test per belief, so that a new torch points at it."""

import gc
import threading
import weakref

import pytest
import torch
from torch.autograd.function import BackwardCFunction

LEAF_NUMBER = 2**64 - 1
FREED = "backward through the graph a second time"


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


def next_number() -> int:
    return torch.autograd._get_sequence_nr()


def previous(node):
    return [target for target, _ in node.next_functions if target is not None]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (_,) = ctx.saved_tensors
        return grad * 2


# Sequence numbers


def test_counter_gives_the_number_of_the_next_node():
    x = leaf(3)
    expected = next_number()
    y = x.exp()
    assert y.grad_fn._sequence_nr() == expected
    assert next_number() == expected + 1


def test_one_composite_call_builds_a_run_of_consecutive_numbers():
    x = leaf(4, 3)
    first = next_number()
    loss = torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.long))
    last = next_number()
    numbers = {loss.grad_fn._sequence_nr(), *(node._sequence_nr() for node in previous(loss.grad_fn))}
    assert numbers == set(range(first, last))
    assert len(numbers) == 2


def test_calls_without_a_gradient_take_no_number():
    x = leaf(3)
    before = next_number()
    with torch.no_grad():
        x.exp()
    torch.ones(3).exp()
    x.detach()
    x.to("cpu")
    assert next_number() == before


def test_accumulate_grad_has_the_largest_number():
    (accumulate,) = previous(leaf(3).exp().grad_fn)
    assert accumulate.name() == "torch::autograd::AccumulateGrad"
    assert accumulate._sequence_nr() == LEAF_NUMBER


def test_accumulate_grad_knows_its_leaf():
    x = leaf(3)
    (accumulate,) = previous(x.exp().grad_fn)
    assert accumulate.variable is x


def test_nodes_of_a_double_backward_take_numbers_when_the_first_backward_runs():
    x = leaf(3)
    loss = x.pow(3).sum()
    before = next_number()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    assert before <= gradient.grad_fn._sequence_nr() < next_number()


def test_node_of_a_custom_function_takes_its_number_before_forward_runs():
    seen = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(next_number())
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    expected = next_number()
    assert Spy.apply(leaf(3)).grad_fn._sequence_nr() == expected
    assert seen == [expected + 1]


def test_counter_is_per_thread():
    leaf(3).exp()
    mine = next_number()
    theirs = []

    def other():
        leaf(3).exp()
        theirs.append(next_number())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert theirs == [1]
    assert next_number() == mine


# Metadata and identity


def test_metadata_lives_with_the_node_and_not_with_its_wrapper():
    y = leaf(3).exp()
    y.grad_fn.metadata["stamp"] = 17
    z = y.sum()
    del y
    gc.collect()
    (node,) = previous(z.grad_fn)
    assert node.metadata == {"stamp": 17}


def test_metadata_holds_no_reference_to_the_node():
    class Stamp:
        pass

    stamp = Stamp()
    alive = weakref.ref(stamp)
    y = leaf(3).exp()
    y.grad_fn.metadata["stamp"] = stamp
    del stamp, y
    assert alive() is None


def test_metadata_survives_the_backward_that_frees_the_node():
    y = leaf(3).exp()
    y.grad_fn.metadata["stamp"] = 1
    y.sum().backward()
    assert y.grad_fn.metadata == {"stamp": 1}


def test_accumulate_grad_and_custom_nodes_carry_metadata():
    y = Double.apply(leaf(3))
    for node in (y.grad_fn, *previous(y.grad_fn)):
        node.metadata["stamp"] = 1
        assert node.metadata == {"stamp": 1}


def test_metadata_of_accumulate_grad_is_lost_when_its_last_graph_goes():
    x = leaf(3)
    y = x.exp()
    previous(y.grad_fn)[0].metadata["stamp"] = 1
    del y
    assert previous(x.exp().grad_fn)[0].metadata == {}


def test_nodes_refuse_weak_references():
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(leaf(3).exp().grad_fn)


def test_addresses_of_nodes_are_reused():
    addresses = [id(leaf(3).exp().grad_fn) for _ in range(100)]
    assert len(set(addresses)) < len(addresses)


def test_two_reads_of_a_node_compare_equal_while_it_is_held():
    y = leaf(3).exp()
    z = y.sum()
    assert previous(z.grad_fn)[0] is y.grad_fn
    assert len({previous(z.grad_fn)[0], y.grad_fn}) == 1


def test_holding_a_node_holds_its_graph():
    x = leaf(3)
    hidden = x * 2
    alive = weakref.ref(hidden.grad_fn.metadata.setdefault("stamp", threading.Event()))
    node = hidden.exp().sum().grad_fn
    del hidden
    assert alive() is not None
    del node
    assert alive() is None


def test_input_metadata_describes_the_output_of_a_node():
    y = leaf(2, 3).exp()
    (described,) = y.grad_fn._input_metadata
    assert tuple(described.shape) == (2, 3)
    assert described.dtype == torch.float32
    assert described.device == torch.device("cpu")


# Freed state


def test_saved_tensors_of_a_freed_node_raise():
    y = leaf(3).exp()
    y.sum().backward()
    with pytest.raises(RuntimeError, match=FREED):
        _ = y.grad_fn._saved_result


def test_raw_saved_tensors_of_a_freed_node_do_not_raise():
    y = leaf(3).exp()
    y.sum().backward()
    assert y.grad_fn._raw_saved_result is not None


def test_saved_tensors_of_a_freed_custom_function_raise():
    y = Double.apply(leaf(3))
    y.sum().backward()
    with pytest.raises(RuntimeError, match=FREED):
        _ = y.grad_fn.saved_tensors


def test_reading_a_saved_tensor_runs_the_unpack_hooks():
    unpacked = []

    def unpack(value):
        unpacked.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = leaf(3).exp()
    _ = y.grad_fn._raw_saved_result
    assert unpacked == []
    _ = y.grad_fn._saved_result
    assert len(unpacked) == 1


def test_reading_a_saved_tensor_runs_the_version_check():
    x = leaf(3)
    y = x.exp()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _ = y.grad_fn._saved_result
    assert y.grad_fn._raw_saved_result is not None


def test_names_of_saved_tensors_are_attributes_of_the_type():
    node = torch.nn.functional.linear(leaf(2, 3), leaf(4, 3), leaf(4)).grad_fn
    assert {name for name in dir(node) if name.startswith("_raw_saved_")} == {
        "_raw_saved_mat1",
        "_raw_saved_mat2",
    }


SAVES_NOTHING = {
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "cat": lambda x: torch.cat([x, x]),
    "view": lambda x: x.view(1, 3),
    "to": lambda x: x.to(torch.float64),
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("name", SAVES_NOTHING)
def test_second_backward_is_silent_through_nodes_that_save_nothing(name):
    x = leaf(3)
    result = SAVES_NOTHING[name](x)
    assert not [saved for saved in dir(result.grad_fn) if saved.startswith("_raw_saved_")]
    result.sum().backward()
    once = x.grad.clone()
    result.sum().backward()
    assert torch.equal(x.grad, 2 * once)


@pytest.mark.parametrize(
    "function", [torch.exp, torch.sigmoid, lambda x: x * x, lambda x: x * 2.0, Double.apply]
)
def test_second_backward_raises_where_something_was_saved(function):
    y = function(leaf(3))
    y.sum().backward()
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


def test_a_backward_that_raises_at_a_freed_node_fills_no_leaf_behind_it():
    x = leaf(3)
    y = x.exp()
    y.sum().backward()
    x.grad = None
    with pytest.raises(RuntimeError, match=FREED):
        (y + 1).sum().backward()
    assert x.grad is None


def test_custom_nodes_are_instances_of_one_class():
    assert isinstance(Double.apply(leaf(3)).grad_fn, BackwardCFunction)
    assert not isinstance(leaf(3).exp().grad_fn, BackwardCFunction)


# Moves and in-place changes


def test_a_real_cast_builds_a_copy_node():
    assert leaf(3).to(torch.float64).grad_fn.name() == "ToCopyBackward0"


def test_a_move_to_the_same_device_builds_no_node():
    x = leaf(3)
    assert x.to("cpu") is x
    assert x.cpu() is x


def test_saved_parameter_of_a_linear_layer_is_checked_by_version():
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(leaf(2, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_write_through_data_escapes_the_version_counter():
    x = leaf(3)
    y = x.exp()
    before = y._version
    y.data.zero_()
    assert y._version == before
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def test_a_detached_alias_shares_the_version_counter():
    x = leaf(3).exp()
    before = x._version
    x.detach().add_(1)
    assert x._version == before + 1


def test_batch_norm_statistics_change_without_a_failing_check():
    norm = torch.nn.BatchNorm1d(3)
    first = norm(torch.randn(4, 3))
    second = norm(torch.randn(4, 3))
    (first.sum() + second.sum()).backward()
    assert norm.weight.grad is not None
