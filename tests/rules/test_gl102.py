import pytest

from graphlint.rules.gl102_silent_rebackward import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


RUNNING = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    total = 0.0
    for part in range(4):
        total = total + model(torch.randn(8, 4)).pow(2).mean()
        total.backward(retain_graph=True)
    optimizer.step()
"""


def test_a_running_sum_is_one_finding(run):
    judged = run(RUNNING)
    finding = judged.only("GL102")
    assert judged.found == [("GL102", 12)]
    assert finding.fix == "call backward on what line 11 adds alone, or once on the sum when it is complete."
