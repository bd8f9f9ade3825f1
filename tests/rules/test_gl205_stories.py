"""Optimizers whose parameters were replaced, in the ways that they are, and what only looks alike."""

import pytest

HEAD = """\
import copy
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self, size=2):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, size)
    def forward(self, x):
        return self.head(self.body(x).relu())
"""
LOOP = """\
for _ in range(5):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MADE = "net = Net()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"

REPLACED = {
    "made anew": "net = Net()  # <-\n",
    "copied": "net = copy.deepcopy(net)  # <-\n",
    "a head": "net.head = nn.Linear(4, 3)  # <-\n",
    "a head in a function": "def change(model):\n    model.head = nn.Linear(4, 3)  # <-\nchange(net)\n",
    "weights that were assigned": (
        "state = {key: torch.randn_like(value) for key, value in net.state_dict().items()}\n"
        "net.load_state_dict(state, assign=True)  # <-\n"
    ),
    "weight normalisation": "torch.nn.utils.parametrizations.weight_norm(net.head)  # <-\n",
    "one parameter": "net.head.bias = nn.Parameter(torch.ones(2))  # <-\n",
}


def line_of(code: str) -> int:
    return next(number for number, text in enumerate(code.splitlines(), 1) if text.endswith("# <-"))


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_what_took_the_place_is_told(run, change: str) -> None:
    code = HEAD + MADE + change + LOOP
    judged = run(code)
    assert judged.found == [("GL205", line_of(code))]
    assert 13 in judged.lines("GL205")
    assert judged.only("GL205").severity == "error"


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_it_is_told_in_the_middle_of_a_run_too(run, change: str) -> None:
    code = HEAD + MADE + LOOP + change + LOOP
    (found,) = run(code).found
    # Of what was copied while the run was only watched, the line is not known.
    assert found == ("GL205", code.count("\n") if "deepcopy" in change else line_of(code))


def test_zeroed_gradients_that_are_not_set_to_none_hide_nothing(run) -> None:
    code = HEAD + MADE + LOOP + REPLACED["a head"] + LOOP
    code = code.replace("zero_grad()", "zero_grad(set_to_none=False)")
    assert run(code, "GL205").found == [("GL205", line_of(code))]


def test_a_tied_weight_leaves_one_behind(run) -> None:
    code = """\
import torch
from torch import nn
torch.manual_seed(0)
first, last = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
last.weight = first.weight  # <-
net = nn.Sequential(first, last)
for _ in range(5):
    loss = net(torch.randint(0, 6, (8,))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    judged = run(code)
    assert judged.found == [("GL205", 6)]
    assert judged.only("GL205").severity == "warning"


SILENT = {
    "experts that take turns": """\
experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
optimizer = torch.optim.SGD(experts.parameters(), lr=0.1)
turn = iter([0] * 3 + [1] * 3 + [2] * 9)
net = lambda x: experts[next(turn)](x)
""",
    "a model that is trained after another": """\
first = Net()
net, optimizer = first, torch.optim.SGD(first.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
""",
    "moved and cast in place": MADE + "net.double()\nnet.float()\nnet.to('cpu')\n",
    "the weights of a checkpoint": MADE + "net.load_state_dict(Net().state_dict())\n",
    "a head that was frozen": MADE + "net.head.requires_grad_(False)\n",
}


@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT)
def test_what_is_still_used_is_silent(run, body: str) -> None:
    assert run(HEAD + body + LOOP).found == []


def test_the_call_beside_the_optimizer_that_replaces_is_shown(run) -> None:
    code = HEAD + (
        "def grow(net):\n    net.head.weight = nn.Parameter(torch.randn_like(net.head.weight))\n"
        "def build():\n    net = Net()\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "    grow(net)\n    return net, optimizer\n"
        "net, optimizer = build()\n"
    )
    finding = run(code + LOOP).only("GL205")
    called = code.splitlines().index("    grow(net)") + 1
    assert called in [label.line for label in finding.labels]
    assert finding.line == called - 4
    assert finding.fix.startswith(f"make `optimizer` after line {called}, ")
