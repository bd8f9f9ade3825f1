import pytest

from graphlint.rules.gl203_unreached_parameter import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


AUX = """\
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.aux = nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x).relu()
        side = self.aux(h)
        return self.out(h), side


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    out, side = net(torch.randn(8, 4))
    loss = nn.functional.cross_entropy(out, torch.randint(0, 3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_output_that_the_loss_leaves_out(run) -> None:
    finding = run(AUX).only("GL203")
    texts = {label.line: label.text for label in finding.labels}
    assert texts[15] == "computed here, and left out of the loss"
    assert texts[22] == "computed here, and left out of the loss"
    assert texts[23] == "`loss` is made here without it"
    assert finding.fix == (
        "let `loss` depend on what `net.aux` computes (line 15), or take it out of the model and of "
        "`optimizer`."
    )
