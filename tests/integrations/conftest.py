"""A model to train, and the proof that an audit leaves nothing behind."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from graphlint.capture.session import active_session

INPUTS = torch.ones(1, 2)


class Trainer:
    """A model with a step that is right, one whose loss is cut off from it, and one that torch refuses."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def good(self, inputs: torch.Tensor = INPUTS) -> float:
        self.optimizer.zero_grad()
        loss = self.model(inputs).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def bad(self, inputs: torch.Tensor = INPUTS) -> float:
        self.optimizer.zero_grad()
        scale = torch.ones(1, requires_grad=True)
        loss = self.model(inputs).detach().pow(2).mean() * scale
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def reusing(self, inputs: torch.Tensor = INPUTS) -> None:
        loss = self.model(inputs).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        loss.backward()


@pytest.fixture
def make_trainer() -> type[Trainer]:
    return Trainer


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    call, zero_grad = nn.Module._call_impl, torch.optim.SGD.zero_grad
    yield
    assert active_session() is None
    assert _get_current_function_mode_stack() == []
    assert (nn.Module._call_impl, torch.optim.SGD.zero_grad) == (call, zero_grad)
