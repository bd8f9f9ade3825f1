"""Runs the command line in this process, and puts back what a run leaves to its script."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from graphlint.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("graphlint: error: ")
        return lines[0].removeprefix("graphlint: error: ")


GraphLint = Callable[..., Result]


@pytest.fixture
def graphlint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[GraphLint]:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    yield call
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


CLEAN = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("trained")
"""

REUSE = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(1, 2)).pow(2).sum()
loss.backward()
optimizer.step()
loss.backward()
"""

DETACHED = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).detach().pow(2).sum()
    scale = torch.ones(1, requires_grad=True)
    (loss * scale).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return _script(tmp_path, "clean.py", CLEAN)


@pytest.fixture
def reuse(tmp_path: Path) -> Path:
    return _script(tmp_path, "reuse.py", REUSE)


@pytest.fixture
def detached(tmp_path: Path) -> Path:
    return _script(tmp_path, "detached.py", DETACHED)


def _script(directory: Path, name: str, source: str) -> Path:
    path = directory / name
    path.write_text(source)
    return path
