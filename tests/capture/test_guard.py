"""A fault in any tap leaves the training alone, is recorded, and is told at the end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphlint.capture import clock, gradmode, names, sites, transfers
from graphlint.capture.guard import Guard
from graphlint.capture.options import CaptureOptions
from graphlint.capture.recorder import Recorder
from graphlint.capture.session import Session
from graphlint.capture.sink import Sink
from graphlint.capture.taps import (
    backward,
    batches,
    cleanup,
    custom,
    modes,
    modules,
    operations,
    optimizer,
    zero_grad,
)
from graphlint.record.events import CaptureFault, ModuleCall, Op

PLACES: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "operations before": (operations.OperationsTap, "before", ("operations",)),
    "operations after": (operations.OperationsTap, "after", ("operations",)),
    "no_grad blocks": (gradmode.GradModeSites, "_opened", ("operations",)),
    "transfers": (transfers.TransferWriter, "moved", ("operations",)),
    "modules before": (modules.ModulesTap, "_before", ("modules",)),
    "modules after": (modules.ModulesTap, "_after", ("modules",)),
    "module moves before": (modules.ModuleMovesTap, "_devices", ("operations",)),
    "module moves after": (modules.ModuleMovesTap, "_after", ("operations",)),
    "custom before": (custom.CustomFunctionsTap, "_before", ("custom-functions",)),
    "custom after": (custom.CustomFunctionsTap, "_after", ("custom-functions",)),
    "backward before": (backward.BackwardTap, "_before", ("backward",)),
    "backward after": (backward.BackwardTap, "_after", ("backward",)),
    "graph walk": (backward.BackwardTap, "_walk", ("backward",)),
    "optimizer made": (optimizer.OptimizerTap, "_made", ("optimizer",)),
    "optimizer before": (optimizer.OptimizerTap, "_before", ("optimizer",)),
    "optimizer after": (optimizer.OptimizerTap, "_emit", ("optimizer",)),
    "zero_grad": (zero_grad.ZeroGradTap, "_after", ("zero-grad",)),
    "batches": (batches.BatchesTap, "_drawn", ("batches",)),
    "modes": (modes.ModesTap, "_turned", ("modes",)),
    "cleanup": (cleanup.CleanupTap, "_record", ("cleanup",)),
    "clock": (clock.StepClock, "batch_wanted", ("batches",)),
    "names": (names.NameFinder, "look", ("operations", "modules", "custom-functions", "zero-grad", "modes")),
    "sites": (
        sites.Sites,
        "chain",
        ("operations", "modules", "backward", "optimizer", "zero-grad", "batches", "modes"),
    ),
}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def loop() -> list[torch.Tensor]:
    import gc

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).to("cpu")
    net.train()
    chosen = torch.optim.SGD(net.parameters(), 0.1)
    seen = []
    for (batch,) in DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2, shuffle=True):
        chosen.zero_grad()
        with torch.no_grad():
            shifted = batch.to("cpu") + 1
        loss = Twice.apply(net(shifted)).pow(2).sum()
        loss.backward()
        chosen.step()
        gc.collect()
        seen.append(loss.detach())
    return [*seen, *(weight.detach() for weight in net.parameters()), torch.get_rng_state()]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a fault of graphlint's own")

    return lambda owner, name: monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize("place", PLACES)
def test_training_goes_on_and_the_fault_is_told(place: str, broken, events) -> None:
    owner, name, capabilities = PLACES[place]
    plain = loop()
    broken(owner, name)
    session = Session(CaptureOptions(level="full"))
    with session:
        captured = loop()
    assert len(plain) == len(captured)
    assert all(map(torch.equal, plain, captured))
    trace = session.trace()
    faults = events(trace, CaptureFault)
    assert {fault.tap for fault in faults} >= set(capabilities)
    assert len({fault.tap for fault in faults}) == len(faults)
    for fault in faults:
        assert fault.message == "ZeroDivisionError: a fault of graphlint's own"
        assert "in fail" in fault.traceback
    told = {report.capability: report.fault for report in trace.end.taps}
    assert all("ZeroDivisionError" in told[capability] for capability in capabilities)
    assert {capability for capability, fault in told.items() if fault} == {fault.tap for fault in faults}
    assert all(report.armed for report in trace.end.taps)


@pytest.mark.parametrize("place", ["modules after", "optimizer after", "optimizer before", "backward after"])
def test_one_tap_that_fails_does_not_mislead_the_others(place: str, broken, events) -> None:
    owner, name, _ = PLACES[place]
    broken(owner, name)
    session = Session(CaptureOptions(level="full"))
    with session:
        loop()
        outside = torch.ones(2) + 3
    assert outside.tolist() == [4.0, 4.0]
    last = [event for event in events(session.trace(), Op) if event.name == "torch.Tensor.add"][-1]
    assert (last.module, last.call) == (None, None)
    added = [event for event in events(session.trace(), Op) if event.name == "torch.Tensor.pow"]
    assert len(added) == 4
    if place != "modules after":
        assert len(events(session.trace(), ModuleCall)) == 16


def test_the_error_of_a_script_is_recorded_though_operations_failed(broken) -> None:
    broken(operations.OperationsTap, "before")
    session = Session(CaptureOptions(level="full"))
    with session:
        torch.ones(1).add(1)
        session.record_error(ValueError("of the script"))
    (event,) = [event for event in session.trace().events if type(event).__name__ == "ScriptError"]
    assert (event.type, event.message) == ("ValueError", "of the script")


def test_a_fault_is_run_once_only() -> None:
    ran = []
    recorder = Recorder(Sink(None), lambda tensor: "cpu")
    guard = Guard(recorder)

    def fails() -> int:
        ran.append(1)
        raise ValueError("no")

    assert guard.run("modules", fails) is None
    assert guard.run("modules", fails) is None
    assert guard.run("modules", lambda: 3) is None
    assert guard.run("backward", lambda: 3) == 3
    assert len(ran) == 1
    assert guard.failed("modules")
    assert not guard.failed("backward")
    assert [type(event) for event in recorder.segment.events] == [CaptureFault]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_script_passes_the_guard(kind: type[BaseException]) -> None:
    guard = Guard(Recorder(Sink(None), lambda tensor: "cpu"))

    def ends() -> None:
        raise kind

    with pytest.raises(kind):
        guard.run("modules", ends)
    assert not guard.failed("modules")


def test_an_error_that_cannot_be_printed_is_recorded() -> None:
    class UnprintableError(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    session = Session(CaptureOptions(level="watch"))
    with session:
        session.record_error(UnprintableError())
    (event,) = [event for event in session.trace().events if type(event).__name__ == "ScriptError"]
    assert event.type == "UnprintableError"
    assert event.message == "<exception str() failed>"
