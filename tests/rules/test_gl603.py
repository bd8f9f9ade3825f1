import pytest

from graphlint.rules.gl603_loss_input_mismatch import RULE
from graphlint.testing import Case, cases


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


LOOP = """\
import torch
from torch import nn

torch.manual_seed(0)
F = nn.functional
model = nn.Linear(4, {width})
{setup}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    x, labels = torch.randn(8, 4), torch.randint(0, {width}, (8,))
    y, row = torch.rand(8, 1), torch.rand(8)
    out = model(x)
{body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(body: str, width: int, setup: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return LOOP.format(body=lines, width=width, setup=setup)


SCALES = {
    "through a view": ("p = out.softmax(1)\nloss = F.cross_entropy(p.view(8, 3), labels)", 13),
    "a module": ("p = nn.Softmax(dim=-1)(out)\nloss = nn.CrossEntropyLoss()(p, labels)", 13),
    "sigmoid": ("p = torch.sigmoid(out)\nloss = F.cross_entropy(p, labels)", 13),
    "one line": ("loss = F.cross_entropy(out.softmax(1), labels)", 13),
    "logits loss": ("p = out.sigmoid()\nloss = F.binary_cross_entropy_with_logits(p, torch.rand(8, 3))", 13),
    "clamped": ("p = out.softmax(1)\nloss = F.cross_entropy(p.clamp(1e-6, 1), labels)", 13),
    "the mean of several": (
        "p = out.softmax(1)\nq = torch.stack([p, out.softmax(1)])\nloss = F.cross_entropy(q.mean(0), labels)",
        13,
    ),
    "likelihood of probabilities": ("p = out.softmax(1)\nloss = nn.NLLLoss()(p, labels)", 13),
    "likelihood of a layer": ("loss = F.nll_loss(out, labels)", 12),
    "divergence of probabilities": (
        "p = out.softmax(1)\nloss = F.kl_div(p, torch.rand(8, 3), reduction='sum')",
        13,
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_wrong_scale(run, name: str) -> None:
    body, line = SCALES[name]
    judged = run(script(body, 3), "GL603")
    assert judged.found == [("GL603", line)]
    assert judged.only("GL603").severity == "warning"


def test_the_floor_of_a_softmax_twice_is_told(run) -> None:
    judged = run(script("loss = F.cross_entropy(out.softmax(1), labels)", 6), "GL603")
    assert "with 6 classes the loss can't fall below 1.04" in judged.only("GL603").message


def test_log_softmax_twice_is_a_hint(run) -> None:
    judged = run(script("loss = F.cross_entropy(out.log_softmax(1), labels)", 3), "GL603")
    assert judged.only("GL603").severity == "info"


PAIRS = {
    "mse": "loss = F.mse_loss(out, row)",
    "smooth l1": "loss = nn.SmoothL1Loss()(out, row)",
    "by hand": "loss = ((out - row) ** 2).mean()",
    "the other way round": "loss = (y - out.squeeze(1)).abs().mean()",
    "an advantage": "loss = -(out.squeeze(1) * (y - 0.5)).mean()",
    "rooted": "loss = torch.sqrt(torch.mean(torch.square(row - out)))",
    "weighted": "loss = (row * (out - y).pow(2)).mean()",
    "in a function": "loss = score(out, row)",
}
SCORE = """
def score(prediction, target):
    difference = prediction - target
    return difference.pow(2).sum()


"""


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", PAIRS)
def test_all_pairs_by_accident(run, name: str) -> None:
    finding = run(script(PAIRS[name], 1, SCORE if "score" in PAIRS[name] else ""), "GL603").only("GL603")
    assert "(8, 8)" in finding.message


def test_images_without_their_channel(run) -> None:
    body = "maps = out[:, :, None, None].expand(8, 1, 2, 2)\nloss = F.l1_loss(maps, torch.rand(8, 2, 2))"
    with pytest.warns(UserWarning, match="Using a target size"):
        finding = run(script(body, 1), "GL603").only("GL603")
    assert "(8, 8, 2, 2)" in finding.message


SILENT = {
    "soft targets": (3, "loss = F.cross_entropy(out, out.detach().softmax(1))"),
    "smoothed labels": (3, "loss = nn.CrossEntropyLoss(label_smoothing=0.1)(out, labels)"),
    "probabilities into their loss": (1, "loss = F.binary_cross_entropy(out.sigmoid(), y)"),
    "logarithms by hand": (3, "loss = F.nll_loss(torch.log(out.softmax(1) + 1e-9), labels)"),
    "log_softmax": (3, "loss = F.nll_loss(out.log_softmax(1), labels)"),
    "normalised elsewhere": (3, "loss = F.nll_loss(out, labels) + out.logsumexp(1).mean()"),
    "logits from weights": (3, "loss = F.cross_entropy(out * out.softmax(1), labels)"),
    "attention before a layer": (3, "loss = F.cross_entropy(out.softmax(1) @ torch.rand(3, 3), labels)"),
    "a mask of one column": (3, "loss = ((out - torch.rand(8, 3)) * y.round()).pow(2).mean()"),
    "pairs on purpose": (1, "v = out.squeeze(1)\nloss = (v.unsqueeze(1) - v).pow(2).mean()"),
    "quantiles": (
        3,
        "a = out.unsqueeze(2)\nloss = F.smooth_l1_loss(a, row.unsqueeze(0), reduction='none').sum(1).mean()",
    ),
    "distances between two sets": (
        3,
        "a, b = out.pow(2).sum(1, True), x.norm(dim=1) ** 2\nloss = (a + b - 2 * out @ x[:, :3].T).mean()",
    ),
    "pairs with others": (1, "loss = (out - row + x @ x.T).pow(2).mean()"),
    "norms kept as a column": (3, "a = out.norm(dim=1, keepdim=True) ** 2\nloss = (a - row).abs().mean()"),
    "one sample": (1, "loss = F.mse_loss(out[:1], row[:1])"),
    "pairs that are used as such": (1, "loss = torch.softmax(out + row, 1).diagonal().log().mean().neg()"),
    "a metric": (1, "error = (out - row).abs().mean().item()\nloss = F.mse_loss(out, y)"),
    "a scalar": (1, "loss = (out - row.mean()).pow(2).mean()"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", SILENT)
def test_silent(run, name: str) -> None:
    width, body = SILENT[name]
    assert run(script(body, width), "GL603").found == []
