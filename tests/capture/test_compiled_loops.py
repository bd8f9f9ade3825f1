"""Compiled, scripted and distributed loops pass through unharmed, in processes that see a session first."""

import sys
from pathlib import Path
from subprocess import run as run_process

import pytest
import torch

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.capture.taps.compiled import own_code

COMPILED = """
import sys, torch
from torch import nn
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
import torch._dynamo.utils as dynamo

def loop():
    torch.manual_seed(0)
    torch._dynamo.reset()
    dynamo.counters.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    scale = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = scale(compiled(torch.ones(2, 3))).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dynamo.counters["stats"]["unique_graphs"], dict(dynamo.counters["recompiles"])

session = Session(CaptureOptions(level=sys.argv[1]))
with session:
    captured = loop()
trace = session.trace()
assert captured == loop(), captured
assert captured[1] == 2, captured
assert not captured[2], captured
assert any("torch.compile" in what for what in trace.end.unseen)
assert trace.end.steps == 6
print([tap.fault for tap in trace.end.taps if tap.fault])
print(sum(event.__class__.__name__ == "Op" for event in trace.events) > 6)
"""


@pytest.mark.parametrize("level", ["full", "auto"])
def test_compiled_functions_that_a_session_sees_first(level: str) -> None:
    done = run_process([sys.executable, "-c", COMPILED, level], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["[]", "True"]


def test_a_compilation_that_fails_does_not_end_the_recording() -> None:
    def broken(graph, inputs):
        raise ValueError("no such backend")

    session = Session(CaptureOptions(level="full"))
    with session:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            torch.compile(lambda x: x * 3, backend=broken)(torch.ones(2))
        seen = torch.ones(4) + 1
    assert seen.tolist() == [2.0] * 4
    assert "torch.Tensor.add" in [event.name for event in session.trace().events if hasattr(event, "name")]


SCRIPTED = """
import sys, time, torch
from torch import nn
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return torch.relu(self.layer(x))

def loop():
    torch.manual_seed(0)
    scale = 2.0
    def twice(x, w):
        return torch.tanh(x @ w)
    twice = torch.jit.script(twice)
    net = torch.jit.script(Net())
    weight = torch.randn(3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight, *net.parameters()], 0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = twice(net(torch.ones(2, 3)), weight).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def distributed():
    import tempfile, torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # torch can hang in the end of a group whose last work is still being let go, with graphlint or without.
    time.sleep(0.5)
    dist.destroy_process_group()
    return losses

for work in (loop, distributed):
    plain = work()
    for level in ("full", "auto", "watch"):
        session = Session(CaptureOptions(level=level))
        with session:
            assert work() == plain, (work, level)
        end = session.trace().end
        assert end.steps == 5 and not [tap for tap in end.taps if tap.fault], end
        assert work is distributed or any("torch.jit" in what for what in end.unseen)
print("equal")
"""


def test_scripted_and_distributed_loops(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPTED, "utf-8")
    done = run_process([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["equal"], done.stderr[-2000:]


TRACED_THROUGH = """
import sys, torch
from torch import nn
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.record.events import Backward, GradientClip, OptimizerStep, ZeroGrad
import torch._dynamo.utils as dynamo

class ByHand(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)

def loop():
    torch.manual_seed(0)
    torch._dynamo.reset()
    dynamo.counters.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    other = ByHand(model.parameters())

    @torch.compile(backend="eager")
    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    @torch.compile(backend="eager", fullgraph=True)
    def whole(x):
        other.step()
        model.zero_grad(set_to_none=False)
        model.eval()
        result = model(x)
        model.train()
        return result

    losses = []
    for _ in range(4):
        losses.append(step(torch.ones(2, 3)).item())
        losses.append(whole(torch.ones(2, 3)).sum().item())
    return losses, dynamo.counters["stats"]["unique_graphs"], sum(dynamo.counters["graph_break"].values())

session = Session(CaptureOptions(level=sys.argv[1]))
with session:
    captured = loop()
trace = session.trace()
plain = loop()
assert captured[0] == plain[0], (captured, plain)
assert not [tap.fault for tap in trace.end.taps if tap.fault]
print(*[sum(isinstance(event, kind) for event in trace.events) for kind in (Backward, OptimizerStep)])
"""


@pytest.mark.parametrize("level", ["full", "auto"])
def test_steps_in_compiled_functions_are_seen_where_the_graph_breaks(level: str) -> None:
    arguments = [sys.executable, "-W", "error:Dynamo does not know", "-c", TRACED_THROUGH, level]
    done = run_process(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "graphlint" not in done.stderr
    assert done.stdout.split() == ["4", "4"] or level == "auto", done.stdout


def test_the_code_that_dynamo_is_to_leave_alone() -> None:
    import graphlint.reference.models  # noqa: F401 - networks that a script may compile

    codes = list(own_code())
    names = {code.co_qualname for code in codes}
    assert {"Guard.run", "CaptureContext.here", "ModesTap._wrap.<locals>.train"} <= names
    assert "WeakNumbers.letting_go" in names
    assert not {code.co_filename for code in codes if "reference" in Path(code.co_filename).parts}
