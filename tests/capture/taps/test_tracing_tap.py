"""What torch traces is traced as without graphlint, and that it wasn't seen is said."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import CaptureFault, ModuleCall, Op

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values).relu().view(values.shape[0], -1)


def traced(model: nn.Module) -> str:
    return _unmangled(torch.jit.trace(model, torch.ones(2, 3)).graph)


def _unmangled(graph: Any) -> str:
    """Returns the graph without the numbers that torch gives to equal classes."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(graph))


def exported(model: nn.Module, *, strict: bool) -> str:
    sizes = {"values": {0: torch.export.Dim("batch")}}
    return str(torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=sizes, strict=strict).graph)


def made_symbolic(_: nn.Module) -> str:
    return str(
        make_fx(lambda values: values.relu() * values.shape[0], tracing_mode="symbolic")(
            torch.ones(5, 3)
        ).code
    )


FORMS: dict[str, Callable[[nn.Module], str]] = {
    "jit.trace": traced,
    "export": lambda model: exported(model, strict=False),
    "strict export": lambda model: exported(model, strict=True),
    "make_fx": made_symbolic,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_trace_is_that_of_the_script_alone(form: str) -> None:
    model = Flat()
    plain = FORMS[form](model)
    session = Session(CaptureOptions(level="full"))
    with session:
        assert FORMS[form](model) == plain
        model(torch.ones(2, 3)).sum().backward()
    trace = session.trace()
    assert trace.end is not None
    assert any("jit" in text or "exported" in text for text in trace.end.unseen)
    assert not [event for event in trace.events if isinstance(event, CaptureFault)]
    assert [event for event in trace.events if isinstance(event, ModuleCall)]


def test_a_trace_that_fails_puts_the_level_back() -> None:
    def failing(values: torch.Tensor) -> Any:
        raise ValueError("in the trace")

    session = Session(CaptureOptions(level="full"))
    with session:
        with pytest.raises(ValueError, match="in the trace"):
            torch.jit.trace(failing, torch.ones(2))
        torch.ones(2).mul(2)
    assert "torch.Tensor.mul" in {event.name for event in session.trace().events if isinstance(event, Op)}


def test_fake_tensors_are_not_recorded() -> None:
    session = Session(CaptureOptions(level="full"))
    with session:
        with FakeTensorMode():
            nn.Linear(3, 4)(torch.ones(2, 3)).sum().backward()
        torch.ones(2).mul(2)
    trace = session.trace()
    assert trace.end is not None
    assert trace.end.unseen == ("operations on fake tensors and in exported functions",)
    assert not [event for event in trace.events if isinstance(event, ModuleCall | CaptureFault)]
