"""A backward keeps its graph, and nothing ever enters it again.

## What it does

Reports a line that calls backward, or `autograd.grad`, with `retain_graph=True` or `create_graph=True` where
no later backward of the run enters any of the graphs that it kept. It says what the kept nodes had saved.

## Why it matters

What the graph saved for the backward stays in memory, usually until the next step has built its own graph, so
that two lie in memory at the peak. `create_graph=True` builds a second graph besides, and leaves it hanging
on `.grad`. And a graph that is kept hides faults that a freed one would show: a second backward through it
raises no error.

## Example

    loss.backward(retain_graph=True)
    optimizer.step()

## Use instead

    loss.backward()
    optimizer.step()

## Known limits

Judged over at least three backwards of one line. A line that needs its graph once, as one in a loop over
several losses does for all but the last, is not reported. The bytes are those of the tensors that were
recorded; parameters and inputs, which live anyhow, are left out.
"""

from collections.abc import Iterator

from graphlint.analysis.devices_wording import sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.retained import Retained, RetainedGraphs
from graphlint.lint.finding import Occurrence
from graphlint.lint.labels import label
from graphlint.lint.rule import Example, Rule


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each line that keeps graphs for nothing."""
    for retained in RetainedGraphs(facts).needless():
        yield _occurrence(facts, retained)


def _occurrence(facts: Facts, retained: Retained) -> Occurrence:
    first, last = retained.backwards[0], retained.backwards[-1]
    flag = "create_graph" if retained.creates else "retain_graph"
    what = "builds a graph of its gradients too" if retained.creates else "keeps its graph"
    size = sized(retained.saved_bytes)
    held = f": {size} that the graph saved stay in memory for nothing" if retained.saved_bytes else ""
    return Occurrence(
        message=(
            f"{facts.wording.backward(first)} {what}, {retained.count} times in this run, and no later "
            f"backward enters {'either of the two' if retained.creates else 'it'}{held}."
        ),
        labels=(label(retained.frame, f"{flag}: nothing enters the graph again"),),
        fix=_fix(retained),
        step=facts.steps.step_of(first.serial),
        last_step=facts.steps.last_step(last.serial),
    )


def _fix(retained: Retained) -> str:
    line = retained.frame.line
    if not retained.creates:
        call = f"leave `retain_graph=True` out of line {line}"
    elif retained.backwards[0].call == "autograd.grad":
        call = f"leave `create_graph=True` (and `retain_graph=True`) out of line {line}"
    else:
        call = f"leave `create_graph=True` out of line {line}: it also leaves a graph on every `.grad`"
    return (
        f"{call}; no backward of this run needs it. Where it is meant, say so on the line: "
        f"`# graphlint: ignore[GL103] reason`."
    )


_BAD = Example(
    title="one loss, one backward, and the graph kept",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # <- GL103
    optimizer.step()
""",
)

_BAD_LAST = Example(
    title="two losses that share a graph, kept after the second too",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
trunk, left, right = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*trunk.parameters(), *left.parameters(), *right.parameters()], lr=0.1)
for step in range(4):
    features = trunk(torch.randn(16, 4)).tanh()
    optimizer.zero_grad()
    left(features).pow(2).mean().backward(retain_graph=True)
    right(features).pow(2).mean().backward(retain_graph=True)  # <- GL103
    optimizer.step()
""",
)

_BAD_CREATED = Example(
    title="a gradient that is only looked at, taken with its own graph",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    inputs = torch.randn(16, 4, requires_grad=True)
    (saliency,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)  # <- GL103
    loss = model(inputs.detach() * saliency.detach().abs()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_LOSSES = Example(
    title="a loop over losses that share a graph",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Linear(4, 8)
heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)
for step in range(4):
    features = trunk(torch.randn(16, 4)).tanh()
    optimizer.zero_grad()
    for head in heads:
        head(features).pow(2).mean().backward(retain_graph=True)
    optimizer.step()
""",
)

_GOOD_PENALTY = Example(
    title="a gradient penalty",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(4):
    mixed = torch.randn(16, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True, retain_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()
""",
)

_GOOD_INNER = Example(
    title="an inner loop that the outer loss is differentiated through",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(4, 1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    inputs, fast = torch.randn(16, 4), weight
    for _ in range(2):
        (gradient,) = torch.autograd.grad((inputs @ fast).pow(2).mean(), fast, create_graph=True)
        fast = fast - 0.1 * gradient
    optimizer.zero_grad()
    (inputs @ fast).pow(2).mean().backward()
    optimizer.step()
""",
)

_GOOD_POLYNOMIAL = Example(
    title="a second derivative of a polynomial, which shares no node with the first",
    code="""\
import torch

torch.manual_seed(0)
point = torch.nn.Parameter(torch.randn(3))
optimizer = torch.optim.SGD([point], lr=0.001)
for step in range(4):
    (slope,) = torch.autograd.grad((point**3).sum(), point, create_graph=True)
    optimizer.zero_grad()
    slope.pow(2).sum().backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL103",
    name="needless-retain-graph",
    severity="warning",
    since="0.1.0",
    needs=("backward",),
    check=check,
    bad=(_BAD, _BAD_LAST, _BAD_CREATED),
    good=(_GOOD_LOSSES, _GOOD_PENALTY, _GOOD_INNER, _GOOD_POLYNOMIAL),
)
