"""Faulty loops: steps without a backward, steps on another loss's gradients, and no steps at all."""

import re

import pytest

LOOPS = {
    "forgotten_backward_running_total": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.Adam(model.parameters())
for epoch in range(3):
    total = 0
    for x, y in DataLoader(TensorDataset(torch.randn(32, 5), torch.randint(0, 2, (32,))), 8):
        loss = F.cross_entropy(model(x), y)  # <- GL303
        opt.zero_grad()
        opt.step()
        total += loss
    print(total.item())
""",
    "second_loss_forgotten": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
oa, oc = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for i in range(6):
    s, r = torch.randn(8, 4), torch.randn(8)
    v = critic(s).squeeze(1)
    critic_loss = F.mse_loss(v, r)
    oc.zero_grad()
    critic_loss.backward()
    oc.step()
    d = torch.distributions.Categorical(logits=actor(s))
    actor_loss = -(d.log_prob(d.sample()) * (r - v.detach())).mean()  # <- GL303
    oa.zero_grad()
    oa.step()
    print(critic_loss.item(), actor_loss.item())
""",
    "both_losses_then_one_backward": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    fake = G(torch.randn(4, 4))
    ld = F.softplus(D(fake.detach())).mean() + F.softplus(-D(torch.randn(4, 6))).mean()
    lg = F.softplus(-D(fake)).mean()  # <- GL303
    og.zero_grad()
    od.zero_grad()
    ld.backward()
    od.step()
    og.step()
""",
    "step_twice": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
class Trainer:
    def __init__(self):
        self.model = nn.Linear(5, 2)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def training_step(self, x, y):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss

    def fit(self, loader):
        for x, y in loader:
            self.training_step(x, y)
            self.opt.step()  # <- GL303


Trainer().fit(DataLoader(TensorDataset(torch.randn(48, 5), torch.randint(0, 2, (48,))), 8))
""",
    "conditional_backward_stale": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(12):
    loss = F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,)))
    if i % 2 == 0:
        opt.zero_grad()
        loss.backward()
    opt.step()  # <- GL303
""",
    "lbfgs_closure_no_backward": """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
x = torch.randn(16, 4)
opt = torch.optim.LBFGS(model.parameters(), max_iter=4)


def closure():
    opt.zero_grad()
    loss = (model(x) - 1).pow(2).mean()  # <- GL303
    return loss


for i in range(4):
    print(opt.step(closure).item())
""",
    "g_leaks_into_next_d": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    fake = G(torch.randn(8, 4))
    ld = F.softplus(D(fake.detach())).mean() + F.softplus(-D(torch.randn(8, 6))).mean()
    ld.backward()
    od.step()
    od.zero_grad()
    lg = F.softplus(-D(fake)).mean()
    lg.backward()  # <- GL304
    og.step()
    og.zero_grad()
""",
    "d_leaks_into_g_attached": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    og.zero_grad()
    od.zero_grad()
    ld = F.softplus(D(G(torch.randn(8, 4)))).mean() + F.softplus(-D(torch.randn(8, 6))).mean()
    ld.backward()  # <- GL304
    od.step()
    for p in D.parameters():
        p.requires_grad_(False)
    lg = F.softplus(-D(G(torch.randn(8, 4)))).mean()
    lg.backward()
    og.step()
    for p in D.parameters():
        p.requires_grad_(True)
""",
    "actor_leaks_into_critic": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
oa, oc = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for i in range(6):
    s, a, y = torch.randn(8, 4), torch.randn(8, 2), torch.randn(8, 1)
    oc.zero_grad()
    oa.zero_grad()
    actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
    actor_loss.backward()  # <- GL304
    oa.step()
    critic_loss = F.mse_loss(critic(torch.cat([s, a], 1)), y)
    critic_loss.backward()
    oc.step()
""",
    "two_updates_shared_optimizers": """\
import torch
from torch import nn
torch.manual_seed(0)
enc, a, b = nn.Linear(5, 4), nn.Linear(4, 1), nn.Linear(4, 2)
o1 = torch.optim.Adam([*enc.parameters(), *a.parameters()])
o2 = torch.optim.Adam([*enc.parameters(), *b.parameters()])
for i in range(6):
    o1.zero_grad()
    o2.zero_grad()
    a(enc(torch.randn(4, 5))).pow(2).mean().backward()  # <- GL304
    o1.step()
    b(enc(torch.randn(4, 5))).pow(2).mean().backward()
    o2.step()
""",
    "g_never_steps": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    fake = G(torch.randn(8, 4))
    od.zero_grad()
    ld = F.softplus(D(fake.detach())).mean() + F.softplus(-D(torch.randn(8, 6))).mean()
    ld.backward()
    od.step()
    og.zero_grad()
    lg = F.softplus(-D(fake)).mean()
    lg.backward()  # <- GL311
""",
    "embedding_optimizer_forgotten": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
emb, lin = nn.Embedding(20, 6), nn.Linear(6, 20)
oe, ol = torch.optim.Adam(emb.parameters()), torch.optim.Adam(lin.parameters())
for i in range(6):
    oe.zero_grad()
    ol.zero_grad()
    loss = F.cross_entropy(lin(emb(torch.randint(0, 20, (8,)))), torch.randint(0, 20, (8,)))
    loss.backward()  # <- GL311
    ol.step()
""",
    "decoder_forgotten": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
enc, dec = nn.Linear(6, 3), nn.Linear(3, 6)
oe, od = torch.optim.Adam(enc.parameters()), torch.optim.Adam(dec.parameters())
for i in range(6):
    x = torch.randn(8, 6)
    oe.zero_grad()
    od.zero_grad()
    F.mse_loss(dec(enc(x)), x).backward()  # <- GL311
    oe.step()
""",
    "scheduler_only": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
import warnings
warnings.simplefilter("ignore")
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
for x, y in DataLoader(TensorDataset(torch.randn(48, 5), torch.randint(0, 2, (48,))), 8):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # <- GL311
    sched.step()
""",
}


MARK = re.compile(r"# <- (GL\d+)$")


@pytest.mark.parametrize("loop", LOOPS)
def test_the_fault_is_told_where_it_is(run, loop):
    lines = enumerate(LOOPS[loop].splitlines(), start=1)
    marked = [(mark[1], number) for number, line in lines if (mark := MARK.search(line))]
    assert marked
    assert run(LOOPS[loop]).found == marked


def test_a_second_step_names_the_first_and_the_backward(run):
    found = run(LOOPS["step_twice"]).only("GL303")
    assert [label.text for label in found.labels] == [
        "steps `self.model` again, without a new gradient",
        "the last backward",
        "has used its gradients",
    ]
    assert "ignore[GL303]" in found.fix


def test_a_bleed_names_both_losses_and_both_optimizers(run):
    found = run(LOOPS["actor_leaks_into_critic"]).only("GL304")
    assert [label.text for label in found.labels] == [
        "fills the gradients of `critic` too, in a loss for `oa`",
        "the loss for `oa` runs through `critic` here",
        "`oa` steps on that loss, and `oc` doesn't",
        "the loss for `oc` adds to them",
        "`oc` steps on both",
    ]
    assert "`oc.zero_grad()` between `actor_loss.backward()`" in found.fix


def test_a_forgotten_step_names_where_the_gradients_go(run):
    found = run(LOOPS["g_never_steps"]).only("GL311")
    assert "`og` never steps" in found.message
    assert "`og.zero_grad()`" in found.message
    assert found.fix.startswith("call `og.step()` after `lg.backward()`")
