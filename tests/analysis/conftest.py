"""Builds small traces by hand, for what no short script can make."""

from collections.abc import Callable
from pathlib import Path

import pytest

from graphlint.analysis.facts import Facts
from graphlint.lint.rule import Example
from graphlint.record.events import AnyEvent
from graphlint.record.graph import Graph
from graphlint.record.header import End, Header
from graphlint.record.tables import Frame, Module, Name, Optimizer, Parameter, Site, Source, Tensor
from graphlint.record.trace import Trace
from graphlint.testing import run_example

Row = Site | Source | Tensor | Module | Parameter | Optimizer | Name | Graph | AnyEvent
Build = Callable[..., Facts]


@pytest.fixture
def build() -> Build:
    def _build(*rows: Row) -> Facts:
        header = Header(graphlint="0", torch="0", python="0")
        return Facts(Trace.from_records([header, *rows, End(how="finished")]))

    return _build


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Facts]:
    """Runs a script under capture and returns the facts, however it ended."""

    def _run(code: str) -> Facts:
        path = tmp_path / "train.py"
        path.write_text(code, encoding="utf-8")
        trace, _ = run_example(Example(title="a script", code=code), path)
        return Facts(trace)

    return _run


@pytest.fixture
def tensor() -> Callable[..., Tensor]:
    def _tensor(number: int, storage: int | None = None, **facts: object) -> Tensor:
        shape = facts.pop("shape", (2, 2))
        return Tensor(
            id=number,
            storage=number if storage is None else storage,
            shape=shape,
            dtype=str(facts.pop("dtype", "torch.float32")),
            device="cpu",
            bytes=16,
            **facts,
        )

    return _tensor


@pytest.fixture
def site() -> Callable[..., Site]:
    def _site(number: int, *lines: tuple[str, int]) -> Site:
        """`lines` are (function, line) pairs, innermost first."""
        return Site(id=number, frames=tuple(Frame("train.py", line, name, 1) for name, line in lines))

    return _site
