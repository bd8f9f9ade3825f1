"""The census of live graphs: when it is taken, and what it counts."""

from collections.abc import Callable

import torch
from torch import nn

from graphlint.capture.census import LAST_STEP, is_due
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.live import Holding, LiveGraphs
from graphlint.record.trace import Trace


def run(keep: Callable[[list[torch.Tensor], torch.Tensor], object], steps: int = 8) -> Trace:
    """Trains for some steps; `keep` is given a list and the loss after each of them."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[torch.Tensor] = []
    with Session(CaptureOptions()) as session:
        for _ in range(steps):
            loss = model(torch.ones(3, 2)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keep(kept, loss)
    return session.trace()


def of(trace: Trace, name: str) -> list[tuple[int, Holding]]:
    censuses = [event for event in trace.events if isinstance(event, LiveGraphs)]
    return [(event.ended, h) for event in censuses for h in event.holdings if h.name == name]


def test_it_is_taken_ever_more_seldom() -> None:
    due = [steps for steps in range(1, 200) if is_due(steps)]
    assert due == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
    assert is_due(LAST_STEP)


def test_a_list_gains_a_step_with_every_step() -> None:
    seen = of(run(lambda kept, loss: kept.append(loss)), "kept")
    assert [(ended, h.tensors, h.made_in, h.steps) for ended, h in seen] == [
        (ended, ended - 1, ended - 1, ended - 1) for ended in range(2, 9)
    ]
    last = seen[-1][1]
    assert last.collection
    assert last.scalar
    assert last.freed == last.nodes > 0
    assert last.sites


def test_a_total_goes_on_from_its_own_value() -> None:
    def add(kept: list[torch.Tensor], loss: torch.Tensor) -> None:
        kept[:] = [kept[0] + loss if kept else loss * 1]

    seen = of(run(add), "kept")
    # What is added after a step has ended is built in the next one.
    assert [(h.tensors, h.made_in, h.steps) for _, h in seen] == [(1, 1, steps) for steps in range(2, 9)]
    assert all(h.carried for _, h in seen[1:])
    assert seen[-1][1].freed < seen[-1][1].nodes


def test_what_holds_the_last_step_alone_is_left_out() -> None:
    def keep(kept: list[torch.Tensor], loss: torch.Tensor) -> None:
        kept[:] = [loss]

    trace = run(keep)
    assert all(h.steps == 1 for _, h in of(trace, "kept"))
    assert not of(run(lambda kept, loss: kept.append(loss.detach())), "kept")
    assert not of(trace, "loss")


def test_a_run_without_holdings_has_no_census_in_its_record() -> None:
    trace = run(lambda kept, loss: loss.item(), steps=12)
    assert not [event for event in trace.events if isinstance(event, LiveGraphs)]
    assert trace.end is not None
    (report,) = [tap for tap in trace.end.taps if tap.capability == "live-graphs"]
    assert report.armed
    assert report.fault is None


def test_open_graphs_are_told_from_freed_ones_and_measured() -> None:
    layer = nn.Linear(4, 4)

    def keep(kept: list[torch.Tensor], loss: torch.Tensor) -> None:
        kept.append(layer(torch.ones(8, 4)).tanh())

    last = of(run(keep), "kept")[-1][1]
    assert last.freed == 0
    assert not last.scalar
    assert last.bytes >= last.tensors * 8 * 4 * 4
