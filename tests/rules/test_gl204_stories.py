"""Parameters that nobody trains, as people forget them, and those that nobody is meant to."""

import pytest

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LOOP = """\
for _ in range(5):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FORGOTTEN = {
    "a criterion with parameters": """\
class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 4))
    def forward(self, features, labels):
        return (features - self.centers[labels]).pow(2).mean()
model, criterion = nn.Linear(4, 4), Centers()
net = lambda x: criterion(model(x), torch.randint(0, 3, (8,)))
optimizer = torch.optim.Adam(model.parameters())  # <-
""",
    "a layer that came after the optimizer": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # <-
net.head = nn.Linear(4, 1)
""",
    "heads in a plain dict": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = {name: nn.Linear(4, 1) for name in "ab"}  # <-
    def forward(self, x):
        x = self.body(x)
        return self.heads["a"](x) + self.heads["b"](x)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
""",
    "a parameter that was reshaped on its way to the module": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.position = nn.Parameter(torch.randn(4)).unsqueeze(0)  # <-
    def forward(self, x):
        return self.body(x) + self.position
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
""",
}

MEANT = {
    "an input through a network": """\
network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
prompt = nn.Parameter(torch.randn(8, 4))
net = lambda x: network(prompt)
optimizer = torch.optim.Adam([prompt])
""",
    "an optimizer for the rest that comes later": """\
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
net = lambda x: second(first(x))
optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
for _ in range(5):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
""",
    "points of a grid that gradients are taken at": """\
model, points = nn.Linear(4, 4), torch.rand(8, 4, requires_grad=True)
def net(x):
    y = model(points).tanh()
    return torch.autograd.grad(y.sum(), points, create_graph=True)[0] + y
optimizer = torch.optim.Adam(model.parameters())
""",
    "gradients that go on to another model": """\
import copy
model = nn.Linear(4, 1)
helper = nn.Linear(4, 1)
net = lambda x: helper(x) + model(x)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scores = 0
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    scores = scores + helper.weight.grad.abs().sum().item() + helper.bias.grad.abs().sum().item()
    optimizer.step()
net = model
""",
    "an optimizer each": """\
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
net = lambda x: second(first(x))
class Both:
    def __init__(self):
        self.parts = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())]
    def zero_grad(self):
        [part.zero_grad() for part in self.parts]
    def step(self):
        [part.step() for part in self.parts]
optimizer = Both()
""",
}


@pytest.mark.parametrize("body", FORGOTTEN.values(), ids=FORGOTTEN)
def test_what_was_forgotten_is_told(run, body: str) -> None:
    code = HEAD + body + LOOP
    line = next(number for number, text in enumerate(code.splitlines(), 1) if text.endswith("# <-"))
    judged = run(code)
    assert judged.found == [("GL204", line)]
    assert judged.only("GL204").severity == "warning"


@pytest.mark.parametrize("body", MEANT.values(), ids=MEANT)
def test_what_is_left_alone_on_purpose_is_silent(run, body: str) -> None:
    assert run(HEAD + body + LOOP).found == []


LOADED = """\
import io
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
file = io.BytesIO()
torch.save(net.state_dict(), file)
file.seek(0)
net.load_state_dict(torch.load(file))
net[2] = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
"""

FEATURES = """\
features, model = nn.Linear(4, 4).eval(), nn.Linear(4, 4)
net = lambda x: features(model(x)) - features(x)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("body", [LOADED, FEATURES], ids=["loaded", "in eval mode"])
def test_a_network_that_may_be_frozen_by_omission_is_a_hint(run, body: str) -> None:
    finding = run(HEAD + body + LOOP).only("GL204")
    assert finding.severity == "info"
    assert "requires_grad_(False)" in finding.fix


def test_the_group_that_was_never_handed_on_is_shown(run) -> None:
    body = """\
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
def build():
    groups = []
    group = {"params": list(first.parameters())}
    groups.append(group)
    group = {"params": []}
    group["params"].extend(second.parameters())
    return torch.optim.SGD(groups, lr=0.1)
net, optimizer = lambda x: second(first(x)), build()
"""
    judged = run(HEAD + body + LOOP)
    assert judged.found == [("GL204", 11)]
    assert 9 in judged.lines("GL204")
