"""An exception that won't say what it is stops neither the training nor the record of it."""

from typing import Any

import pytest
import torch
from torch import nn

from graphlint.capture.messages import MAX_MESSAGE, kind_of, message_of, text_of
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import Backward, CaptureFault, ModuleCall, OptimizerStep, ScriptError


class MuteError(Exception):
    def __str__(self) -> str:
        raise KeyError("not telling")


class NoTextError(Exception):
    def __str__(self) -> Any:
        return 5  # noqa: PLE0307 - the point


class Shouted(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise KeyError(key)


class Renamed(type):
    @property
    def __name__(cls) -> str:
        raise KeyError("not telling")


class NamelessError(Exception, metaclass=Renamed):
    pass


@pytest.mark.parametrize(
    "error", [MuteError(), NoTextError(), ValueError(MuteError())], ids=["mute", "no-text", "argument"]
)
def test_a_message_that_can_not_be_had_is_the_interpreters(error: Exception) -> None:
    assert message_of(error) == "<exception str() failed>"


def test_a_message_is_cut_and_plain() -> None:
    assert message_of(ValueError("x" * (MAX_MESSAGE + 1))) == "x" * MAX_MESSAGE
    assert type(message_of(ValueError(Shouted("loud")))) is str
    assert message_of(ValueError("short")) == "short"


def test_what_is_said_otherwise() -> None:
    assert text_of(MuteError(), otherwise="nothing") == "nothing"
    assert text_of(3, otherwise="nothing") == "3"


def test_what_ends_the_process_is_not_swallowed() -> None:
    class EndingError(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        message_of(EndingError())


def test_a_class_is_named_past_its_metaclass() -> None:
    assert kind_of(NamelessError()) == "NamelessError"


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise MuteError


class Failing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        raise MuteError


class BadStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise MuteError


def test_no_tap_fails_over_a_mute_exception() -> None:
    weight = torch.ones(2, requires_grad=True)
    session = Session(CaptureOptions(level="full"))
    with session:
        with pytest.raises(MuteError):
            Refusing.apply(weight).sum().backward()
        with pytest.raises(MuteError):
            Failing()(weight)
        with pytest.raises(MuteError):
            BadStep([weight], lr=0.1).step()
        session.record_error(NamelessError(MuteError()))
    events = session.trace().events
    assert not [event for event in events if isinstance(event, CaptureFault)]
    told = [event for event in events if isinstance(event, Backward | ModuleCall | OptimizerStep)]
    assert {event.error for event in told} == {"<exception str() failed>"}
    assert {type(event) for event in told} == {Backward, ModuleCall, OptimizerStep}
    (ended,) = [event for event in events if isinstance(event, ScriptError)]
    assert (ended.type, ended.message) == ("NamelessError", "<exception str() failed>")
