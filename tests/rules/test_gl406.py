"""Tensors that the host makes only to move them."""

import pytest

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.rules.gl406_created_then_moved import RULE
from graphlint.testing import Case, cases, run_example

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def update(x, target):
    optimizer.zero_grad()
    (model(x) - target).square().mean().backward()
    optimizer.step()


"""

BAD = {
    "noise": (
        "x = torch.randn(3, 4).to(device)",
        "make it where it is used: `torch.randn(3, 4, device=device)`. The random numbers will be others.",
    ),
    "a constant": (
        "x = torch.full((3, 4), 0.5).cuda()",
        "make it where it is used: `torch.full((3, 4), 0.5, device='cuda')`.",
    ),
    "asked for twice": (
        "x = torch.ones(3, 4).to(device=device, dtype=torch.float32)",
        "give `device='cuda:0'` to `torch.ones`, and drop the move.",
    ),
}

GOOD = {
    "on the device": "x = torch.ones(3, 4, device=device)",
    "filled on the host": "host = torch.zeros(3, 4)\n    host[0] = 1.0\n    x = host.to(device)",
    "kept on the host as well": (
        "host = torch.ones(3, 4)\n    x = host.to(device)\n    total = float(host.sum())"
    ),
    "from data": "x = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 3).to(device)",
    "by a view": "x = torch.arange(12.0).view(3, 4).to(device)",
}


def found(line: str, tmp_path):
    code = HEAD + f"for _ in range(4):\n    {line}\n    update(x, torch.zeros(3, 1, device=device))\n"
    path = tmp_path / "train.py"
    path.write_text(code, encoding="utf-8")
    trace, error = run_example(Example(title="a script", code=code, simulate=("cuda",)), path)
    assert error is None
    report = judge(trace, Selection(select=("GL4",)))
    assert not report.tracebacks
    return report.findings


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", BAD)
def test_made_to_be_moved(tmp_path, name) -> None:
    line, remedy = BAD[name]
    (finding,) = found(line, tmp_path)
    assert (finding.code, finding.severity, finding.line) == ("GL406", "info", HEAD.count("\n") + 2)
    assert finding.fix == remedy
    assert "48 bytes are filled and copied in every step" in finding.message


@pytest.mark.parametrize("name", GOOD)
def test_made_for_more(tmp_path, name) -> None:
    assert found(GOOD[name], tmp_path) == ()


SENT = """\
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.index = torch.arange(4)

    def forward(self, x):
        index = self.index.to(x.device)
        out = torch.zeros(4, 4).to(x.device)
        return out.index_add(0, index, x)


pool = Pool()
for _ in range(4):
    update(pool(torch.ones(4, 4, device=device)), torch.zeros(4, 1, device=device))
"""


def test_a_constant_beside_one_that_is_sent_again_is_part_of_that_finding(tmp_path) -> None:
    code = HEAD + SENT
    path = tmp_path / "train.py"
    path.write_text(code, encoding="utf-8")
    trace, error = run_example(Example(title="a script", code=code, simulate=("cuda",)), path)
    assert error is None
    (finding,) = judge(trace, Selection(select=("GL4",))).findings
    lines = code.splitlines()
    assert finding.code == "GL403"
    assert [(label.line, label.text) for label in finding.labels] == [
        (lines.index("        index = self.index.to(x.device)") + 1, "sent to cuda:0 here, every step"),
        (
            lines.index("        out = torch.zeros(4, 4).to(x.device)") + 1,
            "a constant made and sent here, every step",
        ),
        (lines.index("        self.index = torch.arange(4)") + 1, "made here, on the host"),
    ]
    assert "Make `out` on the device itself" in finding.fix


def test_a_parameter_left_behind_is_shown_where_it_was_built(tmp_path) -> None:
    code = (
        "import torch\nfrom torch import nn\n\n"
        "layers = [nn.Linear(4, 4)]\n"
        "model = nn.Linear(4, 4).to('cuda')\n"
        "print(layers[0](model(torch.ones(2, 4, device='cuda'))).sum().item())\n"
    )
    path = tmp_path / "train.py"
    path.write_text(code, encoding="utf-8")
    trace, _ = run_example(Example(title="a script", code=code, simulate=("cuda",)), path)
    (finding,) = judge(trace, Selection(select=("GL404",))).findings
    assert (4, "built on cpu here") in [(label.line, label.text) for label in finding.labels]
