"""A function that the script puts in the place of torch's runs once for each call, as it does alone."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import Backward, Op


class Counting:
    """Calls torch's function and counts; no plain function itself."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._original(*args, **kwargs)


def test_a_function_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(CaptureOptions(level="full"))
    with session:
        dropout = Counting(functional.dropout)
        monkeypatch.setattr(functional, "dropout", dropout)
        functional.dropout(torch.ones(2))
        functional.dropout(torch.ones(2), training=False)
    assert dropout.calls == 2
    names = [event.name for event in session.trace().events if isinstance(event, Op)]
    assert names.count("torch.nn.functional.dropout") == 2


def test_a_method_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = torch.Tensor.backward

    def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        calls.append(tensor)
        original(tensor, *args, **kwargs)

    session = Session(CaptureOptions(level="full"))
    with session:
        monkeypatch.setattr(torch.Tensor, "backward", backward)
        torch.ones(2, requires_grad=True).sum().backward()
    assert len(calls) == 1
    assert len([event for event in session.trace().events if isinstance(event, Backward)]) == 1
