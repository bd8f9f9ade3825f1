import pytest

from graphlint.rules.gl305_discarded_gradient import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


LATE = """\
import torch
from torch import nn

torch.manual_seed(0)
warm = nn.Linear(4, 4)
warm_optimizer = torch.optim.SGD(warm.parameters(), lr=0.1)
for _ in range(5):
    warm_optimizer.zero_grad()
    warm(torch.randn(3, 4)).square().mean().backward()
    warm_optimizer.step()
trunk, head = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer, head_optimizer = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (trunk, head)]


def reset():
    optimizer.zero_grad()
    head_optimizer.zero_grad()


for _ in range(5):
    reset()
    head(trunk(torch.randn(3, 4))).mean().backward()
    optimizer.step()
    head_optimizer.step()
    reset()
    features = trunk(torch.randn(3, 4))
    loss = head(features).square().mean()
    loss.backward()
    head_optimizer.step()
"""


def test_a_step_that_was_watched_before_others_were_recorded_is_the_same_fault(run) -> None:
    judged = run(LATE, "GL305")
    (found,) = judged.found
    assert found == ("GL305", LATE[: LATE.index("loss.backward()")].count("\n") + 1)
    assert "detach `features`" in judged.only("GL305").fix


COPIED = """\
import torch
from torch import nn

torch.manual_seed(0)
trunk, head = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer, head_optimizer = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (trunk, head)]
for _ in range({before}):
    optimizer.zero_grad()
    trunk(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
for _ in range(5):
    kept = []
    for task in range(2):
        optimizer.zero_grad()
        head_optimizer.zero_grad()
        head(trunk(torch.randn(3, 4))).square().mean().backward()
        head_optimizer.step()
        kept.append([p.grad.clone() for p in trunk.parameters()])
    optimizer.zero_grad()
    for p, one, two in zip(trunk.parameters(), *kept):
        p.grad = one + two
    optimizer.step()
"""


@pytest.mark.parametrize("before", [0, 6])
def test_gradients_copied_before_they_are_zeroed(run, before) -> None:
    assert run(COPIED.format(before=before), "GL305").found == []
