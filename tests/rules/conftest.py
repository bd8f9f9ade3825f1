"""Runs scripts under capture and judges them by the rules of the gradient graph."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphlint.lint.finding import Finding
from graphlint.lint.rule import Example, Report
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.testing import run_example


@dataclass
class Judged:
    """What the graph rules found in a script; `found` holds (code, line) pairs."""

    report: Report

    @property
    def found(self) -> list[tuple[str, int]]:
        assert not self.report.tracebacks
        return [(finding.code, finding.line) for finding in self.report.findings]

    def only(self, code: str) -> Finding:
        (finding,) = [finding for finding in self.report.findings if finding.code == code]
        return finding

    def lines(self, code: str) -> list[int]:
        return [label.line for label in self.only(code).labels]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Judged]:
    def _run(code: str, *select: str) -> Judged:
        path = tmp_path / "train.py"
        path.write_text(code, encoding="utf-8")
        trace, _ = run_example(Example(title="a script", code=code), path)
        return Judged(judge(trace, Selection(select=select or ("GL1", "GL2", "GL3"))))

    return _run
