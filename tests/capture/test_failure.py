"""The error of a script with the user's frames and what the failing line named."""

import pytest
import torch
from torch import nn

from graphlint.capture.failure import bare_error, describe_error
from graphlint.capture.recorder import Recorder
from graphlint.capture.sink import Sink


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Sink(None), lambda tensor: str(tensor.device))


def caught(function) -> Exception:
    try:
        function()
    except (RuntimeError, ValueError) as error:
        return error
    raise AssertionError


def test_frames_and_operands(recorder, line_of) -> None:
    class Holder:
        def __init__(self) -> None:
            self.weight = torch.ones(4)

    def work() -> None:
        images, holder = torch.ones(2, 3), Holder()
        images @ holder.weight  # failing

    event = describe_error(caught(work), recorder)
    assert event.type == "RuntimeError"
    assert event.frames[0].line == line_of("failing")
    assert [frame.function.rpartition(".")[2] for frame in event.frames] == ["work", "caught"]
    assert {(operand.name, operand.shape, operand.device) for operand in event.operands} == {
        ("images", (2, 3), "cpu"),
        ("holder.weight", (4,), "cpu"),
    }


def test_a_module_is_told_by_its_parameters(recorder) -> None:
    def work() -> None:
        net = nn.Linear(2, 2)
        net(torch.ones(1, 3))

    event = describe_error(caught(work), recorder)
    assert [operand.name for operand in event.operands] == ["net's parameters"]


def test_variables_are_not_kept_alive(recorder) -> None:
    import weakref

    held = []

    def work() -> None:
        x = torch.ones(2)
        held.append(weakref.ref(x))
        raise ValueError(str(x.shape))

    error = caught(work)
    describe_error(error, recorder)
    error.__traceback__ = None
    assert held[0]() is None


def test_properties_are_not_run(recorder) -> None:
    ran = []

    class Holder:
        @property
        def weight(self):
            ran.append(1)
            return torch.ones(2)

    def work() -> None:
        holder = Holder()
        raise ValueError(holder.weight)

    describe_error(caught(work), recorder)
    assert ran == [1]


def test_a_bare_error_has_a_text_in_every_case(recorder) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert bare_error(UnprintableError(), recorder).message == "<exception str() failed>"
    assert bare_error(KeyError("x"), recorder).message == "'x'"


def test_a_dict_of_locals_is_the_users_own(recorder) -> None:
    kept = []

    def work() -> None:
        images = torch.ones(2, 3)
        kept.append(locals())
        images @ torch.ones(4)

    describe_error(caught(work), recorder)
    assert "images" in kept[0]
