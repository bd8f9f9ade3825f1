"""The parameters that modules are given, with the lines that gave them."""

import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.live import ParameterPlaced
from graphlint.record.trace import Trace


def _placed(trace: Trace) -> list[tuple[str, bool]]:
    events = [event for event in trace.events if isinstance(event, ParameterPlaced)]
    return [(event.name, trace.tensors[event.tensor].parameter) for event in events]


def test_each_parameter_is_told_at_both_levels() -> None:
    for level in ("full", "watch"):
        with Session(CaptureOptions(level=level)) as session:
            layer = nn.Linear(2, 3)
            layer.bias = None
            layer.weight = nn.Parameter(torch.zeros(3, 2))
        trace = session.trace()
        assert _placed(trace) == [("weight", True), ("bias", True), ("weight", True)]
        sites = [trace.sites[e.site] for e in trace.events if isinstance(e, ParameterPlaced) and e.site]
        assert {site.frames[0].function for site in sites} <= {"test_each_parameter_is_told_at_both_levels"}


def test_what_is_given_is_what_the_module_has() -> None:
    with Session(CaptureOptions()):
        own = nn.Parameter(torch.ones(2))
        module = nn.Module()
        module.own = own
    assert module.own is own
    assert dict(module.named_parameters())["own"] is own
