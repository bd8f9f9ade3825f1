"""What a variable keeps reaches back into earlier steps, and grows with each one.

## What it does

Reports a variable, an attribute or a collection that keeps the graphs of more and more earlier steps alive: a
total that losses are added to with their graphs, a list of losses or outputs, a state that is handed from
step to step and never detached, gradients that keep their own graph. It names the holder, the line that puts
the tensors in, and how many nodes and bytes it has come to.

## Why it matters

A graph lives as long as any tensor that was computed with it. Every step adds one, so memory grows until it
runs out, hours later and somewhere else. Where the next step computes on from what was kept, each backward
also goes through all the steps before it and takes ever longer.

## Example

    running_loss += loss
    outputs.append(prediction)

## Use instead

    running_loss += loss.item()
    outputs.append(prediction.detach())

## Known limits

Looked at as each of the first eight steps ends, and then a few times for each doubling of their number, up to
the 4,096th. Growth is told from at least four steps; from eight where no backward has freed the graphs, which
may be meant for a later one. What stays at a constant number of steps (the last loss, a deque with a
`maxlen`) is silent. Only what the script's own variables reach is found, through attributes and collections.
"""

from collections.abc import Iterator

from graphlint.analysis.devices_wording import sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.growth import Growth
from graphlint.analysis.keeping import Keepers, Keeping
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.tables import Frame

_KIB = 1024
_MOST_PLACES = 3


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each line that makes what is kept grow."""
    keepers = Keepers(facts.sources)
    stories = [_Story(facts, keepers, growth) for growth in facts.growth.all]
    lines = dict.fromkeys((story.frame.path, story.frame.line) for story in stories)
    for path, line in lines:
        same = [story for story in stories if (story.frame.path, story.frame.line) == (path, line)]
        yield same[0].occurrence(same)


class _Story:
    """Puts one holder that grows into words."""

    def __init__(self, facts: Facts, keepers: Keepers, growth: Growth) -> None:
        self._facts = facts
        self._growth = growth
        self.holding = growth.holding
        made = (facts.graphs.frame(site) for site in growth.sites)
        self._made = tuple(dict.fromkeys(frame for frame in made if frame is not None))[:_MOST_PLACES]
        self._keepings = keepers.of(self.holding)
        self._callers = tuple(
            frame for keeping in self._keepings for frame in keepers.callers(self.holding, keeping)
        )
        self.frame = self._primary()

    def _primary(self) -> Frame:
        kept = self._kept()
        if self.holding.collection and self._keepings:
            return self._keepings[0].frame
        if self._made:
            return self._made[0]
        return kept.frame if kept is not None else self.holding.frame

    def _kept(self) -> Keeping | None:
        """Returns the statement that keeps the value: of several, one at a line that made what is kept."""
        lines = {(frame.path, frame.line) for frame in self._made}
        at = [k for k in self._keepings if (k.frame.path, k.frame.line) in lines]
        return next(iter(at or self._keepings), None)

    def occurrence(self, same: "list[_Story]") -> Occurrence:
        growth = self._growth
        return Occurrence(
            message=self._message(listed([f"`{story.holding.name}`" for story in same]), one=len(same) == 1),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=growth.first.ended - 1,
            last_step=growth.last.ended - 1,
        )

    def _message(self, what: str, *, one: bool) -> str:
        holding, ended = self.holding, self._growth.last.ended
        size = f" and {sized(holding.bytes)}" if holding.bytes >= _KIB else ""
        come_to = f"{counted(holding.nodes, 'node')}{size} after {counted(ended, 'step')}"
        if holding.collection and not holding.carried:
            told = (
                f"{what} {'keeps' if one else 'keep'} tensors with their graphs{self._parts()}: "
                f"{counted(holding.tensors, 'tensor')} of {counted(holding.made_in, 'step')}, {come_to}"
            )
        else:
            goes, its = ("goes", "its") if one else ("go", "their")
            told = (
                f"{what} {goes} on from {its} own earlier value with the graph: it reaches back through "
                f"{counted(holding.steps, 'step')}, {come_to}"
            )
        return f"{told}. {self._consequence()}"

    def _parts(self) -> str:
        """Returns what of each item in a collection the tensors are."""
        parts = [f"`{part}`" for part in self._growth.parts if part]
        return f" ({listed(parts)} of each item)" if parts else ""

    def _consequence(self) -> str:
        if self._growth.entered:
            return "Every backward goes through all of it again, and each step takes longer than the last."
        if 2 * self.holding.freed > self.holding.nodes:
            return "The backwards are done with these graphs; nothing else lets go of them."
        if self._growth.cleared:
            return "It is let go only where the collection is cleared, and grows again from there."
        return "Nothing lets go of it, and it grows with every step."

    def _labels(self) -> Iterator[Label]:
        name = self.holding.name
        if self.holding.collection:
            for keeping in self._keepings:
                yield label(keeping.frame, f"`{name}` gets tensors here, with their graphs")
        for frame in self._made:
            text = "made here, with a graph" if self.holding.collection else f"`{name}` is made here"
            yield label(frame, text if self.holding.collection else f"{text}, from its own earlier value")
        if not self.holding.collection:
            kept = self._kept()
            if kept is not None:
                yield label(kept.frame, f"`{name}` is kept here")
        yield label(self.frame, f"`{name}` keeps graphs of earlier steps")
        for frame in self._callers:
            yield label(frame, f"`{name}` gets it by way of this call")

    def _fix(self) -> str:
        kept, holding = self._kept(), self.holding
        if kept is None:
            return (
                f"keep detached values in `{holding.name}`: `.item()` of a number, `.detach()` of a tensor."
            )
        at = f" (line {kept.frame.line})"
        parts = [part for part in self._growth.parts if part]
        if holding.collection and parts and kept.kind in {"call", "item"}:
            spelled = listed([f"`{kept.value}{part}.detach()`" for part in parts if part])
            return f"put detached values into `{holding.name}`{at}: {spelled} in place of the tensors."
        if kept.kind == "call":
            return f"write `{kept.target}.{kept.method}({self._detached(kept.value)})`{at}."
        if kept.kind == "add":
            return f"write `{kept.target} += {self._detached(kept.value)}`{at}."
        if self._growth.entered or not holding.scalar:
            return self._state_fix(kept)
        return f"use `.item()` of what `{holding.name}` is computed from{at}, or `.detach()`."

    def _state_fix(self, kept: Keeping) -> str:
        name = self.holding.name
        if self.holding.collection:
            spelled = f"`{name} = tuple(part.detach() for part in {name})`"
        else:
            spelled = f"`{name} = {name}.detach()`"
        return f"cut it between the steps, before it is used again: {spelled} ({place(kept.frame)})."

    def _detached(self, value: str) -> str:
        simple = value.replace(".", "").replace("_", "").isalnum() or value.endswith((")", "]"))
        inner = value if simple and not value.startswith("(") else f"({value})"
        return f"{inner}{'.item()' if self.holding.scalar else '.detach()'}"


_BAD_TOTAL = Example(
    title="a running loss that adds up tensors",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running_loss = 0.0
for step in range(8):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running_loss += loss  # <- GL104
print(running_loss / 8)
""",
)

_BAD_LIST = Example(
    title="outputs that are kept for the end of an epoch",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    predictions = []
    for step in range(8):
        prediction = model(torch.randn(16, 4))
        loss = prediction.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predictions.append(prediction)  # <- GL104
    print(torch.cat(predictions).mean().item())
""",
)

_BAD_STATE = Example(
    title="a state that is never detached, and retain_graph=True against the error",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
layer, out = nn.Linear(4, 8), nn.Linear(8, 1)
memory = torch.zeros(16, 8)
optimizer = torch.optim.SGD([*layer.parameters(), *out.parameters()], lr=0.1)
for step in range(8):
    memory = 0.5 * memory + layer(torch.randn(16, 4))  # <- GL104
    loss = out(memory).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
""",
)

_GOOD_LAST = Example(
    title="the last loss, looked at one step later",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
last_loss = None
for step in range(16):
    if last_loss is not None and step % 4 == 0:
        print(last_loss.item())
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last_loss = loss
""",
)

_GOOD_BOUNDED = Example(
    title="a deque with room for a few",
    code="""\
from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recent = deque(maxlen=10)
for step in range(16):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(loss)
print(torch.stack(list(recent)).mean().item())
""",
)

_GOOD_TRUNCATED = Example(
    title="truncated backpropagation through time",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
cell, out = nn.RNNCell(4, 8), nn.Linear(8, 1)
state = torch.zeros(16, 8)
optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
for window in range(8):
    state = state.detach()
    losses = []
    for _ in range(3):
        state = cell(torch.randn(16, 4), state)
        losses.append(out(state).pow(2).mean())
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
""",
)

_GOOD_DETACHED = Example(
    title="numbers and detached outputs",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total, outputs = torch.zeros(()), []
for step in range(8):
    prediction = model(torch.randn(16, 4))
    loss = prediction.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    outputs.append(prediction.detach())
""",
)

RULE = Rule(
    code="GL104",
    name="graph-growth",
    severity="warning",
    since="0.1.0",
    needs=("backward", "live-graphs"),
    check=check,
    bad=(_BAD_TOTAL, _BAD_LIST, _BAD_STATE),
    good=(_GOOD_LAST, _GOOD_BOUNDED, _GOOD_TRUNCATED, _GOOD_DETACHED),
)
