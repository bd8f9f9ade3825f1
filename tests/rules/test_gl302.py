import pytest

from graphlint.rules.gl302_zero_grad_before_step import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


TAKEN = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]


def differentiate():
    F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 2, (6,))).backward()


for step in range(6):
    model.zero_grad()
    differentiate()
    for optimizer in parts:
        optimizer.step()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    taken = []
    for task in range(2):
        optimizer.zero_grad()
        differentiate()
        taken.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
    start = 0
    for p in model.parameters():
        p.grad.add_(taken[0][start : start + p.numel()].view_as(p))
        start += p.numel()
    optimizer.step()
"""


def test_gradients_taken_in_steps_that_are_only_watched(run) -> None:
    assert run(TAKEN, "GL302").found == []
