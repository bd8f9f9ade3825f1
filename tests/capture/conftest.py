"""What the tests of the capture share: sessions, and looks at what they recorded."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.trace import Trace

Record = Callable[..., Trace]


@pytest.fixture
def record() -> Record:
    """Runs a function under capture and returns the trace; what it raises passes."""

    def _record(function: Callable[[], Any], level: str = "full", **options: Any) -> Trace:
        session = Session(CaptureOptions(level=level, **options))
        with session:
            function()
        return session.trace()

    return _record


@pytest.fixture
def events() -> Callable[[Trace, type], list[Any]]:
    def _events(trace: Trace, kind: type) -> list[Any]:
        return [event for event in trace.events if isinstance(event, kind)]

    return _events


@pytest.fixture
def names() -> Callable[[Trace, str], dict[str, set[int]]]:
    """Returns the ids that each name of a kind stands for."""

    def _names(trace: Trace, kind: str) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for name in trace.names:
            if name.of == kind:
                found.setdefault(name.name, set()).add(name.id)
        return found

    return _names


@pytest.fixture
def line_of() -> Callable[[str], int]:
    """Returns the line of the calling test's file that carries a marker."""

    def _line_of(marker: str) -> int:
        path = sys._getframe(1).f_code.co_filename
        with open(path, encoding="utf-8") as source:  # noqa: PTH123 - a test's own file
            lines = [number for number, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
        (line,) = lines
        return line

    return _line_of


@pytest.fixture
def alone() -> Callable[..., tuple[torch.nn.Parameter, torch.optim.Optimizer]]:
    """Makes one parameter with its optimizer."""

    def _alone(size: int = 3, rate: float = 0.1) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(torch.arange(1.0, size + 1))
        return weight, torch.optim.SGD([weight], rate)

    return _alone
