"""Correct training loops in the manner of public repositories, on which every rule must stay silent."""

import pytest

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.testing import run_example

LOOPS = {
    "GradNorm writes the weights' gradient by hand": """\
import torch
from torch import nn
trunk = nn.Linear(4, 6)
heads = nn.ModuleList([nn.Linear(6, 1) for _ in range(2)])
w = nn.Parameter(torch.ones(2))
opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
wopt = torch.optim.Adam([w], 0.025)
init = None
for i in range(4):
    h = trunk(torch.randn(5, 4)).tanh()
    L = torch.stack([(hd(h) - k).pow(2).mean() for k, hd in enumerate(heads)])
    if init is None:
        init = L.detach()
    opt.zero_grad()
    (w * L).sum().backward(retain_graph=True)
    w.grad.data = w.grad.data * 0.0
    grads = [torch.autograd.grad(L[k], trunk.weight, retain_graph=True)[0] for k in range(2)]
    norms = torch.stack([torch.norm(w[k] * grads[k]) for k in range(2)])
    r = L.detach() / init
    target = (norms.mean() * (r / r.mean()) ** 0.12).detach()
    gl = (norms - target).abs().sum()
    w.grad = torch.autograd.grad(gl, w)[0]
    opt.step()
    wopt.step()
    with torch.no_grad():
        w.data = 2 * w.data / w.data.sum()
""",
    "a worker lends its gradients to a shared model": """\
import torch
from torch import nn
shared = nn.Linear(4, 2)
opt = torch.optim.Adam(shared.parameters(), 0.001)
local = nn.Linear(4, 2)

def ensure_shared_grads(model, shared_model):
    for param, shared_param in zip(model.parameters(), shared_model.parameters()):
        if shared_param.grad is not None:
            return
        shared_param._grad = param.grad
for i in range(8):
    local.load_state_dict(shared.state_dict())
    x = torch.randn(5, 4)
    loss = local(x).pow(2).mean()
    opt.zero_grad(set_to_none=False) if i else opt.zero_grad()
    local.zero_grad(set_to_none=False)
    loss.backward()
    ensure_shared_grads(local, shared)
    opt.step()
""",
    "gradients that are views of one buffer": """\
import torch
from torch import nn
net = nn.Linear(4, 2)
ps = list(net.parameters())
n = sum((p.numel() for p in ps))
flat = torch.zeros(n)
o = 0
for p in ps:
    p.grad = flat[o:o + p.numel()].view_as(p)
    o += p.numel()
opt = torch.optim.SGD(ps, 0.1)
for i in range(9):
    flat.zero_()
    net(torch.randn(5, 4)).pow(2).mean().backward()
    flat.clamp_(-1, 1)
    opt.step()
""",
    "parameters put aside between forward and backward": """\
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(4):
    full = [p.data for p in net.parameters()]
    loss = net(torch.randn(5, 4)).pow(2).mean()
    for p in net.parameters():
        p.data = torch.empty(0)
    for p, f in zip(net.parameters(), full):
        p.data = f
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a hyperparameter trained through inner steps": """\
import torch
from torch import nn
w = torch.zeros(4, requires_grad=True)
log_lam = torch.zeros(1, requires_grad=True)
hopt = torch.optim.Adam([log_lam], 0.1)
for outer in range(4):
    X, y, Xv, yv = (torch.randn(8, 4), torch.randn(8), torch.randn(8, 4), torch.randn(8))
    ww = w.detach().clone().requires_grad_()
    for _ in range(3):
        l = ((X @ ww - y) ** 2).mean() + log_lam.exp() * ww.pow(2).sum()
        g, = torch.autograd.grad(l, ww, create_graph=True)
        ww = ww - 0.1 * g
    val = ((Xv @ ww - yv) ** 2).mean()
    hopt.zero_grad()
    val.backward()
    hopt.step()
    with torch.no_grad():
        w.copy_(ww)
""",
    "a head that joins late": """\
import torch
from torch import nn
body, h1, h2 = (nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 2))
opt = torch.optim.Adam([*body.parameters(), *h1.parameters(), *h2.parameters()])
for i in range(12):
    f = body(torch.randn(5, 4)).relu()
    loss = h1(f).pow(2).mean()
    if i >= 8:
        loss = loss + nn.functional.cross_entropy(h2(f), torch.randint(0, 2, (5,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "two halves that take turns, the other one frozen": """\
import torch
from torch import nn
enc, dec = (nn.Linear(5, 3), nn.Linear(3, 5))
oe, od = (torch.optim.SGD(enc.parameters(), 0.1), torch.optim.SGD(dec.parameters(), 0.1))
for i in range(6):
    x = torch.randn(6, 5)
    active, other = (oe, dec) if i % 2 == 0 else (od, enc)
    other.requires_grad_(False)
    loss = (dec(enc(x)) - x).pow(2).mean()
    active.zero_grad()
    loss.backward()
    active.step()
    other.requires_grad_(True)
""",
    "gradients copied all at once": """\
import torch
from torch import nn
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
ps = list(net.parameters())
for p in ps:
    p.grad = torch.zeros_like(p)
for i in range(9):
    gs = torch.autograd.grad(net(torch.randn(5, 4)).pow(2).mean(), ps)
    torch._foreach_copy_([p.grad for p in ps], gs)
    opt.step()
""",
    "proximal policy optimisation": """\
import torch
from torch import nn
torch.manual_seed(0)
actor, critic = (nn.Linear(4, 2), nn.Linear(4, 1))
for layer in (actor, critic):
    nn.init.orthogonal_(layer.weight, 0.5)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
for rollout in range(2):
    with torch.no_grad():
        seen = torch.randn(8, 4)
        old = torch.distributions.Categorical(logits=actor(seen))
        taken = old.sample()
        before, gain = (old.log_prob(taken), torch.randn(8) - critic(seen).squeeze(1))
    for part in torch.randperm(8).split(4):
        now = torch.distributions.Categorical(logits=actor(seen[part])).log_prob(taken[part])
        ratio = (now - before[part]).exp()
        loss = -torch.min(ratio * gain[part], ratio.clamp(0.8, 1.2) * gain[part]).mean()
        loss = loss + (critic(seen[part]).squeeze(1) - gain[part]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()
""",
}


@pytest.mark.parametrize("title", LOOPS)
def test_silence_and_nothing_left_unchecked(title, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOOPS[title], encoding="utf-8")
    trace, error = run_example(Example(title=title, code=LOOPS[title]), path)
    assert error is None
    report = judge(trace, Selection())
    assert [(found.code, found.line, found.message) for found in report.findings] == []
    assert {outcome.outcome for outcome in report.outcomes} == {"clean"}
