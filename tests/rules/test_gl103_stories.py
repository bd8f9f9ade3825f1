"""Graphs kept for nothing, and those that are needed somewhere."""

import pytest

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
trunk, left, right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
parameters = [*trunk.parameters(), *left.parameters(), *right.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
"""

KEPT = {
    "a closure": """\
def closure():
    optimizer.zero_grad()
    loss = left(trunk(torch.ones(8, 4)).tanh()).pow(2).mean()
    loss.backward(retain_graph=True)  # <-
    return loss
for _ in range(4):
    optimizer.step(closure)
""",
    "create_graph, and the gradients are only applied": """\
import warnings
warnings.simplefilter("ignore")
for _ in range(4):
    loss = left(trunk(torch.randn(8, 4)).tanh()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(create_graph=True)  # <-
    optimizer.step()
""",
    "a state that is detached, kept against an error that can't come": """\
state = torch.zeros(8, 4)
for _ in range(4):
    state = trunk(torch.randn(8, 4) + state.detach()).tanh()
    optimizer.zero_grad()
    left(state).pow(2).mean().backward(retain_graph=True)  # <-
    optimizer.step()
""",
}

NEEDED = {
    "a helper that both losses go through": """\
def back(loss):
    loss.backward(retain_graph=True)
for _ in range(5):
    features = trunk(torch.randn(8, 4)).tanh()
    optimizer.zero_grad()
    back(left(features).pow(2).mean())
    back(right(features).pow(2).mean())
    optimizer.step()
""",
    "gradients of tasks, one by one": """\
for _ in range(5):
    features = trunk(torch.randn(8, 4)).tanh()
    kept = []
    for head in (left, right):
        optimizer.zero_grad()
        head(features).pow(2).mean().backward(retain_graph=True)
        kept.append([None if p.grad is None else p.grad.clone() for p in parameters])
    for p, a, b in zip(parameters, *kept):
        p.grad = a if b is None else b if a is None else a + b
    optimizer.step()
""",
    "a second derivative": """\
for _ in range(5):
    x = torch.rand(8, 4, requires_grad=True)
    y = left(trunk(x).tanh())
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    optimizer.zero_grad()
    (bend.pow(2).mean() + y.pow(2).mean() + right(trunk(x)).pow(2).mean()).backward()
    optimizer.step()
""",
    "what torch itself keeps": """\
for _ in range(5):
    loss = (left(trunk(torch.randn(8, 4)).tanh()) + right(trunk(torch.randn(8, 4)))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.autograd.functional.jacobian(lambda x: left(trunk(x)).sum(), torch.randn(1, 4))
    torch.autograd.functional.hessian(lambda x: left(trunk(x).tanh()).sum(), torch.randn(1, 4))
""",
    "twice only": """\
for _ in range(2):
    loss = (left(trunk(torch.randn(8, 4)).tanh()) + right(trunk(torch.randn(8, 4)))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
""",
    "a run that breaks off at the second loss": """\
for _ in range(1):
    features = trunk(torch.randn(8, 4)).tanh()
    for head in (left, right, left, right):
        head(features.detach()).pow(2).mean().backward(retain_graph=True)
    raise SystemError
""",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_a_graph_that_nothing_enters_is_told(run, body: str) -> None:
    code = HEAD.replace(", *right.parameters()", "") + body
    line = next(number for number, text in enumerate(code.splitlines(), 1) if text.endswith("# <-"))
    judged = run(code, "GL1")
    assert judged.found == [("GL103", line)]
    assert "# graphlint: ignore[GL103]" in judged.only("GL103").fix


@pytest.mark.parametrize("body", NEEDED.values(), ids=NEEDED)
def test_a_graph_that_is_needed_is_silent(run, body: str) -> None:
    assert run(HEAD + body, "GL1").found == []


def test_it_says_what_stays_in_memory(run) -> None:
    code = HEAD + (
        "for _ in range(3):\n"
        "    loss = left(trunk(torch.randn(1024, 4)).tanh()).pow(2).mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward(retain_graph=True)\n"
        "    optimizer.step()\n"
    )
    finding = run(code).only("GL103")
    assert "3 times in this run" in finding.message
    assert "KiB" in finding.message
    assert finding.line == 10
