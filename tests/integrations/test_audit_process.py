"""Audits that end with their process: the report comes at its exit. Each test imports torch anew."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import asyncio
    import torch
    from torch import nn
    import graphlint

    torch.set_num_threads(1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @graphlint.audit(on_finding="report", select="GL201")
    async def train_step(inputs):
        optimizer.zero_grad()
        scale = torch.ones(1, requires_grad=True)
        (model(inputs).detach().sum() * scale).sum().backward()
        optimizer.step()

    async def main():
        for _ in range(2):
            await train_step(torch.ones(1, 2))

    asyncio.run(main())
    raise ValueError("outside of the step")
"""


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(textwrap.dedent(SCRIPT))
    return subprocess.run(
        [sys.executable, *command, "train.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=120,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


def test_a_decorated_script_reports_at_exit(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 1
    before, _, report = result.stderr.partition("ValueError: outside of the step\n")
    assert before.startswith("Traceback (most recent call last):\n")
    assert report.startswith("train.py:")
    assert report.count("GL201 detached-loss (error)") == 1
    assert "in 2 steps" in report
    assert "the audited code ended in an exception at train.py:" in report


def test_a_decorated_script_under_graphlint_run_reports_once(tmp_path: Path) -> None:
    result = run(tmp_path, "-m", "graphlint", "run", "--select", "GL201")
    assert result.returncode == 3
    assert result.stderr.count("GL201 detached-loss (error)") == 1
    assert "in 2 steps" in result.stderr
