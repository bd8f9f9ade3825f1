import pytest

from graphlint.rules.gl304_gradient_bleed import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


TERMS = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
encoder, generator = nn.Linear(6, 2), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))
encoder_optimizer = torch.optim.Adam(encoder.parameters())
optimizer = torch.optim.Adam(generator.parameters())
for step in range(5):
    images, others, code = torch.rand(4, 6), torch.rand(4, 6), torch.randn(4, 2)
    encoder_optimizer.zero_grad()
    optimizer.zero_grad()
    drawn = generator(torch.cat((others, encoder(images)), 1))
    dreamt = generator(torch.cat((others, code), 1))
    loss = F.l1_loss(drawn, images) + dreamt.pow(2).mean()
    loss.backward(retain_graph=True)
    encoder_optimizer.step()
    {latent}
    latent_loss.backward()
    optimizer.step()
"""


def test_a_second_term_of_one_loss_that_the_encoder_is_spared(run) -> None:
    code = TERMS.format(latent="latent_loss = F.l1_loss(encoder(dreamt), code)")
    assert run(code, "GL304").found == []


def test_a_loss_with_a_forward_of_its_own_is_another(run) -> None:
    code = TERMS.format(latent="latent_loss = F.l1_loss(encoder(generator(torch.randn(4, 8))), code)")
    assert run(code, "GL304").only("GL304").line == code[: code.index("loss.backward(")].count("\n") + 1
