"""Faulty loops: gradients that are not zeroed, and gradients that are zeroed too early."""

import re

import pytest

LOOPS = {
    "zero_per_epoch": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    opt.zero_grad()  # <- GL301
    for x, y in DataLoader(TensorDataset(torch.randn(32, 5), torch.randint(0, 2, (32,))), 8):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
""",
    "zero_wrong_model": """\
import copy
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
ema = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    ema.zero_grad()
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    loss.backward()  # <- GL301
    opt.step()
""",
    "gan_d_never_zeroed": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    fake = G(torch.randn(4, 4))
    ld = F.softplus(D(fake.detach())).mean() + F.softplus(-D(torch.randn(4, 6))).mean()
    ld.backward()  # <- GL301
    od.step()
    og.zero_grad()
    lg = F.softplus(-D(fake)).mean()
    lg.backward()
    og.step()
""",
    "accum_never_zeroed": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,))), 4)):
    (F.cross_entropy(model(x), y) / 4).backward()  # <- GL301
    if (i + 1) % 4 == 0:
        opt.step()
""",
    "lbfgs_closure_no_zero": """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
x = torch.randn(16, 4)
opt = torch.optim.LBFGS(model.parameters(), max_iter=4)


def closure():
    loss = (model(x) - 1).pow(2).mean()
    loss.backward()  # <- GL301
    return loss


for i in range(4):
    opt.step(closure)
""",
    "optimizer_rebuilt_no_zero": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
for i in range(6):
    opt = torch.optim.SGD(model.parameters(), lr=0.1 / (i + 1))
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    loss.backward()  # <- GL301
    opt.step()
""",
    "zero_only_one_group": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
body, head = nn.Linear(5, 6), nn.Linear(6, 2)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for i in range(6):
    head.zero_grad()
    loss = F.cross_entropy(head(body(torch.randn(4, 5)).relu()), torch.randint(0, 2, (4,)))
    loss.backward()  # <- GL301
    opt.step()
""",
    "step_before_backward": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    opt.zero_grad()  # <- GL302
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    opt.step()
    loss.backward()
""",
    "zero_false_before_step": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    loss.backward()
    opt.zero_grad(set_to_none=False)  # <- GL302
    opt.step()
""",
    "zero_after_backward_in_function": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
def zero(m):
    for p in m.parameters():
        if p.grad is not None:
            p.grad.zero_()  # <- GL302


model = nn.Linear(5, 2)
opt = torch.optim.Adam(model.parameters())
for i in range(6):
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    loss.backward()
    zero(model)
    opt.step()
""",
    "accum_drop_last_epoch": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(44, 5), torch.randint(0, 2, (44,))), 4)
for epoch in range(3):
    opt.zero_grad()  # <- GL302
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "accum_zero_inside": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,))), 4)
for i, (x, y) in enumerate(loader):
    opt.zero_grad()  # <- GL302
    loss = F.cross_entropy(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        opt.step()
""",
    "rnn_zero_each_timestep": """\
import torch
from torch import nn
torch.manual_seed(0)
cell, head = nn.GRUCell(3, 6), nn.Linear(6, 1)
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for ep in range(5):
    h = torch.zeros(2, 6)
    for t in range(4):
        opt.zero_grad()  # <- GL302
        h = cell(torch.randn(2, 3), h)
        loss = head(h).pow(2).mean()
        loss.backward()
        h = h.detach()
    opt.step()
""",
}


MARK = re.compile(r"# <- (GL\d+)$")


@pytest.mark.parametrize("loop", LOOPS)
def test_the_fault_is_told_where_it_is(run, loop):
    lines = enumerate(LOOPS[loop].splitlines(), start=1)
    marked = [(mark[1], number) for number, line in lines if (mark := MARK.search(line))]
    assert marked
    assert run(LOOPS[loop]).found == marked


def test_an_accumulated_gradient_is_zeroed_after_the_step(run):
    fix = run(LOOPS["accum_never_zeroed"]).only("GL301").fix
    assert fix.startswith("call `opt.zero_grad()` after each `opt.step()`")
    assert "ignore[GL301]" in fix


def test_a_zero_grad_in_the_wrong_loop_is_pointed_at(run):
    found = run(LOOPS["zero_per_epoch"]).only("GL301")
    assert found.labels[0].text == "zeroes these gradients, but doesn't run between the two steps"
    assert "it runs too seldom" in found.fix


def test_a_zero_grad_of_other_parameters_is_pointed_at(run):
    for name, call in (("zero_wrong_model", "ema"), ("zero_only_one_group", "head")):
        found = run(LOOPS[name]).only("GL301")
        assert found.labels[-1].text == f"`{call}.zero_grad()` doesn't zero these gradients"
        assert f"not `{call}.zero_grad()`" in found.fix


def test_a_step_above_its_backward_is_moved(run):
    fix = run(LOOPS["step_before_backward"]).only("GL302").fix
    assert fix.startswith("call `opt.step()` (line 10) after `loss.backward()`")


def test_the_rest_of_an_epoch_is_counted(run):
    found = run(LOOPS["accum_drop_last_epoch"]).only("GL302")
    assert found.severity == "warning"
    assert "the gradients of 3 backwards" in found.message
