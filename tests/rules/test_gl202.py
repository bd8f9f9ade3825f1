import pytest
import torch

from graphlint.rules.gl202_no_grad_loss import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


SWITCHED_OFF = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def accuracy(x, y):
    torch.set_grad_enabled(False)
    return (model(x).argmax(1) == y).float().mean().item()


for epoch in range(2):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy(x, y)
"""


@pytest.fixture
def gradients_on():
    """Switches gradients on again after a script that left them off."""
    yield
    torch.set_grad_enabled(True)


@pytest.mark.usefixtures("gradients_on")
def test_the_call_that_left_gradients_off_is_shown(run):
    judged = run(SWITCHED_OFF)
    assert [code for code, _ in judged.found] == ["GL202"]
    finding = judged.only("GL202")
    texts = {label.line: label.text for label in finding.labels}
    assert texts[10] == "cut here: gradients are switched off from here on"
    assert texts[16] == "computed without a graph"
    assert finding.fix.startswith("switch gradients on again after line 10, ")
