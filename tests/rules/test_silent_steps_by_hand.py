"""Correct loops in which gradients are looked at, cleared or made by hand, before they are stepped."""

import pytest

LOOPS = {
    "pgd_adversarial": """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def attack(model, x, y):
    delta = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_(True)
    for _ in range(3):
        loss = criterion(model(x + delta), y)
        loss.backward()
        delta.data = (delta + 0.05 * delta.grad.sign()).clamp(-0.1, 0.1).data
        delta.grad.zero_()
    return delta.detach()


for x, y in DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 2, (40,))), 8):
    delta = attack(model, x, y)
    opt.zero_grad()
    loss = criterion(model(x + delta), y)
    loss.backward()
    opt.step()
""",
    "fgsm_same_line": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x, y = torch.randn(8, 6), torch.randint(0, 2, (8,))
    for phase in ("attack", "train"):
        x = x.detach().requires_grad_(True)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if phase == "attack":
            x = x + 0.1 * x.grad.sign()
        else:
            opt.step()
""",
    "pcgrad": """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(6, 3)
opt = torch.optim.Adam(model.parameters())


def flat(params):
    return torch.cat([p.grad.detach().clone().flatten() for p in params])


for i in range(6):
    out = model(torch.randn(8, 6))
    grads = []
    for k in range(3):
        opt.zero_grad(set_to_none=True)
        out[:, k].pow(2).mean().backward(retain_graph=True)
        grads.append(flat(list(model.parameters())))
    merged = sum(grads)
    opt.zero_grad(set_to_none=True)
    offset = 0
    for p in model.parameters():
        p.grad = merged[offset:offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    opt.step()
""",
    "reptile": """\
import copy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
meta = torch.optim.Adam(model.parameters())
for i in range(5):
    fast = copy.deepcopy(model)
    inner = torch.optim.SGD(fast.parameters(), lr=0.1)
    for _ in range(3):
        loss = fast(torch.randn(8, 4)).pow(2).mean()
        inner.zero_grad()
        loss.backward()
        inner.step()
    meta.zero_grad()
    for p, q in zip(model.parameters(), fast.parameters()):
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.data.add_(p.data - q.data)
    meta.step()
""",
    "fp16_master": """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 2).bfloat16()
master = [p.detach().clone().float().requires_grad_(True) for p in model.parameters()]
opt = torch.optim.SGD(master, lr=0.1)
for i in range(8):
    model.zero_grad()
    loss = model(torch.randn(8, 4).bfloat16()).float().pow(2).mean()
    loss.backward()
    for m, p in zip(master, model.parameters()):
        if m.grad is None:
            m.grad = torch.empty_like(m)
        m.grad.data.copy_(p.grad.data)
    opt.step()
    for m, p in zip(master, model.parameters()):
        p.data.copy_(m.data)
""",
    "dino_cancel_last_layer": """\
import copy
import torch
from torch import nn
torch.manual_seed(0)
student = nn.ModuleDict({"backbone": nn.Linear(6, 4), "last": nn.Linear(4, 3, bias=False)})
teacher = copy.deepcopy(student).requires_grad_(False)
opt = torch.optim.AdamW(student.parameters())
for epoch in range(2):
    for i in range(4):
        x = torch.randn(8, 6)
        with torch.no_grad():
            t = (teacher["last"](teacher["backbone"](x)) / 0.04).softmax(-1)
        loss = -(t * (student["last"](student["backbone"](x)) / 0.1).log_softmax(-1)).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        if epoch == 0:
            for n, p in student.named_parameters():
                if "last" in n:
                    p.grad = None
        opt.step()
        with torch.no_grad():
            for p, q in zip(student.parameters(), teacher.parameters()):
                q.data.mul_(0.99).add_(0.01 * p.detach().data)
""",
    "optimizer_in_backward_set_false": """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
opts = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


def hook(p):
    opts[p].step()
    opts[p].zero_grad(set_to_none=False)


for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for i in range(6):
    model(torch.randn(5, 4)).pow(2).mean().backward()
""",
    "custom_optimizer_zeroes": """\
import torch
from torch import nn
torch.manual_seed(0)
class ZSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-g["lr"])
                    p.grad.zero_()


model = nn.Linear(4, 1)
opt = ZSGD(model.parameters(), 0.1)
for i in range(8):
    model(torch.randn(5, 4)).pow(2).mean().backward()
    opt.step()
""",
    "custom_optimizer_nones": """\
import torch
from torch import nn
torch.manual_seed(0)
class NSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-g["lr"])
                    p.grad = None


model = nn.Linear(4, 1)
opt = NSGD(model.parameters(), 0.1)
for i in range(8):
    model(torch.randn(5, 4)).pow(2).mean().backward()
    opt.step()
""",
    "ewc_fisher_watch": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(x, y):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    return loss


for i in range(10):
    loss_of(torch.randn(8, 4), torch.randint(0, 2, (8,)))
    opt.step()
fisher = [torch.zeros_like(p) for p in model.parameters()]
for k in range(5):
    loss_of(torch.randn(1, 4), torch.randint(0, 2, (1,)))
    for f, p in zip(fisher, model.parameters()):
        f += p.grad.detach() ** 2 / 5
""",
    "dpsgd_naive": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x, y = torch.randn(4, 4), torch.randint(0, 2, (4,))
    for p in model.parameters():
        p.accumulated = torch.zeros_like(p)
    for k in range(4):
        F.cross_entropy(model(x[k:k + 1]), y[k:k + 1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            p.accumulated.add_(p.grad)
        model.zero_grad()
    for p in model.parameters():
        p.grad = p.accumulated / 4 + 0.01 * torch.randn_like(p)
    opt.step()
    opt.zero_grad()
""",
    "backtracking_retry": """\
import copy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1.0)
x = torch.randn(16, 4)
for i in range(6):
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    saved = copy.deepcopy(model.state_dict())
    opt.step()
    with torch.no_grad():
        worse = model(x).pow(2).mean() >= 0
    if worse:
        model.load_state_dict(saved)
        opt.param_groups[0]["lr"] *= 0.5
        opt.step()
""",
    "flat_gradient_buffer": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
flat = torch.zeros(sum(p.numel() for p in model.parameters()))
offset = 0
for p in model.parameters():
    p.grad = flat[offset:offset + p.numel()].view_as(p)
    offset += p.numel()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    flat.zero_()
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    opt.step()
""",
    "momentum_by_hand": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(0.9)
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    opt.step()
""",
    "grad_norm_sampling": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def compute(x, y):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return sum(p.grad.norm() ** 2 for p in model.parameters()).item()


for i in range(6):
    batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)]
    norms = [compute(*b) for b in batches]
    compute(*batches[norms.index(max(norms))])
    opt.step()
""",
    "lookahead_wrapper": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=3, alpha=0.5):
        self.base = base
        self.param_groups = base.param_groups
        self.defaults = base.defaults
        self.state = base.state
        self.k, self.alpha, self.n = k, alpha, 0
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.n += 1
        if self.n % self.k == 0:
            for s, p in zip(self.slow, (p for g in self.param_groups for p in g["params"])):
                s.add_(self.alpha * (p.data - s))
                p.data.copy_(s)
        return loss


model = nn.Linear(4, 2)
opt = Lookahead(torch.optim.Adam(model.parameters()))
for i in range(8):
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    opt.step()
""",
    "snip_pruning_before_training": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for k in range(3):
    model.zero_grad()
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
scores = [(p.grad * p).abs() for p in model.parameters()]
masks = [(s > s.median()).float() for s in scores]
for i in range(8):
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    for p, m in zip(model.parameters(), masks):
        p.grad *= m
    opt.step()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_said(run, loop):
    assert run(LOOPS[loop]).found == []
