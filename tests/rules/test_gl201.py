import pytest

from graphlint.rules.gl201_detached_loss import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


FLAG = """\
import torch
from torch import nn

torch.manual_seed(0)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x, detach=False):
        h = self.encoder(x)
        return self.head(h.detach() if detach else h)


critic = Critic()
encoder_optimizer = torch.optim.SGD(critic.encoder.parameters(), lr=0.1)
head_optimizer = torch.optim.SGD(critic.head.parameters(), lr=0.1)
for step in range(4):
    loss = critic(torch.randn(8, 6), detach=True).pow(2).mean()
    encoder_optimizer.zero_grad()
    head_optimizer.zero_grad()
    loss.backward()
    encoder_optimizer.step()
    head_optimizer.step()
"""


def test_the_call_that_leads_to_the_cut_is_shown(run) -> None:
    texts = {label.line: label.text for label in run(FLAG).only("GL201").labels}
    assert texts[14].startswith("cut here")
    assert texts[21] == "called from here"
