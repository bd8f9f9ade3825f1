"""Graphs as each backward was given them: lines, freed nodes, what was executed."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphlint.capture.graphs import SequenceLog, Walk, executed_indexes
from graphlint.capture.registry import WeakNumbers
from graphlint.record.events import Backward, CaptureFault, Op

FREED = "backward through the graph a second time"


def lines_of_nodes(trace, backward):
    nodes = trace.graphs[backward.graph].nodes
    return {
        node.name: None if node.site is None else trace.sites[node.site].frames[0].line
        for node in nodes
        if node.leaf is None
    }


def test_every_node_has_the_line_that_built_it(record, events, line_of) -> None:
    def work() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        y = x.exp()  # exp
        z = torch.nn.functional.layer_norm(y, (3,))  # norm
        z.sum().backward()  # sum

    trace = record(work)
    (backward,) = events(trace, Backward)
    assert lines_of_nodes(trace, backward) == {
        "SumBackward0": line_of("sum"),
        "NativeLayerNormBackward0": line_of("norm"),
        "ExpBackward0": line_of("exp"),
    }
    assert trace.sites[backward.site].frames[0].line == line_of("sum")


def test_composite_and_custom_functions_give_all_their_nodes_one_line(record, events, line_of) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def work() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        y = Twice.apply(x)  # custom
        loss = nn.functional.cross_entropy(y, torch.tensor([0, 1]))  # composite
        loss.backward()

    trace = record(work)
    (backward,) = events(trace, Backward)
    found = lines_of_nodes(trace, backward)
    assert found.pop("TwiceBackward") == line_of("custom")
    assert found == {"NllLossBackward0": line_of("composite"), "LogSoftmaxBackward0": line_of("composite")}
    (custom,) = [node for node in trace.graphs[backward.graph].nodes if node.custom]
    assert custom.custom == "Twice"
    (op,) = [event for event in events(trace, Op) if event.name == "Twice.apply"]
    assert custom.op == op.serial


@pytest.mark.parametrize("reentrant", [True, False])
def test_nodes_of_a_checkpointed_block_have_lines(record, events, reentrant) -> None:
    layer = nn.Linear(3, 3)

    def work() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(layer, x * 1.5, use_reentrant=reentrant).sum().backward()

    trace = record(work)
    outer = [event for event in events(trace, Backward) if not event.nested]
    assert len(outer) == 1
    assert None not in lines_of_nodes(trace, outer[0]).values()
    assert len(events(trace, Backward)) == (2 if reentrant else 1)


def test_modules_of_nodes(record, events) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def work() -> None:
        net(torch.ones(1, 2)).sum().backward()

    trace = record(work)
    (backward,) = events(trace, Backward)
    modules = {
        node.name: trace.modules[node.module].type if node.module is not None else None
        for node in trace.graphs[backward.graph].nodes
        if node.leaf is None
    }
    assert modules["AddmmBackward0"] == "Linear"
    assert modules["TanhBackward0"] == "Tanh"
    assert modules["SumBackward0"] is None


def test_a_second_backward_meets_freed_nodes(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.sum().backward()
        with pytest.raises(RuntimeError, match=FREED):
            (y * 2).sum().backward()

    trace = record(work)
    first, second = events(trace, Backward)
    assert first.visits == ()
    (visit,) = second.visits
    assert (visit.backward, visit.freed) == (first.serial, True)
    graph = trace.graphs[second.graph]
    assert graph.nodes[visit.index].name == "ExpBackward0"
    assert graph.nodes[visit.index].id == visit.node
    assert visit.node in {node.id for node in trace.graphs[first.graph].nodes}
    assert second.error_type == "RuntimeError"
    assert FREED in second.error


def test_a_retained_graph_is_visited_and_not_freed(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match=FREED):
            y.backward()

    first, second, third = events(record(work), Backward)
    assert first.retain_graph
    assert {(visit.backward, visit.freed) for visit in second.visits} == {(first.serial, False)}
    assert {(visit.backward, visit.freed) for visit in third.visits} == {(second.serial, True)}


def test_grad_with_inputs_runs_and_frees_only_what_leads_there(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        w = torch.ones(2, requires_grad=True)
        left, right = x.exp(), w.exp()
        both = left + right
        torch.autograd.grad(both.sum(), x)
        right.sum().backward()
        with pytest.raises(RuntimeError, match=FREED):
            left.sum().backward()

    trace = record(work)
    grad, right, left = events(trace, Backward)
    assert grad.call == "autograd.grad"
    names = [trace.graphs[grad.graph].nodes[index].name for index in grad.executed]
    assert sorted(names) == ["AccumulateGrad", "AddBackward0", "ExpBackward0", "SumBackward0"]
    assert grad.reached == ()
    assert right.visits == ()
    assert [visit.freed for visit in left.visits] == [True]


def test_backward_with_inputs_fills_those_alone(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        w = torch.ones(2, requires_grad=True)
        (x * w).sum().backward(inputs=[x])
        assert w.grad is None

    trace = record(work)
    (backward,) = events(trace, Backward)
    assert backward.reached == backward.targets
    assert len(backward.reached) == 1


def test_a_target_inside_the_graph_is_not_run(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        z = y.sin().sum()
        torch.autograd.grad(z, y)
        y.sum().backward()

    trace = record(work)
    grad, later = events(trace, Backward)
    names = sorted(trace.graphs[grad.graph].nodes[index].name for index in grad.executed)
    assert names == ["SinBackward0", "SumBackward0"]
    assert later.visits == ()


def test_a_backward_that_fails_has_freed_what_it_ran_before(record, events) -> None:
    def work() -> None:
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        first, second = x.exp(), y.exp()
        both = first.sum() + second.sum()
        first.sum().backward()
        with pytest.raises(RuntimeError, match=FREED):
            both.backward()
        with pytest.raises(RuntimeError, match=FREED):
            second.sum().backward()

    trace = record(work)
    first, both, second = events(trace, Backward)
    assert [(visit.backward, visit.freed) for visit in both.visits] == [(first.serial, True)]
    (visit,) = second.visits
    assert (visit.backward, visit.freed) == (both.serial, True)
    assert trace.graphs[second.graph].nodes[visit.index].name == "ExpBackward0"


def test_a_backward_that_fails_in_a_table_read_by_index(record, events) -> None:
    """A node that saves a list of tensors refuses to show it once it is freed."""

    def work() -> None:
        table = torch.ones(4, 2, requires_grad=True).exp()
        rows = table[torch.tensor([0, 2])]
        rows.sum().backward()
        with pytest.raises(RuntimeError, match=FREED):
            rows.mean().backward()

    trace = record(work)
    assert not events(trace, CaptureFault)
    first, again = events(trace, Backward)
    names = {trace.graphs[again.graph].nodes[v.index].name for v in again.visits if v.freed}
    assert {visit.backward for visit in again.visits} == {first.serial}
    assert names == {"IndexBackward0", "ExpBackward0"}


def test_a_backward_that_fails_has_not_freed_what_it_did_not_reach(record, events) -> None:
    def work() -> None:
        x = torch.ones(3, requires_grad=True)
        deep = x.exp()
        middle = deep.sin()
        with torch.no_grad():
            deep.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            middle.cos().sum().backward()
        x.exp().sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            middle.sum().backward()

    trace = record(work)
    failed, _, again = events(trace, Backward)
    assert failed.error_type == "RuntimeError"
    assert {visit.freed for visit in again.visits} == {False}


def test_a_failed_backward_that_retains_frees_nothing(record, events) -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no")

    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = Bad.apply(x).exp().sum()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                y.backward(retain_graph=True)
        with pytest.raises(ValueError, match="no"):
            y.backward()
        with pytest.raises(RuntimeError, match=FREED):
            y.backward()

    failed = events(record(work), Backward)
    freed = [{visit.freed for visit in backward.visits} for backward in failed]
    assert freed[:3] == [set(), {False}, {False}]
    assert True in freed[3]


def test_double_backward(record, events) -> None:
    weight = nn.Parameter(torch.ones(2))

    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        y = (x * weight).pow(3).sum()
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        grad.norm().backward()

    trace = record(work)
    grad, outer = events(trace, Backward)
    assert (grad.create_graph, grad.retain_graph, outer.create_graph) == (True, True, False)
    assert len(grad.outputs) == 1
    assert {visit.freed for visit in outer.visits} == {False}
    assert {visit.backward for visit in outer.visits} == {grad.serial}


def test_leaves_that_held_a_gradient(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
        (x * 2).sum().backward()

    first, second = events(record(work), Backward)
    assert first.accumulated == ()
    assert second.accumulated == second.reached == first.reached


def test_backward_of_a_leaf_and_without_a_graph(record, events) -> None:
    def work() -> None:
        x = torch.ones(1, requires_grad=True)
        x.backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()

    leaf, bare = events(record(work), Backward)
    assert leaf.reached == leaf.roots
    assert bare.reached == ()
    assert bare.error is not None


def test_a_deep_graph_is_walked_without_recursion(record, events) -> None:
    def work() -> None:
        x = y = torch.ones(1, requires_grad=True)
        for _ in range(4000):
            y = y + 1
        y.backward()
        assert x.grad is not None

    (backward,) = events(record(work, "watch"), Backward)
    assert backward.nodes == 4001


def test_walk_edges_and_shape() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = (x * x).sum()
    walk = Walk([loss.grad_fn])
    assert walk.edges == [(0, 1), (1, 2), (1, 2)]
    assert [index for index, _ in walk.leaves] == [2]
    shape = walk.shape(WeakNumbers().find)
    assert Walk([(x * x).sum().grad_fn]).has(shape)
    assert not Walk([(x + x).sum().grad_fn]).has(shape)
    assert not Walk([(x * x).mean().grad_fn]).has(shape)
    wider = torch.ones(3, requires_grad=True)
    assert not Walk([(wider * wider).sum().grad_fn]).has(shape)


def test_a_parameter_is_a_leaf_by_its_number() -> None:
    numbers = WeakNumbers()
    weight, other, unknown = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    numbers.add(weight)
    numbers.add(other)
    shape = Walk([(weight * 2).grad_fn]).shape(numbers.find)
    assert Walk([(weight * 2).grad_fn]).has(shape)
    assert not Walk([(other * 2).grad_fn]).has(shape)
    assert not Walk([(unknown * 2).grad_fn]).has(Walk([(unknown * 2).grad_fn]).shape(numbers.find))


def test_executed_indexes_without_targets_is_all() -> None:
    x = torch.ones(2, requires_grad=True)
    walk = Walk([(x * x).sum().grad_fn])
    assert executed_indexes(walk, [], []) is None
    assert executed_indexes(walk, [], [x]) == (0, 1, 2)


def test_sequence_log_finds_the_call_of_a_number() -> None:
    log = SequenceLog()
    log.add(3, 5, 10, 1, None)
    log.add(7, 8, 11, 2, (4, 9))
    assert log.find(2) is None
    assert log.find(3) == log.find(4) == (10, 1, None, None)
    assert log.find(5) is None
    assert log.find(7) == (11, 2, 4, 9)
    assert log.find(2**64 - 1) is None
