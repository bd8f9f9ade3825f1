"""Which model calls' results a backward enters, at both levels."""

import torch
from torch import nn

from graphlint.record.events import Backward, ModuleCall, StepBoundary


def calls_of(trace) -> list[int]:
    return [e.serial for e in trace.events if isinstance(e, ModuleCall) and e.parent is None]


def test_each_backward_names_the_calls(record, events) -> None:
    net, head = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 1)

    def work() -> None:
        x = torch.ones(1, 2)
        hidden = net(x)
        net(x)
        head(hidden).sum().backward()
        head(net(x).detach()).sum().backward()

    trace = record(work)
    first, unused, second, third, fourth = calls_of(trace)
    assert [backward.calls for backward in events(trace, Backward)] == [(first, second), (fourth,)]
    assert unused < second < third


def test_a_result_handed_on_belongs_to_both(record, events) -> None:
    net, same = nn.Linear(2, 2), nn.Identity()
    trace = record(lambda: same(net(torch.ones(1, 2))).sum().backward())
    (backward,) = events(trace, Backward)
    assert list(backward.calls) == calls_of(trace)


def test_gradients_of_the_input_alone_enter_it(record, events) -> None:
    net = nn.Linear(2, 2)

    def work() -> None:
        x = torch.ones(1, 2, requires_grad=True)
        torch.autograd.grad(net(x).sum(), x)

    trace = record(work)
    (backward,) = events(trace, Backward)
    assert list(backward.calls) == calls_of(trace)


def test_a_watched_backward_names_what_was_recorded_before_it(record, events) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    kept = []

    def work() -> None:
        for step in range(9):
            loss = net(torch.ones(1, 2)).sum()
            if step == 1:
                kept.append(net(torch.ones(1, 2)).sum())
            if step == 7:
                loss = loss + kept.pop()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    trace = record(work, "auto")
    levels = [event.level for event in events(trace, StepBoundary)]
    assert "watch" in levels
    early = calls_of(trace)[2]
    (entering,) = [backward for backward in events(trace, Backward) if early in backward.calls]
    assert entering.serial > next(e.serial for e in events(trace, StepBoundary) if e.level == "watch")


def test_a_view_of_which_torch_refuses_to_tell_the_node(record) -> None:
    class Odd(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                view = x.view(-1)
            x.mul_(2)
            return view

    def work() -> None:
        x = torch.ones(2, 2, requires_grad=True).clone()
        Odd()(x)

    trace = record(work)
    assert all(report.fault is None for report in trace.end.taps)
