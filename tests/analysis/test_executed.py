"""That a line ran is proved by what it or its neighbours called, and else not claimed."""

import pytest

from graphlint.analysis.executed import Executed
from graphlint.analysis.sources import Sources
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

SOURCE = """\
import torch
x = 1
def step(n):
    y = 2
    if n > 9:
        z = 3
    loss = weight.sum()
    loss.backward()
    if n == 0:
        return
    w = 4
def never():
    torch.ones(1)
    v = 5
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for n in range(5):
    step(n)
    optimizer.step()
    if n == 4:
        torch.ones(1)
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    path = tmp_path_factory.mktemp("executed") / "train.py"
    path.write_text(SOURCE)
    with Session(CaptureOptions()) as session:
        exec(compile(SOURCE, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - a script under capture
    trace = session.trace()
    ran = Executed(trace, Sources(trace))
    return lambda line, *, in_full=False: ran.passed(str(path), line, line, in_full=in_full)


@pytest.mark.parametrize("line", [7, 8, 15, 18, 19])
def test_a_line_that_called_torch_ran(executed, line):
    assert executed(line)
    assert executed(line, in_full=True)


@pytest.mark.parametrize("line", [2, 4, 9])
def test_a_line_whose_neighbours_ran_ran(executed, line):
    assert executed(line)


@pytest.mark.parametrize(
    ("line", "why"), [(6, "a branch"), (11, "behind a return"), (13, "never called"), (14, "never called")]
)
def test_what_is_not_proved_is_not_claimed(executed, line, why):
    assert not executed(line), why


def test_a_line_of_a_watched_step_was_not_recorded_in_full(executed):
    assert not executed(21, in_full=True)


def test_what_no_source_holds_did_not_run(executed):
    assert not executed(999)
