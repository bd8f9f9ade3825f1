"""Correct training loops on which the graph rules must stay silent: gradients and weights handled by hand."""

import pytest

LOOPS = {
    "momentum_encoder_by_assignment_to_data": """\
import copy, torch
from torch import nn
torch.manual_seed(0)

class Moco(nn.Module):

    def __init__(s):
        super().__init__()
        s.q = nn.Linear(4, 3)
        s.k = copy.deepcopy(s.q)

    def forward(s, x):
        q = s.q(x)
        with torch.no_grad():
            for a, b in zip(s.q.parameters(), s.k.parameters()):
                b.data = b.data * 0.9 + a.data * 0.1
            k = s.k(x)
        return (q - k).pow(2).mean() + q.mean()
m = Moco()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(6):
    l = m(torch.randn(8, 4))
    o.zero_grad()
    l.backward()
    o.step()
""",
    "gradients_made_by_hand": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(8):
    o.zero_grad()
    with torch.no_grad():
        base = m(torch.randn(5, 4)).pow(2).mean()
        for p in m.parameters():
            p.grad = torch.randn_like(p) * base
    o.step()
""",
    "optimizer_in_backward_hooks": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
od = {p: torch.optim.SGD([p], lr=0.1, foreach=False) for p in m.parameters()}

def hook(p):
    od[p].step()
    od[p].zero_grad()
for p in m.parameters():
    p.register_post_accumulate_grad_hook(hook)
for i in range(6):
    m(torch.randn(5, 4)).pow(2).mean().backward()
""",
    "gradients_collected_per_loss": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Linear(4, 2)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(5):
    y = m(torch.randn(8, 4))
    losses = [y[:, 0].pow(2).mean(), y[:, 1].abs().mean()]
    gs = []
    for l in losses:
        o.zero_grad()
        l.backward(retain_graph=True)
        gs.append([p.grad.clone() for p in m.parameters()])
    o.zero_grad()
    for p, *g in zip(m.parameters(), *gs):
        p.grad = sum(g)
    o.step()
""",
    "binarized_weights_restored": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
o = torch.optim.Adam(m.parameters())
for i in range(5):
    saved = [p.data.clone() for p in m.parameters()]
    for p in m.parameters():
        p.data.copy_(p.data.sign() * p.data.abs().mean())
    loss = m(torch.randn(8, 4)).pow(2).mean()
    o.zero_grad()
    loss.backward()
    for p, s in zip(m.parameters(), saved):
        p.data.copy_(s)
    o.step()
    for p in m.parameters():
        p.data.clamp_(-1, 1)
""",
    "first_order_meta_learning": """\
import copy, torch
from torch import nn
torch.manual_seed(0)
m = nn.Linear(4, 1)
o = torch.optim.Adam(m.parameters())
for i in range(5):
    f = copy.deepcopy(m)
    io = torch.optim.SGD(f.parameters(), lr=0.1)
    for _ in range(3):
        io.zero_grad()
        f(torch.randn(8, 4)).pow(2).mean().backward()
        io.step()
    loss = (f(torch.randn(8, 4)) - 1).pow(2).mean()
    g = torch.autograd.grad(loss, list(f.parameters()))
    for p, gg in zip(m.parameters(), g):
        p.grad = gg
    o.step()
    o.zero_grad()
""",
    "sharpness_aware_by_hand": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(5):
    x = torch.randn(8, 4)
    m(x).pow(2).mean().backward()
    es = []
    with torch.no_grad():
        for p in m.parameters():
            e = 0.05 * p.grad / p.grad.norm()
            p.add_(e)
            es.append(e)
    o.zero_grad()
    m(x).pow(2).mean().backward()
    with torch.no_grad():
        for p, e in zip(m.parameters(), es):
            p.sub_(e)
    o.step()
    o.zero_grad()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_said(run, loop):
    assert run(LOOPS[loop]).found == []
