"""Arguments that change places, and orders that are meant."""

import pytest

from graphlint.rules.gl602_argument_order_drift import RULE
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
    "noise drawn anew for each call": """\
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, noise, text): return self.a(noise) * self.b(text).relu()
g, words = G(), nn.Embedding(9, 4); opt = torch.optim.SGD([*g.parameters(), *words.parameters()], 0.1)
for _ in range(4):
    ids = torch.randint(0, 9, (5,))
    loss = (g(torch.randn(5, 4), words(ids)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): g(words(ids), torch.randn(5, 4))
""",
    "criterion of torch swapped in validation": """
model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
opt = torch.optim.SGD(model.parameters(), 0.1)
crit = nn.BCELoss()
for epoch in range(2):
    model.train()
    for x, y in loader(16):
        loss = crit(model(x), (y > 1).float().unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        for x, y in loader(8, 1):
            print(crit((y > 1).float().unsqueeze(1), model(x)).item())
""",
    "swapped val criterion": """\
class Crit(nn.Module):
    def forward(self, scores, labels): return -(labels * scores.log_softmax(-1)).sum(-1).mean()
model = nn.Linear(4, 3); opt = torch.optim.SGD(model.parameters(), 0.1); crit = Crit()
for epoch in range(2):
    for x, y in loader(16):
        loss = crit(model(x), F.one_hot(y, 3).float())
        opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad():
        for x, y in loader(8, 1): print(crit(F.one_hot(y, 3).float(), model(x)).item())
""",
    "bce module swapped": """\
model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
opt = torch.optim.SGD(model.parameters(), 0.1)
crit = nn.BCELoss()
for x, y in loader(16):
    loss = crit((y > 1).float().unsqueeze(1), model(x))
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "src tgt swapped in eval with dict loader": """\
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(4, 2)
    def forward(self, query, doc): return self.o(self.a(query).mean(1) * self.b(doc).mean(1))
def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    items = []
    for _ in range(n):
        query, doc = torch.randint(9, (3,), generator=g), torch.randint(9, (3,), generator=g)
        items.append({"q": query, "d": doc, "y": torch.randint(2, (), generator=g)})
    return DataLoader(items, batch_size=4)
m = M(); opt = torch.optim.SGD(m.parameters(), 0.1)
for epoch in range(2):
    m.train()
    for b in data(24, 0):
        loss = F.cross_entropy(m(b["q"], b["d"]), b["y"])
        opt.zero_grad(); loss.backward(); opt.step()
    m.eval()
    with torch.no_grad():
        print(sum((m(b["d"], b["q"]).argmax(1) == b["y"]).sum().item() for b in data(8, 1)))
""",
}

LOOK_ALIKES = {
    "noise in either place": """\
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, noise, text): return self.a(noise) * self.b(text).relu()
g, words = G(), nn.Embedding(9, 4); opt = torch.optim.SGD([*g.parameters(), *words.parameters()], 0.1)
for _ in range(4):
    ids = torch.randint(0, 9, (5,))
    loss = (g(torch.randn(5, 4), words(ids)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): g(torch.randn(5, 4), torch.randn(5, 4))
""",
    "both orders are evaluated": """\
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, noise, text): return self.a(noise) * self.b(text).relu()
g, words = G(), nn.Embedding(9, 4); opt = torch.optim.SGD([*g.parameters(), *words.parameters()], 0.1)
for _ in range(4):
    ids = torch.randint(0, 9, (5,))
    loss = (g(torch.randn(5, 4), words(ids)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): g(words(ids), torch.randn(5, 4)), g(torch.randn(5, 4), words(ids))
""",
    "noise where the words were left out": """\
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, noise, text): return self.a(noise) * self.b(text).relu()
g, words = G(), nn.Embedding(9, 4); opt = torch.optim.SGD([*g.parameters(), *words.parameters()], 0.1)
for _ in range(4):
    ids = torch.randint(0, 9, (5,))
    loss = (g(torch.randn(5, 4), words(ids)) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): g(torch.zeros(5, 4), torch.randn(5, 4))
""",
    "symmetric criterion of torch in another order in validation": """
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
crit = nn.MSELoss()
for epoch in range(2):
    for x, y in loader(16):
        loss = crit(model(x), y.float().unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        for x, y in loader(8, 1):
            print(crit(y.float().unsqueeze(1), model(x)).item())
""",
    "kd clean kl": """\
t, st = nn.Linear(4, 3).eval(), nn.Linear(4, 3); opt = torch.optim.SGD(st.parameters(), 0.1)
for x, y in loader(24):
    with torch.no_grad(): tl = t(x)
    loss = F.kl_div(F.log_softmax(st(x), 1), F.softmax(tl, 1), reduction="batchmean")
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "cycle gan": """\
A, B = nn.Linear(4, 4), nn.Linear(4, 4); opt = torch.optim.SGD([*A.parameters(), *B.parameters()], 0.1)
for (x, _), (y, _) in zip(loader(24), loader(24, 1)):
    loss = F.l1_loss(B(A(x)), x) + F.l1_loss(A(B(y)), y)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): print(A(x).mean().item(), B(A(y)).mean().item())
""",
    "bidirectional cross attention": """\
class X(nn.Module):
    def __init__(self):
        super().__init__(); self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x, context): return (self.q(x) @ self.k(context).t()).softmax(-1) @ context
att, e1, e2 = X(), nn.Linear(4, 4), nn.Linear(4, 4)
opt = torch.optim.SGD([*att.parameters(), *e1.parameters(), *e2.parameters()], 0.1)
for x, y in loader(24):
    a, b = e1(x), e2(x)
    loss = (att(a, b) + att(b, a)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): print(att(e2(x), e1(x)).mean().item())
""",
    "vqvae commitment": """\
class Dist(nn.Module):
    def forward(self, source, target): return (source - target.detach()).pow(2).mean()
enc, code, d = nn.Linear(4, 4), nn.Parameter(torch.randn(4)), Dist()
opt = torch.optim.SGD([*enc.parameters(), code], 0.1)
for x, y in loader(24):
    z = enc(x); q = code.expand_as(z)
    loss = d(z, q) + d(q, z) + (z - x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "flow both ways at eval": """\
class Flow(nn.Module):
    def __init__(self):
        super().__init__(); self.f, self.c = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, one, two): return self.f(one) - self.f(two) + self.c(one)
m = Flow(); opt = torch.optim.SGD(m.parameters(), 0.1)
for x, y in loader(24):
    z = x + 1
    loss = (m(x, z) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): print((m(x, z) + m(z, x)).abs().mean().item())
""",
    "random order": """\
class M(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, one, two): return self.a(one) + self.b(two).relu()
m = M(); opt = torch.optim.SGD(m.parameters(), 0.1)
for i, (x, y) in enumerate(loader(24)):
    z = x.flip(1)
    if i % 2: out = m(x, z)
    else: out = m(z, x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): print(m(x, z).argmax(1).float().mean().item())
""",
    "symmetric cross entropy": """\
m = nn.Linear(4, 3); opt = torch.optim.SGD(m.parameters(), 0.1)
for x, y in loader(24):
    p = m(x).softmax(1); l = F.one_hot(y, 3).float().clamp(0.01, 0.98)
    loss = F.binary_cross_entropy(p, l) + F.binary_cross_entropy(l, p)
    opt.zero_grad(); loss.backward(); opt.step()
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(run, name: str) -> None:
    judged = run(HEAD + FAULTS[name], "GL5", "GL6")
    assert [finding.code for finding in judged.report.findings] == ["GL602"]
    assert not judged.report.tracebacks


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike(run, name: str) -> None:
    judged = run(HEAD + LOOK_ALIKES[name], "GL5", "GL6")
    assert judged.found == []
