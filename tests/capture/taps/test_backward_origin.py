"""Who asked for a backward, and which backward built a node of a gradient's own graph."""

import torch
from torch import nn

from graphlint.record.events import Backward


def test_what_torch_asks_for_by_itself_is_told(record, events) -> None:
    layer = nn.Linear(2, 1)

    def work() -> None:
        layer(torch.ones(1, 2)).sum().backward()
        torch.autograd.backward(layer(torch.ones(1, 2)).sum())
        torch.autograd.grad(layer(torch.ones(1, 2)).sum(), layer.weight)
        torch.autograd.functional.jacobian(lambda x: layer(x).sum(), torch.ones(1, 2))

    for level in ("full", "watch"):
        backwards = events(record(work, level), Backward)
        assert [backward.by_torch for backward in backwards] == [False, False, False, True]


def test_the_nodes_of_a_gradients_graph_name_the_backward_that_built_them(record, events) -> None:
    def work() -> None:
        x = torch.ones(2, requires_grad=True)
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        slope.sum().backward()

    trace = record(work)
    first, second = events(trace, Backward)
    builders = {node.op for node in trace.graphs[second.graph].nodes if node.leaf is None}
    assert first.serial in builders
    assert not second.visits
    sites = {node.site for node in trace.graphs[second.graph].nodes if node.op == first.serial}
    assert sites == {first.site}
