"""Correct loops on which the rules of zeroing and stepping must stay silent."""

import pytest

LOOPS = {
    "zero_foreach": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,))).backward()
    optimizer.step()
    torch._foreach_zero_([p.grad for p in model.parameters()])
""",
    "zero_mul": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,))).backward()
    optimizer.step()
    for p in model.parameters():
        p.grad *= 0
""",
    "zero_slice": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    for p in model.parameters():
        if p.grad is not None:
            p.grad[:] = 0
    F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,))).backward()
    optimizer.step()
""",
    "zero_data_assign": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data = torch.zeros_like(p.grad)
    F.cross_entropy(model(torch.randn(4, 5)), torch.randint(0, 2, (4,))).backward()
    optimizer.step()
""",
    "accumulate_carry_over": """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(44, 5), torch.randint(0, 2, (44,))), 4)
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 4).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "amp_scaler_accumulate_skip": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=3)
optimizer.zero_grad()
for i in range(24):
    loss = F.cross_entropy(model(1e4 * torch.randn(4, 5)), torch.randint(0, 2, (4,))) / 2
    scaler.scale(loss).backward()
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "skip_nan": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(14):
    optimizer.zero_grad()
    x = torch.randn(4, 5)
    if i in (1, 2, 6):
        x[0, 0] = float("nan")
    loss = F.cross_entropy(model(x), torch.randint(0, 2, (4,)))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()
        continue
    optimizer.step()
""",
    "lbfgs_style": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
image = torch.randn(1, 1, 8, 8, requires_grad=True)
net = nn.Conv2d(1, 3, 3)
for p in net.parameters():
    p.requires_grad_(False)
target = torch.randn(1, 3, 6, 6)
optimizer = torch.optim.LBFGS([image])
run = [0]
while run[0] <= 60:
    def closure():
        with torch.no_grad():
            image.clamp_(-3, 3)
        optimizer.zero_grad()
        loss = F.mse_loss(net(image), target)
        loss.backward()
        run[0] += 1
        return loss
    optimizer.step(closure)
""",
    "sam_optimizer": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        gradients = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.norm(torch.stack([grad.norm(p=2) for grad in gradients]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for i in range(6):
    x, y = torch.randn(8, 5), torch.randint(0, 2, (8,))
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.first_step(zero_grad=True)
    F.cross_entropy(model(x), y).backward()
    optimizer.second_step(zero_grad=True)
""",
    "cyclegan": """\
import itertools
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
GAB, GBA, DA, DB = (nn.Linear(6, 6) for _ in range(4))
DA, DB = nn.Linear(6, 1), nn.Linear(6, 1)
optimizer_G = torch.optim.Adam(itertools.chain(GAB.parameters(), GBA.parameters()))
optimizer_D_A = torch.optim.Adam(DA.parameters())
optimizer_D_B = torch.optim.Adam(DB.parameters())
pool = []
for i in range(6):
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    optimizer_G.zero_grad()
    fake_b, fake_a = GAB(a), GBA(b)
    loss_G = F.mse_loss(DB(fake_b), torch.ones(4, 1)) + F.mse_loss(DA(fake_a), torch.ones(4, 1))
    loss_G = loss_G + F.l1_loss(GBA(fake_b), a) + F.l1_loss(GAB(fake_a), b)
    loss_G.backward()
    optimizer_G.step()
    pool.append(fake_a.detach())
    optimizer_D_A.zero_grad()
    loss_D_A = 0.5 * (F.mse_loss(DA(a), torch.ones(4, 1)) + F.mse_loss(DA(pool[-1]), torch.zeros(4, 1)))
    loss_D_A.backward()
    optimizer_D_A.step()
    optimizer_D_B.zero_grad()
    loss_D_B = F.mse_loss(DB(b), torch.ones(4, 1)) + F.mse_loss(DB(fake_b.detach()), torch.zeros(4, 1))
    loss_D_B.backward()
    optimizer_D_B.step()
""",
    "adda_discriminator": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
src, tgt, disc, clf = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(4, 3)
os_ = torch.optim.Adam([*src.parameters(), *clf.parameters()])
ot, od = torch.optim.Adam(tgt.parameters()), torch.optim.Adam(disc.parameters())
for i in range(4):
    os_.zero_grad()
    F.cross_entropy(clf(src(torch.randn(8, 6))), torch.randint(0, 3, (8,))).backward()
    os_.step()
tgt.load_state_dict(src.state_dict())
for i in range(6):
    xs, xt = torch.randn(8, 6), torch.randn(8, 6)
    od.zero_grad()
    feat = torch.cat([src(xs), tgt(xt)])
    ld = F.cross_entropy(disc(feat.detach()), torch.tensor([1] * 8 + [0] * 8))
    ld.backward()
    od.step()
    od.zero_grad()
    ot.zero_grad()
    lt = F.cross_entropy(disc(tgt(xt)), torch.ones(8, dtype=torch.long))
    lt.backward()
    ot.step()
""",
    "r1_lazy": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(10):
    G.requires_grad_(False)
    D.requires_grad_(True)
    ld = F.softplus(D(G(torch.randn(4, 4)))).mean() + F.softplus(-D(torch.randn(4, 6))).mean()
    D.zero_grad()
    ld.backward()
    od.step()
    if i % 4 == 0:
        real = torch.randn(4, 6, requires_grad=True)
        g, = torch.autograd.grad(D(real).sum(), real, create_graph=True)
        D.zero_grad()
        (5 * g.pow(2).sum(1).mean() * 4 + 0 * D(real)[0].sum()).backward()
        od.step()
    G.requires_grad_(True)
    D.requires_grad_(False)
    lg = F.softplus(-D(G(torch.randn(4, 4)))).mean()
    G.zero_grad()
    lg.backward()
    og.step()
""",
    "gan_d_skips": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(12):
    fake = G(torch.randn(4, 4))
    ld = F.softplus(D(fake.detach())).mean() + F.softplus(-D(torch.randn(4, 6))).mean()
    od.zero_grad()
    ld.backward()
    if ld.item() > 1.3:
        od.step()
    lg = F.softplus(-D(fake)).mean()
    og.zero_grad()
    lg.backward()
    og.step()
""",
    "gan_warmup_adversary": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
G, D = nn.Linear(4, 6), nn.Linear(6, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for i in range(6):
    og.zero_grad()
    od.zero_grad()
    x = torch.randn(8, 6)
    rec = G(x[:, :4])
    loss = F.l1_loss(rec, x) - 0.0 * D(rec).mean()
    loss.backward()
    og.step()
    if i > 1000:
        ld = F.relu(1 - D(x)).mean() + F.relu(1 + D(rec.detach())).mean()
        ld.backward()
        od.step()
""",
    "train_and_eval_shared_function": """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.Adam(model.parameters())


def run(train):
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,)))
        opt.zero_grad()
        if train:
            loss.backward()
        opt.step()


for epoch in range(3):
    run(True)
    run(False)
""",
    "rl_policy_multiple_episode_backward": """\
import torch
from torch import nn
torch.manual_seed(0)
policy = nn.Linear(4, 2)
opt = torch.optim.Adam(policy.parameters())
import random
random.seed(0)
for update in range(6):
    opt.zero_grad()
    for ep in range(random.randint(1, 4)):
        d = torch.distributions.Categorical(logits=policy(torch.randn(5, 4)))
        a = d.sample()
        (-(d.log_prob(a) * torch.randn(5)).mean()).backward()
    opt.step()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_said(run, loop):
    assert run(LOOPS[loop]).found == []
