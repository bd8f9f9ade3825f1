import pytest

from graphlint.rules.gl307_zero_gradient import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


LOOP = """\
import torch
from torch import nn

torch.manual_seed(0)
F = nn.functional
{setup}
optimizer = torch.optim.SGD({parameters}, lr={rate})
for step in range({steps}):
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
{body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

MODEL = "model, head = nn.Linear(4, 8), nn.Linear(8, 1)"
BOTH = "[*model.parameters(), *head.parameters()]"


def script(body, setup=MODEL, parameters=BOTH, rate=0.1, steps=5) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return LOOP.format(setup=setup, parameters=parameters, body=lines, rate=rate, steps=steps)


FAULTS = {
    "rounded": ("loss = (head(model(x).round()) - y).pow(2).mean()", "`model`", "round"),
    "floored in a function": ("loss = F.mse_loss(head(torch.floor(model(x))), y)", "`model`", "floor"),
    "clamped": ("loss = F.mse_loss(head(model(x).clamp(50, 60)), y)", "`model`", "clamp"),
    "saturated": ("loss = F.mse_loss(head(torch.sigmoid(model(x) - 200)), y)", "`model`", "sigmoid"),
    "softmax over one": ("loss = F.mse_loss(torch.softmax(head(model(x)), 1), y)", "`model`", "softmax"),
    "dead layer": ("loss = F.mse_loss(head(F.relu(model(x) - 99)), y)", "`model`", "relu"),
    "dropped": ("loss = F.mse_loss(head(F.dropout(model(x), 1.0)), y)", "`model`", "dropout"),
    "layer norm over one": (
        "loss = F.mse_loss(F.layer_norm(head(model(x)), (1,)), y)",
        "`model`",
        "layer_norm",
    ),
    "critic that ends in a rectifier": (
        "loss = -F.relu(F.linear(model(x), head.weight, head.bias - 99)).mean()",
        "`model`",
        "relu",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_lets_no_gradient_through(run, name: str) -> None:
    body, owner, operation = FAULTS[name]
    judged = run(script(body), "GL307")
    finding = judged.only("GL307")
    assert owner in finding.message
    assert f"`{operation}`" in finding.message
    assert finding.line == 11
    assert finding.severity == "warning"


def test_a_custom_function_that_returns_zeros(run) -> None:
    setup = (
        """\
class Hard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return (value > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


"""
        + MODEL
    )
    finding = run(script("loss = F.mse_loss(head(Hard.apply(model(x))), y)", setup), "GL307").only("GL307")
    assert "custom function Hard" in finding.message


def test_two_layers_that_both_start_from_zero(run) -> None:
    setup = (
        MODEL
        + "\nfor layer in (model, head):\n    nn.init.zeros_(layer.weight)\n    nn.init.zeros_(layer.bias)"
    )
    finding = run(script("loss = F.mse_loss(head(F.relu(model(x))), y)", setup), "GL307").only("GL307")
    assert "`model` are exactly zero" in finding.message
    assert "both zero" in finding.message
    assert finding.severity == "warning"


def test_a_frozen_factor_of_zeros_is_a_hint(run) -> None:
    finding = run(script("loss = F.mse_loss(head(model(x)) * torch.zeros(1), y)"), "GL307").only("GL307")
    assert finding.severity == "info"


SILENT = {
    "a gate that starts from zero": (
        "loss = F.mse_loss(y * 0 + gate * head(model(x)), y)",
        MODEL + "\ngate = nn.Parameter(torch.zeros(1))",
        "[*model.parameters(), *head.parameters(), gate]",
        0.1,
    ),
    "the same under a rate of zero at first": (
        "loss = F.mse_loss(gate * head(model(x)), y)",
        MODEL + "\ngate = nn.Parameter(torch.zeros(1))",
        "[*model.parameters(), *head.parameters(), gate]",
        0.0,
    ),
    "a weight of zero for a part of the loss": ("loss = y.mean() + 0.0 * head(model(x)).mean()",),
    "a triplet loss that is satisfied": (
        "loss = F.relu((model(x) - model(x)).pow(2).sum(1) - 9).mean() + 0 * head.weight.sum()",
    ),
    "a perfect fit": ("loss = F.mse_loss(head(model(x)), head(model(x)).detach())",),
    "a branch that where leaves out": ("loss = torch.where(y < 99, y, head(model(x))).mean()",),
    "a ratio that is clipped": (
        "ratio = 3 + 0.001 * head(model(x))\nloss = -torch.min(ratio * 9, ratio.clamp(0.8, 1.2)).mean()",
    ),
    "no element is chosen": ("loss = head(model(x))[y > 99].sum()",),
    "the smaller of two": ("loss = torch.minimum(y, head(model(x)) + 99).mean()",),
}


@pytest.mark.parametrize("name", SILENT)
def test_silent(run, name: str) -> None:
    judged = run(script(*SILENT[name]), "GL307")
    assert [finding for finding in judged.report.findings if finding.severity != "info"] == []


def test_a_zero_that_ends_is_no_fault(run) -> None:
    body = "loss = F.mse_loss(head(F.relu(model(x) - (99 if step < 3 else 0))), y)"
    assert run(script(body, steps=6), "GL307").found == []


def test_two_steps_prove_nothing(run) -> None:
    assert run(script("loss = F.mse_loss(head(model(x).round()), y)", steps=2), "GL307").found == []


def test_gradients_that_are_collected_over_several_batches(run) -> None:
    code = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(128, 4)), batch_size=4)
for index, (x,) in enumerate(loader):
    code = torch.round(encoder(x))
    loss = nn.functional.mse_loss(decoder(code), x)
    (loss / 4).backward()
    if index % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
    finding = run(code, "GL307").only("GL307")
    assert "`encoder`" in finding.message
    assert finding.line == 10
