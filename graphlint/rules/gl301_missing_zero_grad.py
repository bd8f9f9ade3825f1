"""A step uses gradients that an earlier step of the same optimizer already used.

## What it does

Reports a step of an optimizer that finds, in the gradients of its parameters, what an earlier step of it had
used, with the gradients of later backwards added on top. It names the backwards and the steps, and the
`zero_grad` that exists but doesn't run between the two steps.

## Why it matters

`backward` adds to `.grad`. Without `zero_grad` every update repeats all those before it: the effective
learning rate grows with each step, and the direction is that of old batches. Training often still gets
somewhere, which hides it.

## Example

    for images, labels in loader:
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

## Use instead

    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

## Known limits

Judged on the steps that are recorded in full, where clearing by hand is seen too. Gradients that somebody
scaled down by hand between the two steps are taken for a momentum of their own and not reported; nor are
steps taken in a hook of a backward, and parameters with a learning rate of 0.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.reused import Reused, ReusedGradients
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ZeroGrad
from graphlint.record.tables import Frame

_MOST_STEPS = 4


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each optimizer whose steps use gradients again."""
    for optimizer in facts.trace.optimizers:
        reused = list(ReusedGradients(facts).of(optimizer))
        if reused:
            story = _Story(facts, reused)
            yield from (story.occurrence(one) for one in reused)


class _Story:
    """Puts the steps of one optimizer that use gradients again into words: one fault, however many lines."""

    def __init__(self, facts: Facts, found: list[Reused]) -> None:
        self._facts = facts
        self._found = found
        self._first = found[0]
        finder = ReusedGradients(facts)
        self._zero = finder.zeroing(self._first)
        self._stranger = finder.stranger(self._first) if self._zero is None else None
        self._several = finder.added(self._first) > 1
        self._near = facts.graphs.frame(self._first.added.site)
        self._zeroed_at = facts.graphs.frame(self._zero.site) if self._zero is not None else None
        self._parameters = facts.wording.parameters(self._first.parameters)

    def occurrence(self, reused: Reused) -> Occurrence:
        step = reused.use.step
        labels = distinct(self._labels())
        return Occurrence(
            message=self._message(),
            labels=labels,
            fix=self._fix(),
            step=self._facts.steps.step_of(step.serial),
            last_step=self._facts.steps.last_step(step.serial),
            cause=(labels[0].path, labels[0].line, *self._owner()),
        )

    def _owner(self) -> tuple[str | int, ...]:
        row = self._facts.trace.optimizers[self._first.use.step.optimizer]
        made = self._facts.graphs.frame(row.site)
        return (made.path, made.line) if made is not None else ()

    def _message(self) -> str:
        wording, first = self._facts.wording, self._first
        step = first.use.step
        again = "the same line" if first.earlier.site == step.site else "an earlier step"
        added = f"{wording.backward(first.added)}{wording.at(first.added.site, near=self._near)}"
        return (
            f"{wording.step(step)}{wording.at(step.site, near=self._near)} uses the gradients of "
            f"{self._parameters} once more: {again} has used them{self._earlier_at(again)}, nothing zeroed "
            f"them since, and {added} added to them. So every update repeats those before it."
        )

    def _earlier_at(self, again: str) -> str:
        if again == "the same line":
            return " in the update before"
        return self._facts.wording.at(self._first.earlier.site, near=self._near)

    def _labels(self) -> Iterator[Label]:
        graphs, first = self._facts.graphs, self._first
        if self._zeroed_at is not None:
            yield label(self._zeroed_at, "zeroes these gradients, but doesn't run between the two steps")
        added, filled = graphs.frame(first.added.site), graphs.frame(first.first.site)
        if added is not None:
            yield label(added, "adds to gradients that a step has used")
        yield from self._step_labels()
        if filled is not None:
            yield label(filled, "had filled them")
        if self._stranger is not None and (frame := graphs.frame(self._stranger.site)) is not None:
            yield label(frame, f"{self._facts.wording.zero(self._stranger)} doesn't zero these gradients")

    def _step_labels(self) -> Iterator[Label]:
        seen: list[Frame] = []
        for reused in self._found:
            for step, text in (
                (reused.use.step, "steps on them again"),
                (reused.earlier, "used them first"),
            ):
                frame = self._facts.graphs.frame(step.site)
                if frame is not None and frame not in seen and len(seen) < _MOST_STEPS:
                    seen.append(frame)
                    yield label(frame, text)

    def _fix(self) -> str:
        declared = (
            "Where gradients are to add up over the steps, say so on the line: "
            "`# graphlint: ignore[GL301] reason`."
        )
        if self._zero is not None and self._zeroed_at is not None:
            at = place(self._zeroed_at, near=self._near)
            return f"{self._call(self._zero)} {self._when()}: at {at} it runs too seldom. {declared}"
        name = self._facts.names.optimizer_name(self._first.use.step.optimizer)
        call = f"call `{name}.zero_grad()`" if name else "call the optimizer's `zero_grad()`"
        if self._stranger is not None:
            call = f"{call}, not {self._facts.wording.zero(self._stranger)},"
        return f"{call} {self._when()}. {declared}"

    def _when(self) -> str:
        wording, first = self._facts.wording, self._first
        step = f"{wording.step(first.use.step)}{wording.at(first.use.step.site, near=self._near)}"
        if self._several:
            return f"after each {step}, so that one step's backwards still add up"
        where = f" ({place(self._near, near=self._near)})" if self._near is not None else ""
        return f"before each {wording.backward(first.added)}{where}, or after each {step}"

    def _call(self, zero: ZeroGrad) -> str:
        phrase = self._facts.wording.zero(zero)
        return f"call {phrase}" if zero.tensor is None else "clear the gradients"


_BAD = Example(
    title="no zero_grad at all",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()  # <- GL301
    optimizer.step()
""",
)

_BAD_INNER = Example(
    title="zero_grad outside the critic's inner loop",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.RMSprop(generator.parameters())
critic_optimizer = torch.optim.RMSprop(critic.parameters())
for step in range(2):
    critic_optimizer.zero_grad()  # <- GL301
    for _ in range(3):
        fake = generator(torch.randn(16, 4)).detach()
        critic_loss = critic(fake).mean() - critic(torch.randn(16, 8)).mean()
        critic_loss.backward()
        critic_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = -critic(generator(torch.randn(16, 4))).mean()
    generator_loss.backward()
    generator_optimizer.step()
""",
)

_GOOD_AFTER = Example(
    title="zeroed after the step",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=False)
""",
)

_GOOD_BY_HAND = Example(
    title="zeroed by hand, between forward and backward",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_ACCUMULATED = Example(
    title="gradients accumulated over four batches, the last ones too",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for index in range(10):
        loss = model(torch.randn(16, 4)).pow(2).mean() / 4
        loss.backward()
        if index % 4 == 3 or index == 9:
            optimizer.step()
            optimizer.zero_grad()
""",
)

_GOOD_CLOSURE = Example(
    title="an LBFGS closure that zeroes",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
inputs = torch.randn(16, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = model(inputs).pow(2).mean()
    loss.backward()
    return loss


for step in range(3):
    optimizer.step(closure)
""",
)

RULE = Rule(
    code="GL301",
    name="missing-zero-grad",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad", "operations"),
    check=check,
    bad=(_BAD, _BAD_INNER),
    good=(_GOOD_AFTER, _GOOD_BY_HAND, _GOOD_ACCUMULATED, _GOOD_CLOSURE),
)
