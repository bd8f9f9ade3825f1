"""Gradients are zeroed between the backward that computed them and the step that they were for.

## What it does

Reports three kinds. A step that finds no gradient because `zero_grad` ran between the backward and the step.
A `zero_grad` inside a loop that is meant to accumulate, so that the step uses the last backward alone. And
the rest of an accumulated gradient: the last batches of an epoch are too few for a step, and the next epoch
begins with `zero_grad`.

## Why it matters

The work of those backwards is thrown away. In the first kind nothing is trained at all, and the loss stays
where it is; in the second the batch is as small as it would be without accumulation; in the third the last
batches of each epoch train nothing.

## Example

    loss.backward()
    optimizer.zero_grad()
    optimizer.step()

## Use instead

    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

## Known limits

Gradients that the user's code copied before they were zeroed, those of a step that a gradient scaler left
out, and those that some step used are not reported. A step that is skipped now and then, on a condition that
reads a tensor's value, isn't either.
"""

from collections.abc import Iterator

from graphlint.analysis.emptied import Emptied, EmptiedGradients
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ZeroGrad
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each place that zeroes gradients before their step."""
    for emptied in EmptiedGradients(facts).all():
        frame = facts.graphs.frame(emptied.zero.site)
        if frame is not None:
            yield _Story(facts, emptied, frame).occurrence()


class _Story:
    """Puts one loss of gradients into words."""

    def __init__(self, facts: Facts, emptied: Emptied, frame: Frame) -> None:
        self._facts = facts
        self._emptied = emptied
        self._frame = frame
        self._step = facts.graphs.frame(emptied.step.site)
        self._backward = facts.graphs.frame(emptied.backward.site)
        self._zero = facts.wording.zero(emptied.zero) if isinstance(emptied.zero, ZeroGrad) else _BY_HAND
        self._stepping = self._called(facts.wording.step(emptied.step), self._step)
        self._computing = self._called(facts.wording.backward(emptied.backward), self._backward)

    def occurrence(self) -> Occurrence:
        at = self._emptied.step.serial if self._emptied.kind != "rest" else self._emptied.zero.serial
        step = (self._step.path, self._step.line) if self._step is not None else ("", 0)
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(at),
            last_step=self._facts.steps.last_step(at),
            cause=(self._frame.path, self._frame.line, *step),
            severity=None if self._emptied.kind == "all" else "warning",
        )

    def _called(self, call: str, frame: Frame | None) -> str:
        return f"{call} ({place(frame, near=self._frame)})" if frame is not None else call

    def _message(self) -> str:
        emptied = self._emptied
        zero = self._called(self._zero, self._frame)
        if emptied.kind == "all":
            return (
                f"{zero} zeroes the gradients of {self._facts.wording.parameters(emptied.parameters)} after "
                f"{self._computing} and before {self._stepping}: the step finds none, and what was computed "
                f"is thrown away."
            )
        if emptied.kind == "most":
            return (
                f"{zero} runs between the backwards that {self._stepping} is there for: of "
                f"{emptied.lost + emptied.used} in a row it uses {emptied.used}, the gradients of the other "
                f"{emptied.lost} are zeroed unused."
            )
        return (
            f"{zero} throws away the gradients of {counted(emptied.lost, 'backward')}: {self._stepping} "
            f"comes after every {emptied.used} of {self._computing}, and {_these(emptied.lost)} left over."
        )

    def _labels(self) -> Iterator[Label]:
        owners = self._facts.wording.owners(self._emptied.parameters)
        yield label(self._frame, f"zeroes the gradients of {owners}, which no step has used")
        if self._step is not None:
            yield label(self._step, self._step_text())
        if self._backward is not None:
            yield label(self._backward, "had computed them")

    def _step_text(self) -> str:
        emptied = self._emptied
        if emptied.kind == "all":
            return "steps on nothing"
        if emptied.kind == "most":
            return f"steps on {counted(emptied.used, 'backward')} of {emptied.lost + emptied.used}"
        return f"the last step before took {counted(emptied.used, 'backward')}"

    def _fix(self) -> str:
        emptied = self._emptied
        clear = f"call {self._zero}" if self._zero != _BY_HAND else "clear the gradients"
        if emptied.kind == "rest":
            last = "the last batch" if emptied.lost == 1 else f"the last {emptied.lost} batches"
            return f"step on what is left when the batches end, before {self._zero}; or leave {last} out."
        if emptied.kind == "most":
            return (
                f"{clear} right after {self._stepping} only, so that the gradients add up; or, if "
                f"one backward is enough for a step, leave out the others."
            )
        if self._comes_first(self._step, self._backward):
            return f"call {self._stepping} after {self._computing}, and {clear} after the step."
        before = "" if emptied.lost > 1 else f", or before {self._computing}"
        return f"{clear} after {self._stepping}{before}."

    def _comes_first(self, one: Frame | None, other: Frame | None) -> bool:
        """Tells whether one line stands above another in the same function."""
        if one is None or other is None or (one.path, one.first_line) != (other.path, other.first_line):
            return False
        return one.line < other.line


_BY_HAND = "clearing `.grad` by hand"


def _these(number: int) -> str:
    return "this one is" if number == 1 else f"these {number} are"


_BAD = Example(
    title="zeroed between backward and step",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.zero_grad()  # <- GL302
    optimizer.step()
""",
)

_BAD_INNER = Example(
    title="zeroed for each of the batches that are to add up",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    for _ in range(4):
        optimizer.zero_grad()  # <- GL302
        loss = model(torch.randn(16, 4)).pow(2).mean() / 4
        loss.backward()
    optimizer.step()
""",
)

_BAD_REST = Example(
    title="the last batches of an epoch are too few for a step",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.zero_grad()  # <- GL302
    for index in range(10):
        loss = model(torch.randn(16, 4)).pow(2).mean() / 4
        loss.backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
)

_GOOD = Example(
    title="zeroed between forward and backward",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_LAST = Example(
    title="an accumulated gradient whose last batches get a step of their own",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.zero_grad()
    for index in range(10):
        loss = model(torch.randn(16, 4)).pow(2).mean() / 4
        loss.backward()
        if index % 4 == 3 or index == 9:
            optimizer.step()
            optimizer.zero_grad()
""",
)

_GOOD_COPIED = Example(
    title="one gradient for each loss, copied before it is zeroed",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    output = model(torch.randn(16, 4)).pow(2).mean(0)
    gradients = []
    for index in range(2):
        optimizer.zero_grad()
        output[index].backward(retain_graph=index == 0)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for parameter, *parts in zip(model.parameters(), *gradients):
        parameter.grad = sum(parts) / 2
    optimizer.step()
""",
)

_GOOD_INPUT = Example(
    title="the gradient of an input, on the way to which the model's is filled",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    batch = torch.randn(16, 4)
    change = torch.zeros_like(batch, requires_grad=True)
    for attack in range(3):
        optimizer.zero_grad()
        loss = model(batch + change).pow(2).mean()
        loss.backward()
        change.data += 0.1 * change.grad.sign()
        change.grad.zero_()
    optimizer.zero_grad()
    loss = model(batch + change.detach()).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL302",
    name="zero-grad-before-step",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad", "operations"),
    check=check,
    bad=(_BAD, _BAD_INNER, _BAD_REST),
    good=(_GOOD, _GOOD_LAST, _GOOD_COPIED, _GOOD_INPUT),
)
