import pytest

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
net, head = nn.Linear(4, 3), nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(5, 4)
{cut}
loss = head(h).sum()
loss.backward()
optimizer.step()
"""

CUTS = {
    "detach": ("h = net(x).detach()", 8),
    "data": ("h = net(x).data", 8),
    "no-grad": ("with torch.no_grad():\n    h = net(x)", 9),
    "comparison": ("h = net(x).relu()\nh = (h > 0).float()", 9),
    "integer": ("h = nn.functional.one_hot(net(x).argmax(1), 3).float()", 8),
    "host": ("h = torch.tensor(net(x).tolist(), requires_grad=True)", 8),
    "rewrapped": ("h = torch.tensor(net(x))", 8),
    "derivative": ("x.requires_grad_()\nh = torch.autograd.grad(net(x).pow(2).sum(), x)[0][:, :3]", 9),
}


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_each_kind_of_cut_is_told_with_its_line(run, kind):
    code, line = CUTS[kind]
    facts = run(SCRIPT.format(cut=code))
    (backward,) = [b for b in facts.graphs.backwards if b.call == "Tensor.backward"]
    parameters = facts.gradients.parameters(0)
    connection = facts.reach.connection(backward, parameters)
    assert connection.used == set(parameters)
    assert not connection.carried
    assert {cut.kind for cut in connection.cuts} == {kind}
    assert {facts.graphs.frame(cut.site).line for cut in connection.cuts} == {line}


def test_a_whole_graph_has_no_cut(run):
    facts = run(SCRIPT.format(cut="h = net(x).relu().view(5, 3).clone()"))
    connection = facts.reach.connection(facts.graphs.backwards[0], facts.gradients.parameters(0))
    assert connection.carried
    assert connection.cuts == ()


def test_no_values_no_cut(run):
    facts = run(SCRIPT.format(cut="h = torch.randn(5, 3)"))
    connection = facts.reach.connection(facts.graphs.backwards[0], facts.gradients.parameters(0))
    assert connection.used == frozenset()
    assert connection.complete


def test_frozen_parameters_are_no_cut(run):
    facts = run(SCRIPT.format(cut="net.requires_grad_(False)\nh = net(x)"))
    connection = facts.reach.connection(facts.graphs.backwards[0], facts.gradients.parameters(0))
    assert connection.frozen == connection.used == set(facts.gradients.parameters(0))
    assert connection.cuts == ()
