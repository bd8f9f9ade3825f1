import pytest
import torch

from graphlint.rules.gl306_non_finite_gradient import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


LOOP = """\
import math
import torch
from torch import nn

torch.manual_seed(0)
F = nn.functional
model = nn.Linear(4, 4, bias=False)
{setup}
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
for step in range({steps}):
    x = torch.randn(8, 4)
    x[0] = 0
    out = model(x)
{body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(body: str, setup: str = "", *, rate: float = 0.01, steps: int = 3) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return LOOP.format(body=lines, setup=setup, rate=rate, steps=steps)


BORN_IN_BACKWARD = {
    "root of an energy": ("e = out.pow(2).sum(1)\nloss = (torch.sqrt(e) - 1).pow(2).mean()", 15, "e + 1e-8"),
    "power of one half": (
        "e = out.pow(2).sum(1)\nloss = ((e ** 0.5) - 1).pow(2).mean()",
        15,
        "e.clamp_min(1e-8)",
    ),
    "arc cosine": ("c = 1 + 0 * out.sum(1)\nloss = torch.acos(c).mean()", 15, "c.clamp"),
    "masked logarithm": (
        "p = out.abs()\nlogs = torch.log(p)\nloss = torch.where(p > 0, logs, 0.0).mean()",
        15,
        "torch.where(mask, p, 1.0)",
    ),
    "masked division": (
        "n = out.abs().sum(1)\nr = x[:, 0] / n\nloss = torch.where(n > 0, r, 0.0).mean()",
        15,
        "where",
    ),
}


@pytest.mark.parametrize("name", BORN_IN_BACKWARD)
def test_a_finite_loss_with_a_gradient_that_is_not(run, name: str) -> None:
    body, line, remedy = BORN_IN_BACKWARD[name]
    finding = run(script(body), "GL306").only("GL306")
    assert finding.line == line, finding
    assert "The loss is finite" in finding.message
    assert remedy in finding.fix
    assert finding.first_step == 0


BORN_IN_FORWARD = {
    "logarithm of zero": ("p = out.abs()\nloss = torch.log(p).mean()", 15, "`log`"),
    "zero by zero": ("n = out.abs().sum(1)\nr = n / n\nloss = r.mean()", 15, "`div`"),
    "exponential": ("e = torch.exp(out * 1e4)\nloss = e.mean()", 14, "`exp`"),
    "no elements": ("loss = out.sum() * out[out > 99].mean()", 14, "`mean`"),
    "one element": ("loss = (out / out[:, :1].std(1, keepdim=True)).mean()", 14, "`std`"),
    "all masked": (
        "s = out.masked_fill(x == 0, -math.inf)\nw = torch.softmax(s, 1)\nloss = (w.T @ out).mean()",
        15,
        "`softmax`",
    ),
    "scores all masked": (
        "s = (out @ out.T).masked_fill(x[:, :1] < 9, -math.inf)\nloss = (torch.softmax(s, 1) @ out).mean()",
        15,
        "`softmax`",
    ),
    "half precision": (
        "h = (out * 1e3).half()\nbig = h * 500\nloss = big.float().pow(2).mean()",
        15,
        "`mul`",
    ),
    "through views and sums": (
        "e = torch.exp(out * 1e4)\ns = e.view(4, 8).t().sum(0) + 1\nloss = (s - s.mean()).mean()",
        14,
        "`exp`",
    ),
}


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", BORN_IN_FORWARD)
def test_a_value_that_is_not_finite(run, name: str) -> None:
    body, line, operation = BORN_IN_FORWARD[name]
    finding = run(script(body), "GL306").only("GL306")
    assert finding.line == line, finding
    assert operation in finding.message
    assert finding.severity == "error"


def test_the_data_has_it(run) -> None:
    body = "x[2, 1] = math.nan\nloss = F.relu(model(x)).mean()"
    finding = run(script(body), "GL306").only("GL306")
    assert "`x` holds a NaN or an infinity already" in finding.message
    assert finding.line == 14


def test_a_batch_of_a_loader_has_it(run) -> None:
    code = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(8, 2)
data[5, 0] = float("nan")
for inputs, targets in DataLoader(TensorDataset(data, torch.randn(8, 1)), batch_size=4):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    finding = run(code, "GL306").only("GL306")
    assert "`inputs` holds a NaN" in finding.message
    assert (finding.line, finding.first_step) == (11, 1)


def test_a_custom_function_is_named(run) -> None:
    setup = """
class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value.sqrt())
        return value.sqrt()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (2 * ctx.saved_tensors[0])


"""
    finding = run(script("loss = Root.apply(out.abs()).mean()", setup), "GL306").only("GL306")
    assert "custom function Root" in finding.message


def test_late_in_the_forward_pass(run) -> None:
    body = "scale = 1.0 if step < 9 else 1e5\nloss = torch.exp(out * scale).mean()"
    finding = run(script(body, steps=14), "GL306").only("GL306")
    assert finding.line == 15
    assert finding.first_step == 9
    assert "`loss` is not finite" in finding.message


def test_late_in_the_backward_pass(run) -> None:
    body = "e = (out.pow(2).sum(1) + (1e-6 if step < 9 else 0)).sqrt()\nloss = (e - 1).pow(2).mean()"
    finding = run(script(body, steps=14), "GL306").only("GL306")
    assert finding.first_step == 9
    assert "`loss` was finite" in finding.message
    assert "--level full" in finding.fix


def test_late_under_a_root_that_can_be_named(run) -> None:
    body = "e = out.pow(2).sum(1) + (1e-6 if step < 9 else 0)\nloss = (torch.sqrt(e) - 1).pow(2).mean()"
    finding = run(script(body, steps=14), "GL306").only("GL306")
    assert (finding.line, finding.first_step) == (15, 9)
    assert "can be infinite" in finding.message
    assert "`torch.sqrt(e + 1e-8)`" in finding.fix


def test_a_parameter_that_was_never_initialised(run) -> None:
    setup = "model.weight.data.fill_(math.nan)"
    finding = run(script("loss = out.mean()", setup), "GL306").only("GL306")
    assert "before any step was taken" in finding.message


def test_a_learning_rate_that_is_too_high(run) -> None:
    finding = run(script("loss = (out - x).pow(2).mean()", rate=500.0, steps=40), "GL306").only("GL306")
    assert "after the loss had grown from" in finding.message
    assert "learning rate" in finding.fix


def test_a_script_that_stops_on_it(run) -> None:
    body = "loss = torch.exp(out * 1e4).mean()\nif not math.isfinite(loss.item()):\n    raise SystemExit(1)"
    with pytest.raises(SystemExit):
        run(script(body), "GL306")


def test_a_script_that_raises_on_it(run) -> None:
    body = "e = torch.exp(out * 1e4)\nloss = e.mean()\nassert torch.isfinite(loss), 'diverged'"
    finding = run(script(body), "GL306").only("GL306")
    assert finding.line == 14
    assert finding.message.endswith("The script ended there.")


def test_torch_s_own_anomaly_mode(run) -> None:
    body = "torch.autograd.set_detect_anomaly(True)\ne = out.pow(2).sum(1)\nloss = torch.sqrt(e).mean()"
    code = script(body)
    try:
        with pytest.warns(UserWarning, match="Anomaly|Error detected"):
            finding = run(code, "GL306").only("GL306")
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert finding.line == 16


SILENT = {
    "skipped": "loss = torch.log(out.abs()).mean()\nif not torch.isfinite(loss):\n    continue",
    "safe root": "loss = (torch.sqrt(out.pow(2).sum(1) + 1e-8) - 1).pow(2).mean()",
    "norm of zeros": "loss = (out.norm(dim=1) - 1).pow(2).mean()",
    "an infinity that is a mask": (
        "s = torch.cat([out.masked_fill(out > 0, -math.inf), x], 1)\nloss = torch.softmax(s, 1).pow(2).mean()"
    ),
    "a metric that is not finite": "error = torch.log(out.detach().abs()).mean()\nloss = out.pow(2).mean()",
    "an infinity that nobody differentiates": "loss = torch.minimum(out, torch.tensor(math.inf)).mean()",
    "the value of another branch": "loss = torch.where(out > 0, out, x * math.inf).clamp(-9, 9).mean()",
}


@pytest.mark.parametrize("name", SILENT)
def test_silent(run, name: str) -> None:
    assert run(script(SILENT[name]), "GL306").found == []


def test_a_scaler_that_skips_the_step(run) -> None:
    code = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4) * 9).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    assert run(code, "GL306").found == []
