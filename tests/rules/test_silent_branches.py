"""Correct training loops on which the graph rules must stay silent: branches, states and odd graphs."""

import pytest

LOOPS = {
    "heads_that_take_turns": """\
import torch
from torch import nn
torch.manual_seed(0)
trunk = nn.Linear(4, 8)
heads = nn.ModuleList((nn.Linear(8, 1) for _ in range(3)))
opts = [torch.optim.Adam(trunk.parameters())] + [torch.optim.Adam(h.parameters()) for h in heads]
for i, task in enumerate([0, 1, 0, 1, 0]):
    for o in opts:
        o.zero_grad()
    loss = heads[task](trunk(torch.randn(5, 4)).relu()).pow(2).mean()
    loss.backward()
    for o in opts:
        o.step()
""",
    "step_before_the_scheduler": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.Linear(4, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
s = torch.optim.lr_scheduler.StepLR(o, 2)
with torch.no_grad():
    print(m(torch.randn(3, 4)).mean().item())
o.zero_grad()
o.step()
s.step()
for i in range(5):
    m(torch.randn(5, 4)).pow(2).mean().backward()
    o.step()
    o.zero_grad()
    s.step()
""",
    "lstm_state_detached": """\
import torch
from torch import nn
torch.manual_seed(0)
cell, head = (nn.LSTMCell(3, 5), nn.Linear(5, 1))
o = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
h = c = None
for i in range(6):
    losses = []
    for t in range(3):
        h, c = cell(torch.randn(4, 3), (h, c) if h is not None else None)
        losses.append(head(h).pow(2).mean())
    loss = sum(losses)
    o.zero_grad()
    loss.backward()
    o.step()
    h, c = (h.detach(), c.detach())
""",
    "gradient_reversal_function": """\
import torch
from torch import nn
torch.manual_seed(0)

class Rev(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g
F_, C, Dm = (nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2))
o = torch.optim.SGD([*F_.parameters(), *C.parameters(), *Dm.parameters()], lr=0.1)
for i in range(5):
    h = F_(torch.randn(8, 4)).relu()
    loss = nn.functional.cross_entropy(C(h), torch.randint(0, 2, (8,)))
    loss = loss + nn.functional.cross_entropy(Dm(Rev.apply(h)), torch.randint(0, 2, (8,)))
    o.zero_grad()
    loss.backward()
    o.step()
""",
    "straight_through_codes": """\
import torch
from torch import nn
torch.manual_seed(0)
E, Dc, cb = (nn.Linear(4, 3), nn.Linear(3, 4), nn.Embedding(8, 3))
o = torch.optim.Adam([*E.parameters(), *Dc.parameters(), *cb.parameters()])
for i in range(5):
    x = torch.randn(16, 4)
    z = E(x)
    idx = torch.cdist(z, cb.weight).argmin(1)
    q = cb(idx)
    loss = (q - z.detach()).pow(2).mean() + 0.25 * (z - q.detach()).pow(2).mean()
    q = z + (q - z).detach()
    loss = loss + (Dc(q) - x).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
""",
    "heads_in_two_phases": """\
import torch
from torch import nn
torch.manual_seed(0)
m = nn.ModuleDict({'enc': nn.Linear(4, 6), 'a': nn.Linear(6, 1), 'b': nn.Linear(6, 1)})
o = torch.optim.Adam(m.parameters())
for i in range(12):
    h = m['enc'](torch.randn(5, 4)).relu()
    loss = m['a' if i < 6 else 'b'](h).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_said(run, loop):
    assert run(LOOPS[loop]).found == []
