"""Levels, the number of steps, and what bounds a record."""

import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from graphlint.capture.options import FULL_STEPS, CaptureOptions
from graphlint.capture.session import Session, StopRun, active_session
from graphlint.errors import UsageError
from graphlint.record.codec import load
from graphlint.record.events import Backward, Op, OptimizerStep, Repeat, StepBoundary


def levels(trace) -> list[str]:
    return [event.level for event in trace.events if isinstance(event, StepBoundary)]


def repeated(trace) -> int:
    return sum(event.count for event in trace.events if isinstance(event, Repeat))


@pytest.fixture
def step():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def _step(x=None, loss=torch.sum) -> None:
        optimizer.zero_grad()
        loss(net(torch.ones(1, 2) if x is None else x)).backward()
        optimizer.step()

    return _step


def test_three_full_steps_then_the_watch(record, step) -> None:
    trace = record(lambda: [step() for _ in range(20)], "auto")
    assert trace.end.steps == 20
    assert trace.end.full_steps == FULL_STEPS
    assert levels(trace)[: FULL_STEPS + 1] == ["full"] * FULL_STEPS + ["watch"]
    assert repeated(trace) >= 15
    watched = [e for e in trace.events if isinstance(e, Backward)][FULL_STEPS:]
    assert all(backward.same_shape for backward in watched)


def test_a_new_graph_brings_the_full_level_back_for_one_step(record, step) -> None:
    def work() -> None:
        for index in range(14):
            step(loss=torch.prod if index == 7 else torch.sum)

    trace = record(work, "auto")
    assert trace.end.steps == 14
    assert trace.end.full_steps == FULL_STEPS + 1
    graphs = {event.graph for event in trace.events if isinstance(event, Backward)}
    assert len(graphs) >= 2


def test_inputs_made_anew_do_not_bring_it_back(record, step) -> None:
    def work() -> None:
        for _ in range(20):
            x = torch.ones(1, 2, requires_grad=True)
            step(x * 1)
            assert x.grad is not None

    trace = record(work, "auto")
    assert trace.end.full_steps == FULL_STEPS
    assert repeated(trace) >= 15


def test_a_long_watch_keeps_the_record_as_it_is(step) -> None:
    session = Session(CaptureOptions())
    sizes = []
    with session:
        for _ in range(3020):
            step(torch.ones(1, 2, requires_grad=True) * 1)
            sizes.append((len(session._sink.records), len(session._recorder.tensors.references)))
    assert sizes[20] == sizes[-1]
    assert repeated(session.trace()) > 3000
    assert session.trace().end.steps == 3020


def test_the_full_level_and_the_watch_level_stay(record, step) -> None:
    assert set(levels(record(lambda: [step() for _ in range(6)], "full"))) == {"full"}
    trace = record(lambda: [step(loss=f) for f in (torch.sum, torch.prod, torch.mean)], "watch")
    assert set(levels(trace)) == {"watch"}
    assert not [event for event in trace.events if isinstance(event, Op)]
    assert trace.end.full_steps == 0


def test_a_step_that_comes_back_to_full_holds_nothing_that_was_only_watched(record) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)

    def work() -> None:
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (first, second)]
        for index in range(12):
            for loss, optimizer in zip((first, nn.Sequential(first, second)), optimizers, strict=True):
                value = loss(torch.ones(1, 2))
                (value.prod() if index == 6 else value.sum()).backward()
                optimizer.step()
                optimizer.zero_grad()

    trace = record(work, "auto")
    assert trace.end.full_steps > FULL_STEPS
    starts = [event for event in trace.events if isinstance(event, StepBoundary)]
    for boundary, following in pairwise(starts):
        inside = [e for e in trace.events if boundary.after < e.serial <= following.after]
        seen = [type(event) for event in inside if isinstance(event, (Op, Backward))]
        if boundary.level == "full":
            assert seen.count(Op) >= 2 * seen.count(Backward)
            assert seen[0] is Op


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
@pytest.mark.parametrize("wanted", [1, 4])
def test_a_run_is_ended_after_its_steps(step, wanted: int, level: str) -> None:
    cleaned = []
    session = Session(CaptureOptions(steps=wanted, level=level))

    def work() -> None:
        try:
            for _ in range(50):
                step()
        finally:
            cleaned.append(True)

    with pytest.raises(StopRun), session:
        work()
    trace = session.trace()
    assert cleaned == [True]
    assert trace.end.steps == wanted
    assert sum(isinstance(event, OptimizerStep) for event in trace.events) + repeated(trace) == wanted


def test_a_run_of_a_gan_is_ended_between_its_steps() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = [torch.optim.SGD([weight], 0.1) for weight in (first, second)]
    session = Session(CaptureOptions(steps=2))

    def work() -> None:
        for _ in range(50):
            for weight, optimizer in zip((first, second), optimizers, strict=True):
                (weight * 2).sum().backward()
                optimizer.step()

    with pytest.raises(StopRun), session:
        work()
    assert session.trace().end.steps == 2


def test_captures_are_not_nested() -> None:
    with Session(CaptureOptions()) as session:
        assert active_session() is session
        with pytest.raises(UsageError, match="nested"), Session(CaptureOptions()):
            pass
        assert active_session() is session
    assert active_session() is None


def test_a_trace_before_the_end_has_no_end(step) -> None:
    with Session(CaptureOptions(level="full")) as session:
        step()
        step()
        assert session.trace().end is None
        assert len([e for e in session.trace().events if isinstance(e, OptimizerStep)]) >= 1
        session.close("exit", 3)
    assert (session.trace().end.how, session.trace().end.exit_code) == ("exit", 3)
    assert session.trace() is session.trace()


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with Session(CaptureOptions(trace=Path(sys.argv[1]), level="full")):
    for step in range(10):
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_killed_run_leaves_a_readable_trace(tmp_path, suffix: str) -> None:
    path = tmp_path / f"trace.{suffix}"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    trace = load(path)
    assert not trace.complete
    assert len([event for event in trace.events if isinstance(event, OptimizerStep)]) == 5


LOADED = """
import sys, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

class Images(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.full((2,), float(index)) * 2

def main():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(Images(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[2])
    with Session(CaptureOptions(trace=Path(sys.argv[1]), level="full")) as session:
        for _ in range(2):
            for x in loader:
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
    print(len(session.trace().events))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_a_loader_write_nothing(tmp_path, how: str) -> None:
    if how not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"no {how} here")
    script, path = tmp_path / "train.py", tmp_path / "trace.jsonl"
    script.write_text(LOADED, "utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(path), how],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    trace = load(path)
    assert trace.end.steps == 6
    assert len(trace.events) == int(done.stdout)
    serials = [event.serial for event in trace.events]
    assert len(set(serials)) == len(serials)
    assert sum(isinstance(event, OptimizerStep) for event in trace.events) == 6
