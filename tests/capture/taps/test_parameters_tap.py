"""The parameters that modules are given, with the lines that gave them."""

import pytest
import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import OptimizerStep
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


@pytest.mark.parametrize("level", ["full", "watch"])
def test_parameters_whose_contents_torch_swaps(record, events, level) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    def work() -> None:
        step()
        optimizer.zero_grad()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.double().float()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        step()

    trace = record(work, level)
    assert not [tap.fault for tap in trace.end.taps if tap.fault]
    before, after = events(trace, OptimizerStep)
    assert len(before.changed) == 2
    assert [change.tensor for change in after.changed] == [change.tensor for change in before.changed]


def test_leaves_that_no_optimizer_has_are_swapped_too(record) -> None:
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

    def work() -> None:
        (first * second).sum().backward()
        first.grad = second.grad = None
        torch.utils.swap_tensors(first, second)

    record(work)
    assert torch.equal(first, second)
