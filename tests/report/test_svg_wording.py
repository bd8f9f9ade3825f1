"""Lines of source in a drawing: the code that stands there, not what is said about it."""

import pytest

from graphlint.analysis.facts import Facts
from graphlint.lint.rule import Example
from graphlint.record.tables import Frame
from graphlint.report.drawing.wording import Words
from graphlint.testing import run_example

CODE = """\
import torch

weight = torch.ones(2, requires_grad=True)
loss = (weight * 2).sum()  # type: ignore[operator]
print("# no comment"); loss.backward()
"""


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (3, "weight = torch.ones(2, requires_grad=True)"),
        (4, "loss = (weight * 2).sum()"),
        (5, 'print("# no comment"); loss.backward()'),
    ],
)
def test_comments_are_left_out(line, shown, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(CODE)
    trace, _ = run_example(Example(title="comments", code=CODE), path)
    words = Words(Facts(trace))
    frame = Frame(path=str(path), line=line, function="<module>", first_line=1)
    assert words.code(frame) == f"{line} | {shown}"
    assert words.place(frame).endswith(f"train.py:{line}: {shown}")
