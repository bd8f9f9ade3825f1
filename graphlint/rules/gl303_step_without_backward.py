"""A step is taken with no gradient, or with none that is new since the last step.

## What it does

Reports a line that steps an optimizer though no backward was called since its last step: where a loss was
computed from its parameters and never differentiated, and where a step is taken twice on one gradient. It
names the loss, the line that made it and the parameters.

## Why it matters

A step without gradients changes nothing, and the loss is printed as if the network learned. A step on old
gradients moves the parameters once more in a direction that was right before the last step.

## Example

    loss = criterion(model(images), labels)
    optimizer.step()

## Use instead

    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()

## Known limits

A step that nothing was computed for is not reported: an optimizer's turn in a loop over all of them, or the
step before a scheduler's first. A backward that was called but doesn't reach the parameters is GL201's,
gradients that were zeroed before the step are GL302's.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.unfed import Unfed
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each line that steps without a new gradient."""
    for unfed in facts.unfed.all:
        frame = facts.graphs.frame(unfed.use.step.site)
        if frame is not None:
            yield _Story(facts, unfed, frame).occurrence()


class _Story:
    """Puts one step without a backward into words."""

    def __init__(self, facts: Facts, unfed: Unfed, frame: Frame) -> None:
        self._facts = facts
        self._unfed = unfed
        self._frame = frame
        step = unfed.use.step
        self._stepping = f"{facts.wording.step(step)} ({place(frame)})"
        made = unfed.made.site if unfed.made is not None else None
        self._made = facts.graphs.common_frame(made, step.site)
        if self._made == frame:
            # A closure: it runs inside the step, and the line that made the loss is deeper than the step's.
            self._made = facts.graphs.frame(made)
        self._owners = facts.wording.owners(unfed.parameters)
        self._parameters = facts.wording.parameters(unfed.parameters)

    def occurrence(self) -> Occurrence:
        step = self._unfed.use.step
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(step.serial),
            last_step=self._facts.steps.last_step(step.serial),
            cause=(self._frame.path, self._frame.line, self._unfed.kind),
        )

    def _loss(self) -> str:
        scope = self._frame.function
        loss = self._unfed.loss
        name = self._facts.names.tensor_name(loss, scope) if loss is not None else None
        return f"`{name}`" if name is not None else "the loss"

    def _at(self) -> str:
        return f" ({place(self._made, near=self._frame)})" if self._made is not None else ""

    def _message(self) -> str:
        unfed = self._unfed
        if unfed.kind == "again":
            return f"{self._stepping} takes another step on {self._used()}, which the step before has used."
        if unfed.kind == "loss":
            why = f"{self._loss()} is computed from them{self._at()}, and no backward is ever called on it"
        else:
            why = f"they are used in a forward pass{self._at()}, and no backward is called after it"
        none, so = ("no new", "It repeats the last step") if unfed.stale else ("no", "They stay as they are")
        return f"{self._stepping} has {none} gradient for {self._parameters}: {why}. {so}."

    def _used(self) -> str:
        filled = self._unfed.filled
        if filled is None:
            return "gradients"
        at = self._facts.wording.at(filled.site, near=self._frame)
        return f"the gradients that {self._facts.wording.backward(filled)}{at} gave {self._parameters}"

    def _labels(self) -> Iterator[Label]:
        unfed = self._unfed
        if self._made is not None:
            loss = f"{self._loss()} is made here, and never differentiated"
            yield label(self._made, loss if unfed.kind == "loss" else f"uses {self._owners}")
        again = f"steps {self._owners} again, without a new gradient"
        yield label(self._frame, again if unfed.stale else f"steps {self._owners} without a gradient")
        if unfed.filled is not None and (filled := self._facts.graphs.frame(unfed.filled.site)) is not None:
            yield label(filled, "the last backward")
        previous = unfed.use.previous
        before = self._facts.graphs.frame(previous.site) if previous is not None else None
        if before is not None and unfed.kind == "again":
            yield label(before, "has used its gradients")

    def _fix(self) -> str:
        if self._unfed.kind == "again":
            return (
                f"take one of the two steps out, or compute a new gradient before {self._stepping}. Where it "
                f"is meant, say so on the line: `# graphlint: ignore[GL303] reason`."
            )
        if self._unfed.kind == "graph" or self._loss() == "the loss":
            return f"call backward on the loss before {self._stepping}."
        name = self._loss().strip("`")
        return f"call `{name}.backward()` between {self._loss()}{self._at()} and {self._stepping}."


_BAD = Example(
    title="a loss that is computed and printed, no more",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()  # <- GL303
    optimizer.step()
    print(step, loss.item())
""",
)

_BAD_SECOND = Example(
    title="the generator's loss is forgotten",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(3):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(fake.detach()), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(fake), torch.ones(16, 1))  # <- GL303
    generator_optimizer.step()
""",
)

_BAD_TWICE = Example(
    title="stepped twice for one backward",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    optimizer.step()  # <- GL303
""",
)

_GOOD_SCHEDULER = Example(
    title="a step before the first of a scheduler",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
optimizer.step()
scheduler.step()
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
""",
)

_GOOD_BY_HAND = Example(
    title="gradients made by hand",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * loss.detach()
    optimizer.step()
""",
)

_GOOD_TURNS = Example(
    title="all optimizers stepped, though one task at a time has a loss",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
heads = [nn.Linear(4, 1) for _ in range(2)]
optimizers = [torch.optim.SGD(head.parameters(), lr=0.1) for head in heads]
for step in range(4):
    losses = [head(torch.randn(16, 4)).pow(2).mean() for head in heads]
    for optimizer in optimizers:
        optimizer.zero_grad()
    losses[step % 2].backward()
    for optimizer in optimizers:
        optimizer.step()
""",
)

_GOOD_PLOTTED = Example(
    title="the learning rates of a scheduler, listed",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model(torch.randn(16, 4)).pow(2).mean().backward()
for epoch in range(6):
    optimizer.step()
    print(scheduler.get_last_lr())
    scheduler.step()
""",
)

RULE = Rule(
    code="GL303",
    name="step-without-backward",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad", "operations"),
    check=check,
    bad=(_BAD, _BAD_SECOND, _BAD_TWICE),
    good=(_GOOD_SCHEDULER, _GOOD_BY_HAND, _GOOD_TURNS, _GOOD_PLOTTED),
)
