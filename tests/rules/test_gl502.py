"""Evaluations that build a graph, as people write them, and what only looks like one."""

import pytest

from graphlint.rules.gl502_eval_builds_graph import RULE
from graphlint.testing import Case, cases

HEAD = """\
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def loader(n, seed=0, shuffle=False):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=shuffle)
def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
"""

FAULTS = {
    "validate without no grad, two models": """\
enc, dec = nn.Linear(4, 8), nn.Linear(8, 3)
opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], 0.1)
def validate():
    enc.eval(); dec.eval()
    total = 0
    for x, y in loader(12, 1):
        total += F.cross_entropy(dec(enc(x)), y).item()
    enc.train(); dec.train()
    return total
for epoch in range(2):
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(dec(enc(x)), y).backward(); opt.step()
    print(validate())
""",
    "val outputs list": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    model.eval(); outs = []
    for x, y in loader(20, 1): outs.append(model(x))
    print(torch.cat(outs).argmax(1).float().mean().item())
""",
    "inline tensor val loss": """\
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), 0.1)
xt, yt, xv, yv = torch.randn(32, 4), torch.randn(32, 1), torch.randn(16, 4), torch.randn(16, 1)
for epoch in range(10):
    model.train()
    loss = F.mse_loss(model(xt), yt)
    opt.zero_grad(); loss.backward(); opt.step()
    model.eval()
    val = F.mse_loss(model(xv), yv)
    print(loss.item(), val.item())
""",
    "shared compute loss in eval": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
def compute(x, y): return F.cross_entropy(model(x), y)
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); compute(x, y).backward(); opt.step()
    model.eval()
    print(sum(compute(x, y).item() for x, y in loader(8, 1)))
""",
    "act without no grad eval": """\
q = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)); opt = torch.optim.Adam(q.parameters())
def play():
    q.eval(); total = 0
    for _ in range(5): total += q(torch.randn(1, 4)).argmax(1).item()
    q.train(); return total
for step in range(12):
    loss = q(torch.randn(4, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 4 == 3: print(play())
""",
    "feature extraction for knn each epoch": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
for epoch in range(2):
    m.train()
    for x, y in loader(24):
        opt.zero_grad(); F.cross_entropy(m(x), y).backward(); opt.step()
    m.eval()
    feats = torch.cat([m(x).detach() for x, _ in loader(12, 1)])
    print(feats.mean().item())
""",
}

LOOK_ALIKES = {
    "trades": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader(24):
    model.eval()
    adv = x.clone() + 0.001 * torch.randn_like(x)
    for _ in range(2):
        adv.requires_grad_()
        with torch.enable_grad():
            kl = F.kl_div(F.log_softmax(model(adv), 1), F.softmax(model(x), 1), reduction="sum")
        g = torch.autograd.grad(kl, [adv])[0]
        adv = adv.detach() + 0.01 * g.sign()
    model.train()
    opt.zero_grad()
    logits = model(x)
    robust = F.kl_div(F.log_softmax(model(adv), 1), F.softmax(logits, 1), reduction="batchmean")
    loss = F.cross_entropy(logits, y) + robust
    loss.backward(); opt.step()
""",
    "pgd with param grads": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader(24):
    model.eval()
    adv = x.clone().requires_grad_(True)
    F.cross_entropy(model(adv), y).backward()
    adv = (x + 0.1 * adv.grad.sign()).detach()
    model.train()
    opt.zero_grad()
    F.cross_entropy(model(adv), y).backward(); opt.step()
""",
    "dqn act eval no grad target": """\
q = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)); t = copy.deepcopy(q); t.eval()
opt = torch.optim.Adam(q.parameters())
state = torch.randn(1, 4)
memory = []
for step in range(20):
    q.eval()
    with torch.no_grad(): a = q(state).argmax(1).item()
    q.train()
    nxt = torch.randn(1, 4); memory.append((state, a, 1.0, nxt)); state = nxt
    if len(memory) >= 4:
        b = memory[-4:]
        s_, n_ = torch.cat([m[0] for m in b]), torch.cat([m[3] for m in b])
        a_ = torch.tensor([[m[1]] for m in b])
        target = 1 + 0.9 * t(n_).max(1)[0].detach()
        loss = F.smooth_l1_loss(q(s_).gather(1, a_).squeeze(1), target)
        opt.zero_grad(); loss.backward(); opt.step()
""",
    "perceptual": """\
vgg = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6)).eval()
G = nn.Linear(4, 4); opt = torch.optim.SGD(G.parameters(), 0.1)
for x, _ in loader(24):
    f = vgg(G(x)); r = vgg(x).detach()
    loss = F.mse_loss(f, r)
    opt.zero_grad(); loss.backward(); opt.step(); print(loss.item(), r.mean().item())
""",
    "dummy forward for shapes": """\
model = net().eval()
n = model(torch.zeros(1, 4)).shape[1]
model.train(); opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader(24):
    opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
""",
    "input optimised in eval": """\
model = net().eval()
x = torch.randn(4, 4, requires_grad=True); opt = torch.optim.Adam([x], 0.1)
for step in range(6):
    loss = model(x)[:, 0].sum()
    opt.zero_grad(); loss.backward(); opt.step(); print(loss.item())
""",
    "clean loop": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1); crit = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); crit(model(x), y).backward(); opt.step()
    model.eval()
    with torch.inference_mode():
        for x, y in loader(8, 1): print(crit(model(x), y).item())
""",
    "maml first order eval on query": """\
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    fast = copy.deepcopy(model); inner = torch.optim.SGD(fast.parameters(), 0.1)
    x, y = torch.randn(4, 4), torch.randint(3, (4,))
    inner.zero_grad(); F.cross_entropy(fast(x), y).backward(); inner.step()
    fast.eval()
    q = F.cross_entropy(fast(x), y); fast.zero_grad(); q.backward()
    for p, f in zip(model.parameters(), fast.parameters()): p.grad = f.grad.clone()
    opt.step()
""",
    "moco": """\
q, k = net(), net()
for p in k.parameters(): p.requires_grad = False
opt = torch.optim.SGD(q.parameters(), 0.1); queue = torch.randn(3, 16)
for x, y in loader(24):
    a = q(x + 0.1)
    with torch.no_grad(): b = k(x - 0.1)
    logits = torch.cat([(a * b).sum(1, keepdim=True), a @ queue], 1)
    loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
    opt.zero_grad(); loss.backward(); opt.step()
    queue = torch.cat([b.t(), queue], 1)[:, :16]
    print(loss.item())
""",
    "ppo eval acting": """\
pi = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)); opt = torch.optim.Adam(pi.parameters())
for it in range(6):
    obs, acts, logs = [], [], []
    pi.eval()
    for t in range(5):
        o = torch.randn(4)
        d = torch.distributions.Categorical(logits=pi(o.unsqueeze(0)))
        a = d.sample(); obs.append(o); acts.append(a); logs.append(d.log_prob(a).detach())
    pi.train()
    for _ in range(2):
        d = torch.distributions.Categorical(logits=pi(torch.stack(obs)))
        ratio = (d.log_prob(torch.cat(acts)) - torch.cat(logs)).exp()
        loss = -ratio.mean()
        opt.zero_grad(); loss.backward(); opt.step()
""",
    "reinforce in eval": """\
pi = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.Adam(pi.parameters())
pi.eval()
for it in range(8):
    logs = []
    for t in range(5):
        d = torch.distributions.Categorical(logits=pi(torch.randn(1, 4)))
        a = d.sample(); logs.append(d.log_prob(a)); print(a.item())
    loss = -torch.cat(logs).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "saliency after training": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
for x, y in loader(24):
    opt.zero_grad(); F.cross_entropy(m(x), y).backward(); opt.step()
m.eval()
for x, y in loader(8):
    x.requires_grad_()
    out = m(x); print(out.max().item())
    out.max(1).values.sum().backward()
    print(x.grad.abs().mean().item())
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(run, name: str) -> None:
    judged = run(HEAD + FAULTS[name], "GL5", "GL6")
    assert [finding.code for finding in judged.report.findings] == ["GL502"]
    assert not judged.report.tracebacks


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike(run, name: str) -> None:
    judged = run(HEAD + LOOK_ALIKES[name], "GL5", "GL6")
    assert judged.found == []
