"""Correct loops on which the graph rules must stay silent: adversaries and reinforcement learning."""

import pytest

LOOPS = {
    "target_network_in_the_same_optimizer": """\
import copy
import torch
from torch import nn

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.copied, self.loaded = nn.Linear(4, 2), None, nn.Linear(4, 2)
        self.copied = copy.deepcopy(self.online)
        self.loaded.load_state_dict(self.online.state_dict())

torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters())
for step in range(5):
    states, following = torch.randn(8, 4), torch.randn(8, 4)
    with torch.no_grad():
        wanted = agent.copied(following).max(1)[0] + agent.loaded(following).max(1)[0]
    loss = (agent.online(states)[:, 0] - wanted).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "feature_matching": """\
import torch
from torch import nn
torch.manual_seed(0)
G = nn.Linear(4, 6)

class D(nn.Module):

    def __init__(s):
        super().__init__()
        s.f = nn.Linear(6, 8)
        s.o = nn.Linear(8, 1)

    def forward(s, x):
        h = s.f(x).relu()
        return (s.o(h), h)
d = D()
og, od = (torch.optim.Adam(G.parameters()), torch.optim.Adam(d.parameters()))
for i in range(4):
    x = torch.randn(8, 6)
    f = G(torch.randn(8, 4))
    od.zero_grad()
    (d(f.detach())[0].mean() - d(x)[0].mean()).backward()
    od.step()
    og.zero_grad()
    a, ha = d(f)
    b, hb = d(x)
    (-a.mean() + (ha - hb).abs().mean()).backward()
    og.step()
""",
    "both_optimizers_step_on_each_turn": """\
import torch
from torch import nn
torch.manual_seed(0)
G, D = (nn.Linear(4, 6), nn.Linear(6, 1))
og, od = (torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters()))
bce = nn.BCEWithLogitsLoss()
for i in range(6):
    og.zero_grad()
    od.zero_grad()
    fake = G(torch.randn(5, 4))
    if i % 2 == 0:
        loss = bce(D(fake.detach()), torch.zeros(5, 1)) + bce(D(torch.randn(5, 6)), torch.ones(5, 1))
    else:
        for p in D.parameters():
            p.requires_grad_(False)
        loss = bce(D(fake), torch.ones(5, 1))
    loss.backward()
    for p in D.parameters():
        p.requires_grad_(True)
    od.step()
    og.step()
""",
    "adaptive_weight_by_autograd_grad": """\
import torch
from torch import nn
torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
D = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
og, od = (torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters()))
for i in range(5):
    x = torch.randn(8, 4)
    r = G(x)
    nll = (r - x).abs().mean()
    g = -D(r).mean()
    last = G[-1].weight
    a = torch.autograd.grad(nll, last, retain_graph=True)[0].norm()
    b = torch.autograd.grad(g, last, retain_graph=True)[0].norm()
    w = (a / (b + 0.0001)).clamp(0, 10000.0).detach()
    loss = nll + w * g
    og.zero_grad()
    loss.backward()
    og.step()
    od.zero_grad()
    ld = torch.relu(1 - D(x)).mean() + torch.relu(1 + D(r.detach())).mean()
    ld.backward()
    od.step()
""",
    "critic_on_the_way_to_the_actor": """\
import copy, torch
from torch import nn
torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Tanh())

class Q(nn.Module):

    def __init__(s):
        super().__init__()
        s.obs = nn.Linear(3, 8)
        s.act = nn.Linear(1, 8)
        s.out = nn.Linear(8, 1)

    def forward(s, o, a):
        return s.out(torch.relu(s.obs(o) + s.act(a)))
critic = Q()
ta, tc = (copy.deepcopy(actor), copy.deepcopy(critic))
oa, oc = (torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters()))
for i in range(6):
    o, a, r, o2 = (torch.randn(16, 3), torch.rand(16, 1), torch.randn(16, 1), torch.randn(16, 3))
    with torch.no_grad():
        y = r + 0.9 * tc(o2, ta(o2))
    oc.zero_grad()
    lc = (critic(o, a) - y).pow(2).mean()
    lc.backward()
    oc.step()
    oa.zero_grad()
    la = -critic(o, actor(o)).mean()
    la.backward()
    oa.step()
    for s, t in ((actor, ta), (critic, tc)):
        for p, q in zip(s.parameters(), t.parameters()):
            q.data.mul_(0.99).add_(0.01 * p.data)
""",
    "normalized_weights_in_a_gan": """\
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
torch.manual_seed(0)
G = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
D = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.LeakyReLU(0.2), weight_norm(nn.Linear(6, 1)))
og, od = (torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters()))
for i in range(5):
    for _ in range(2):
        od.zero_grad()
        x = torch.randn(8, 4)
        f = G(torch.randn(8, 4)).detach()
        ld = torch.relu(1 - D(x)).mean() + torch.relu(1 + D(f)).mean()
        ld.backward()
        od.step()
    og.zero_grad()
    lg = -D(G(torch.randn(8, 4))).mean()
    lg.backward()
    og.step()
""",
    "several_backwards_with_a_gradient_argument": """\
import torch
from torch import nn
torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
D = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
og, od = (torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters()))
one = torch.tensor(1.0)
mone = -one
for i in range(5):
    for _ in range(2):
        D.zero_grad()
        x = torch.randn(8, 4)
        f = G(torch.randn(8, 4)).detach()
        D(x).mean().backward(mone)
        D(f).mean().backward(one)
        e = torch.rand(8, 1)
        xi = (e * x + (1 - e) * f).requires_grad_(True)
        g = torch.autograd.grad(D(xi).sum(), xi, create_graph=True)[0]
        gp = 10 * (g.norm(dim=1) - 1).pow(2).mean()
        gp.backward()
        od.step()
    for p in D.parameters():
        p.requires_grad = False
    G.zero_grad()
    l = D(G(torch.randn(8, 4))).mean()
    l.backward(mone)
    og.step()
    for p in D.parameters():
        p.requires_grad = True
""",
    "rewards_read_by_python": """\
import torch
from torch import nn
torch.manual_seed(0)
pi = nn.Linear(3, 4)
o = torch.optim.Adam(pi.parameters())
for ep in range(5):
    logps, rews = ([], [])
    s = torch.randn(3)
    for t in range(4):
        d = torch.distributions.Categorical(logits=pi(s))
        a = d.sample()
        logps.append(d.log_prob(a))
        rews.append(float(a.item() == 1))
        s = torch.randn(3)
    R = torch.tensor(rews)
    R = (R - R.mean()) / (R.std() + 1e-05)
    loss = -(torch.stack(logps) * R).sum()
    o.zero_grad()
    loss.backward()
    o.step()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_said(run, loop):
    assert run(LOOPS[loop]).found == []
