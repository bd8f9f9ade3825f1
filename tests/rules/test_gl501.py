"""Cleanup churn: what is counted, over how many steps, and what is said of it."""

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.rules.gl501_cleanup_churn import RULE
from graphlint.testing import run_example

HEAD = """\
import gc
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(code, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEAD + code, encoding="utf-8")
    trace, error = run_example(Example(title="a script", code=HEAD + code), path)
    assert error is None
    return judge(trace, Selection(), [RULE]).findings


def test_every_step_counts_those_that_were_only_watched_too(tmp_path):
    (found,) = findings(
        """
for step in range(7):
    gc.collect()
    gc.collect()
    update()
""",
        tmp_path,
    )
    assert (found.count, found.first_step, found.last_step) == (7, 0, 6)
    assert [label.line for label in found.labels] == [14, 15]
    assert "gc.collect() runs twice a step" in found.message
    assert " ms of each step" in found.message
    assert "empty_cache" not in found.message + found.fix


def test_the_callers_of_a_cleanup_function_are_named(tmp_path):
    (found,) = findings(
        """
def tidy():
    torch.cuda.empty_cache()
for step in range(4):
    tidy()
    update()
    tidy()
    tidy()
""",
        tmp_path,
    )
    assert [(label.line, label.text) for label in found.labels] == [
        (14, "torch.cuda.empty_cache() 3 times a step"),
        (16, "calls `tidy` here"),
        (18, "calls `tidy` here"),
        (19, "calls `tidy` here"),
    ]
    assert "calls of `tidy`" in found.fix


def test_cleanup_after_each_part_of_an_accumulated_gradient_is_once(tmp_path):
    code = """
for step in range(3):
    optimizer.zero_grad()
    for part in range(4):
        model(torch.randn(4, 8)).square().mean().backward()
        gc.collect()
    optimizer.step()
"""
    assert findings(code, tmp_path) == ()


def test_cleanup_in_a_few_steps_is_left_alone(tmp_path):
    code = """
for step in range(6):
    update()
    if step % 3 == 2:
        gc.collect()
        gc.collect()
"""
    assert findings(code, tmp_path) == ()
