import pytest

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.rules.gl303_step_without_backward import RULE
from graphlint.testing import Case, cases, run_example


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


BESIDE = """\
import torch
from torch import nn
torch.manual_seed(0)
first, second = nn.Linear(3, 3), nn.Linear(3, 3)
first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(2, 3)
    first_optimizer.zero_grad()
    first(x).pow(2).mean().backward()
    first_optimizer.step()
    second_optimizer.zero_grad()
    loss = second(x){detached}.pow(2).mean()
    {backward}
    second_optimizer.step()
"""


@pytest.mark.parametrize(
    ("detached", "backward", "told"),
    [(".detach()", "pass", ["GL303"]), ("", "pass", ["GL303"]), ("", "loss.backward()", [])],
    ids=["no backward, and no loss to call it on", "no backward", "right"],
)
def test_another_network_is_trained_meanwhile(detached, backward, told, tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BESIDE.format(detached=detached, backward=backward))
    trace, _ = run_example(Example(title="beside", code=path.read_text()), path)
    findings = judge(trace, Selection()).findings
    assert [finding.code for finding in findings] == told
    assert all(15 in {label.line for label in finding.labels} for finding in findings)
