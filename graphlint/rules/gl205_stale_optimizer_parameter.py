"""An optimizer holds tensors that the model no longer uses.

## What it does

Reports an optimizer that goes on stepping parameters which others have taken the place of: the network was
built anew, a layer was replaced, parameters were split or tied after the optimizer had been made. It shows
the line that put the new ones in place and the line that made the optimizer.

## Why it matters

An optimizer keeps the tensors that it was given; it doesn't follow the names. What the model computes with
from then on gets gradients, and nobody applies them: the loss stops falling, or falls by the other layers.

## Example

    optimizer = torch.optim.Adam(model.parameters())
    model.head = nn.Linear(512, 10)

## Use instead

    model.head = nn.Linear(512, 10)
    optimizer = torch.optim.Adam(model.parameters())

## Known limits

Judged over at least three steps. A layer that was only taken out, with nothing put in its place, is a matter
for GL203. A network that was built anew is told by its parameters being newer than the optimizer.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.stale import Stale
from graphlint.analysis.wording import counted, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Op
from graphlint.record.identity import TensorId
from graphlint.record.live import ParameterPlaced
from graphlint.record.tables import Frame

_MOST_PLACES = 3


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each optimizer whose tensors were replaced."""
    for stale in facts.stale.all:
        frame = facts.graphs.frame(stale.step.site)
        if frame is not None:
            yield _Story(facts, stale, frame).occurrence()


class _Story:
    """Puts one stale optimizer into words."""

    def __init__(self, facts: Facts, stale: Stale, frame: Frame) -> None:
        self._facts = facts
        self._stale = stale
        self._frame = frame
        self._optimizer = facts.names.optimizer(stale.optimizer)
        self._old = facts.wording.parameters(stale.tensors)
        row = facts.trace.optimizers[stale.optimizer]
        self._made = facts.graphs.frame(row.site)
        self._places = self._put_in_place()
        self._called = self._call_that_replaces()

    def _put_in_place(self) -> tuple[Frame, ...]:
        """Returns the lines that brought the new parameters in: the outermost that assigns what it built."""
        found: dict[Frame, None] = {}
        made = self._facts.graphs.frames(self._facts.trace.optimizers[self._stale.optimizer].site)
        for tensor in self._stale.replacements:
            event = self._brought_in(tensor)
            frames = self._facts.graphs.frames(event.site) if event is not None else ()
            # A line that made the optimizer as well doesn't tell which came first: the one below it does.
            frames = tuple(frame for frame in frames if frame not in made) or frames
            kept = [frame for frame in frames if self._assigns(frame)]
            if frames:
                found[kept[-1] if kept else frames[0]] = None
        return tuple(found)[:_MOST_PLACES]

    def _call_that_replaces(self) -> Frame | None:
        """Returns the line that stands beside the one that made the optimizer, and leads to the new ones."""
        row = self._facts.trace.optimizers[self._stale.optimizer]
        for tensor in self._stale.replacements:
            event = self._brought_in(tensor)
            parted = self._facts.graphs.parting(event.site, row.site) if event is not None else None
            if parted is not None and self._made is not None and parted[1].function == self._made.function:
                return parted[0]
        return None

    def _brought_in(self, new: TensorId) -> ParameterPlaced | Op | None:
        for old in self._stale.tensors:
            if (event := self._facts.optimized.replacing(old, new)) is not None:
                return event
        return self._facts.optimized.born(new)

    def _assigns(self, frame: Frame) -> bool:
        statement = self._facts.sources.statement(frame.path, frame.line)
        return statement is not None and bool(statement.targets and statement.calls)

    def _built(self) -> Iterator[Frame]:
        for tensor in self._stale.replacements:
            event = self._facts.optimized.born(tensor)
            frame = self._facts.graphs.frame(event.site) if event is not None else None
            if frame is not None:
                yield frame

    def occurrence(self) -> Occurrence:
        stale = self._stale
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(stale.step.serial),
            last_step=self._facts.steps.last_step(stale.step.serial),
            severity=None if stale.untrained else "warning",
        )

    def _message(self) -> str:
        stale = self._stale
        number = counted(stale.steps, "step")
        at = f" ({place(self._places[0], near=self._frame)})" if self._places else ""
        told = (
            f"{self._optimizer} holds {self._old} that the model no longer uses: "
            f"others took their place{at}, and in {number} since then what it holds got no gradient."
        )
        if not stale.untrained:
            return told
        never = "is never updated" if len(stale.untrained) == 1 else "are never updated"
        return f"{told} The {counted(len(stale.untrained), 'new parameter')} {never}: no optimizer has them."

    def _labels(self) -> Iterator[Label]:
        for frame in self._places:
            yield label(frame, "the new parameters come in here")
        if self._called is not None:
            yield label(self._called, "they come in by way of this call")
        if not self._places:
            yield label(self._frame, f"{self._optimizer} steps tensors that nothing uses")
        if self._made is not None:
            yield label(self._made, f"{self._optimizer} was made here, with the old ones")
        backward = self._facts.graphs.frame(self._stale.backward.site)
        if backward is not None:
            yield label(backward, "fills the gradients of the new parameters")
        yield label(self._frame, f"{self._optimizer} steps the old ones, without a gradient")
        for frame in dict.fromkeys(self._built()):
            yield label(frame, "built here")
            return

    def _fix(self) -> str:
        if not self._stale.untrained:
            return f"make {self._optimizer} after the parameters have been put in place."
        if not self._places:
            return f"make {self._optimizer} anew whenever the parameters are replaced."
        line = place(self._called or self._places[0], near=self._made)
        early = self._made is not None and self._made.function == self._places[0].function
        if early or self._called is not None:
            return f"make {self._optimizer} after {line}, so that it gets the new parameters."
        return (
            f"make {self._optimizer} anew wherever the parameters are replaced ({line}), or give it the new "
            f"ones with `add_param_group`."
        )


_BAD_HEAD = Example(
    title="a head replaced after the optimizer was made",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(8, 1)  # <- GL205
for step in range(4):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_REBUILT = Example(
    title="a network built anew for a second phase",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for phase in range(2):
    for step in range(4):
        loss = model(torch.randn(16, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))  # <- GL205
""",
)

_GOOD_PHASES = Example(
    title="a network that is trained in two phases",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 4)
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters(), *head.parameters()], lr=0.1)
for step in range(8):
    inputs = torch.randn(16, 4)
    features = encoder(inputs).relu()
    loss = (decoder(features) - inputs).pow(2).mean() if step < 4 else head(features).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_REMADE = Example(
    title="a replaced head, and the optimizer made anew",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
for outputs in (2, 1):
    model[2] = nn.Linear(8, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.randn(16, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
)

_GOOD_ADDED = Example(
    title="a layer that grows in, and is given to the optimizer",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
blocks = nn.ModuleList([nn.Linear(4, 4)])
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
for step in range(8):
    if step == 4:
        blocks.append(nn.Linear(4, 4))
        optimizer.add_param_group({"params": blocks[-1].parameters()})
    values = torch.randn(16, 4)
    for block in blocks:
        values = block(values).relu()
    loss = values.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_AVERAGED = Example(
    title="averaged weights swapped in for a look and out again",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
average = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trained = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p, mean in zip(model.parameters(), average):
            mean.lerp_(p, 0.1)
            p.copy_(mean)
        model(torch.randn(16, 4))
        for p, own in zip(model.parameters(), trained):
            p.copy_(own)
""",
)

RULE = Rule(
    code="GL205",
    name="stale-optimizer-parameter",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "operations"),
    check=check,
    bad=(_BAD_HEAD, _BAD_REBUILT),
    good=(_GOOD_PHASES, _GOOD_REMADE, _GOOD_ADDED, _GOOD_AVERAGED),
)
