"""Models in the wrong mode, as people leave them, and modes that are meant."""

import pytest

from graphlint.rules.gl601_mode_mismatch import RULE
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
    "hits counted on data of no loader": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
held_x, held_y = torch.randn(16, 4), torch.randint(0, 3, (16,))
for step in range(6):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    opt.zero_grad(); F.cross_entropy(m(x), y).backward(); opt.step()
    with torch.no_grad():
        print((m(held_x).argmax(1) == held_y).float().mean().item())
""",
    "eval never undone with class": """\
class T:
    def __init__(self):
        self.model = net(); self.opt = torch.optim.SGD(self.model.parameters(), 0.1)
    def step(self, x, y):
        self.opt.zero_grad(); F.cross_entropy(self.model(x), y).backward(); self.opt.step()
    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            return sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1))
    def fit(self):
        self.model.train()
        for epoch in range(3):
            for x, y in loader(16): self.step(x, y)
            print(self.evaluate())
T().fit()
""",
    "eval before training by helper": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
def evaluate():
    model.eval()
    with torch.no_grad(): return sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1))
for epoch in range(3):
    print(evaluate())
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
""",
    "gan generator left in eval": """\
G = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)); D = nn.Linear(4, 1)
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
def save(i):
    G.eval()
    with torch.no_grad(): print(i, G(torch.randn(4, 2)).mean().item())
for i in range(20):
    x = torch.randn(4, 4)
    fake = G(torch.randn(4, 2))
    od.zero_grad(); (F.softplus(-D(x)) + F.softplus(D(fake.detach()))).mean().backward(); od.step()
    og.zero_grad(); F.softplus(-D(fake)).mean().backward(); og.step()
    if i % 5 == 4: save(i)
""",
    "forgot eval inline no loader": """\
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), 0.1)
xt, yt, xv, yv = torch.randn(32, 4), torch.randn(32, 1), torch.randn(16, 4), torch.randn(16, 1)
for epoch in range(10):
    loss = F.mse_loss(model(xt), yt)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): print(loss.item(), F.mse_loss(model(xv), yv).item())
""",
    "forgot eval val loader criterion module": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1); crit = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); crit(model(x), y).backward(); opt.step()
    with torch.no_grad():
        total = 0
        for x, y in loader(8, 1):
            out = model(x)
            total += crit(out, y).item()
    print(total)
""",
    "weight eval per epoch full-batch lstm dropout": """\
class R(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.o = nn.LSTM(4, 8, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(8, 1)
    def forward(self, x): return self.o(self.l(x)[0][:, -1])
m = R()
opt = torch.optim.Adam(m.parameters())
X, Y = torch.randn(20, 5, 4), torch.randn(20, 1)
V, W = torch.randn(8, 5, 4), torch.randn(8, 1)
def ev():
    m.eval()
    with torch.no_grad(): return F.mse_loss(m(V), W).item()
for epoch in range(4):
    for i in range(0, 20, 5):
        l = F.mse_loss(m(X[i:i+5]), Y[i:i+5])
        opt.zero_grad(); l.backward(); opt.step()
    print(l.item(), ev())
""",
    "transformer left eval": """\
m = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), nn.Linear(4, 1))
opt = torch.optim.Adam(m.parameters())
for step in range(16):
    l = m(torch.randn(4, 5, 4)).pow(2).mean()
    opt.zero_grad(); l.backward(); opt.step()
    if step % 5 == 4:
        m.eval()
        with torch.no_grad(): print(m(torch.randn(4, 5, 4)).pow(2).mean().item())
""",
}

LOOK_ALIKES = {
    "agreement of two models": """\
m, other = net(), net(); opt = torch.optim.SGD([*m.parameters(), *other.parameters()], 0.1)
held_x = torch.randn(16, 4)
for step in range(6):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    opt.zero_grad(); (F.cross_entropy(m(x), y) + F.cross_entropy(other(x), y)).backward(); opt.step()
    with torch.no_grad():
        print((m(held_x).argmax(1) == other(held_x).argmax(1)).float().mean().item())
""",
    "hits on the batch that was trained on": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
for step in range(6):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    opt.zero_grad(); F.cross_entropy(m(x), y).backward(); opt.step()
    with torch.no_grad():
        print((m(x).argmax(1) == y).float().mean().item())
""",
    "eval mode for the last epochs on purpose": """
model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    if epoch == 2:
        model.eval()
    for x, y in loader(4):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    was = model.training
    model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
    model.train(was)
""",
    "parts of a model left in eval mode by themselves": """
model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    if step == 4:
        model[1].eval()
        with torch.no_grad():
            print(model(x).argmax(1).float().mean().item())
""",
    "mc dropout": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    with torch.no_grad():
        for x, y in loader(8, 1):
            p = torch.stack([model(x).softmax(1) for _ in range(5)])
            print((p.mean(0).argmax(1) == y).float().mean().item(), p.std(0).mean().item())
""",
    "mc dropout parts": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    model.eval()
    for m in model.modules():
        if isinstance(m, nn.Dropout): m.train()
    with torch.no_grad():
        for x, y in loader(8, 1):
            print((model(x).argmax(1) == y).float().mean().item())
    model.train()
""",
    "update bn": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
swa = torch.optim.swa_utils.AveragedModel(model)
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    swa.update_parameters(model)
    torch.optim.swa_utils.update_bn(loader(16, 2), swa)
    torch.optim.swa_utils.update_bn(loader(16, 2), model)
    model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
""",
    "freeze bn each epoch": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
def freeze(m):
    if isinstance(m, nn.BatchNorm1d): m.eval()
for epoch in range(4):
    model.train()
    if epoch > 1: model.apply(freeze)
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
""",
    "eval from the start fine tuning": """\
model = net().eval(); opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for x, y in loader(16):
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
""",
    "two stages, second in eval": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
def evaluate():
    was = model.training
    model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
    model.train(was)
for x, y in loader(24):
    opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
evaluate()
model.eval()
evaluate()
for x, y in loader(24):
    opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
""",
    "gan sampling train mode": """\
G = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
D = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
fixed = torch.randn(4, 2)
for i, (x, _) in enumerate(loader(40)):
    with torch.no_grad(): fake = G(torch.randn(4, 2))
    od.zero_grad(); (F.softplus(-D(x)) + F.softplus(D(fake))).mean().backward(); od.step()
    og.zero_grad(); F.softplus(-D(G(torch.randn(4, 2)))).mean().backward(); og.step()
    if i % 3 == 0:
        with torch.no_grad():
            img = G(fixed); print(img.min().item(), D(img).mean().item())
""",
    "ema teacher train mode": """\
student, teacher = net(), net()
for p in teacher.parameters(): p.requires_grad_(False)
opt = torch.optim.SGD(student.parameters(), 0.1)
for x, y in loader(24):
    with torch.no_grad(): t = teacher(x)
    s_ = student(x)
    loss = F.cross_entropy(s_, y) + F.mse_loss(s_, t)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad():
        for a, b in zip(teacher.parameters(), student.parameters()): a.mul_(0.9).add_(b, alpha=0.1)
    print((t.argmax(1) == y).float().mean().item())
""",
    "train accuracy in loop": """\
model = net(); opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader(24):
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad():
        print((out.argmax(1) == y).float().mean().item(), F.cross_entropy(model(x), y).item())
""",
    "semi supervised pseudo labels train mode": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
u = iter(loader(200, 5))
for x, y in loader(24):
    ux, _ = next(u)
    with torch.no_grad():
        pseudo = m(ux).softmax(1)
        mask = (pseudo.max(1).values > 0.1).float()
        print(mask.mean().item())
    unsure = F.cross_entropy(m(ux + 0.1), pseudo.argmax(1), reduction="none")
    loss = F.cross_entropy(m(x), y) + (unsure * mask).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "nested fit calls sanity check then train()": """\
m = net(); opt = torch.optim.SGD(m.parameters(), 0.1)
def ev():
    m.eval()
    with torch.no_grad(): print(sum((m(x).argmax(1) == y).sum().item() for x, y in loader(8, 1)))
ev()
for epoch in range(3):
    m.train()
    for x, y in loader(24):
        opt.zero_grad(); F.cross_entropy(m(x), y).backward(); opt.step()
    ev()
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(run, name: str) -> None:
    judged = run(HEAD + FAULTS[name], "GL5", "GL6")
    assert [finding.code for finding in judged.report.findings] == ["GL601"]
    assert not judged.report.tracebacks


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike(run, name: str) -> None:
    judged = run(HEAD + LOOK_ALIKES[name], "GL5", "GL6")
    assert judged.found == []
