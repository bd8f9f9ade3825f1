"""A step uses gradients left by another loss whose own optimizer had already stepped.

## What it does

Reports a step whose gradients hold what the backward of another loss left there, after the optimizer that
this loss was for had stepped on it. It names the other loss, where it runs through these parameters, the step
that it was for, and the parameters.

## Why it matters

A generator's loss fills the discriminator's gradients as well, on its way to the generator. If they are not
zeroed before the discriminator's own backward, the discriminator is trained to be fooled. Nothing fails, the
two networks just don't come to balance.

## Example

    generator_loss = criterion(discriminator(generator(noise)), real_labels)
    generator_loss.backward()
    generator_optimizer.step()
    discriminator_loss = criterion(discriminator(images), labels)
    discriminator_loss.backward()
    discriminator_optimizer.step()

## Use instead

    generator_loss = criterion(discriminator(generator(noise)), real_labels)
    generator_loss.backward()
    generator_optimizer.step()
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(images), labels)
    discriminator_loss.backward()
    discriminator_optimizer.step()

## Known limits

Judged on the steps that are recorded in full. A trunk that two losses train together, each with a head whose
optimizer steps in between, is not reported: there the losses are added up on purpose. Nor is a second loss
that goes on through the operations of the first, which `retain_graph` kept for it. Gradients that an earlier
step of the same optimizer used are GL301's.
"""

from collections.abc import Iterator

from graphlint.analysis.bleeds import Bleed, Bleeds
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each step that uses what another loss had left."""
    for bleed in Bleeds(facts).all():
        frame = facts.graphs.frame(bleed.foreign.site)
        if frame is not None:
            yield _Story(facts, bleed, frame).occurrence()


class _Story:
    """Puts one bleed into words."""

    def __init__(self, facts: Facts, bleed: Bleed, frame: Frame) -> None:
        self._facts = facts
        self._bleed = bleed
        self._frame = frame
        self._owners = facts.wording.owners(bleed.parameters)
        self._step = facts.graphs.frame(bleed.use.step.site)
        self._other = facts.graphs.frame(bleed.other.site)
        self._own = facts.graphs.frame(bleed.own.site)

    def occurrence(self) -> Occurrence:
        step = self._bleed.use.step
        place_of_step = (self._step.path, self._step.line) if self._step is not None else ("", 0)
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(step.serial),
            last_step=self._facts.steps.last_step(step.serial),
            cause=(self._frame.path, self._frame.line, *place_of_step, self._optimizer()),
        )

    def _optimizer(self) -> str:
        return self._facts.names.optimizer(self._bleed.use.step.optimizer)

    def _message(self) -> str:
        wording, bleed = self._facts.wording, self._bleed
        step = self._called(wording.step(bleed.use.step), self._step)
        other = self._facts.names.optimizer(bleed.other.optimizer)
        parameters = wording.parameters(bleed.parameters)
        foreign = self._called(wording.backward(bleed.foreign), self._frame)
        return (
            f"{step} uses gradients that another loss left in {parameters}: {foreign} "
            f"filled them for {other}, which has stepped since, and they were not zeroed before the loss of "
            f"{self._optimizer()} was differentiated. So {self._owners} {self._are()} trained by both losses."
        )

    def _are(self) -> str:
        return "are" if " and " in self._owners or self._owners.startswith("parts of") else "is"

    def _called(self, call: str, frame: Frame | None) -> str:
        return f"{call} ({place(frame, near=self._frame)})" if frame is not None else call

    def _labels(self) -> Iterator[Label]:
        optimizer, other = self._optimizer(), self._facts.names.optimizer(self._bleed.other.optimizer)
        yield label(self._frame, f"fills the gradients of {self._owners} too, in a loss for {other}")
        through = self._facts.graphs.frame(Bleeds(self._facts).entered_at(self._bleed))
        if through is not None:
            yield label(through, f"the loss for {other} runs through {self._owners} here")
        if self._other is not None:
            yield label(self._other, f"{other} steps on that loss, and {optimizer} doesn't")
        if self._own is not None:
            yield label(self._own, f"the loss for {optimizer} adds to them")
        if self._step is not None:
            yield label(self._step, f"{optimizer} steps on both")

    def _fix(self) -> str:
        name = self._facts.names.optimizer_name(self._bleed.use.step.optimizer)
        zero = f"`{name}.zero_grad()`" if name is not None else f"zero_grad of {self._optimizer()}"
        own = self._called(self._facts.wording.backward(self._bleed.own), self._own)
        foreign = self._called(self._facts.wording.backward(self._bleed.foreign), self._frame)
        freeze = (
            f"switch `requires_grad` of {self._owners} off while the loss for "
            f"{self._facts.names.optimizer(self._bleed.other.optimizer)} is computed"
        )
        if self._accumulates():
            return f"{freeze}: zeroing would throw away what {own} has gathered for {self._optimizer()}."
        between = f"between {foreign} and {own}" if self._own != self._frame else "before its own backward"
        return f"call {zero} {between}, or {freeze}."

    def _accumulates(self) -> bool:
        """Tells whether the step uses several backwards of its own loss."""
        held = self._bleed.use.held[self._bleed.parameters[0]]
        sources = [one.portion.source for one in held]
        same = self._facts.ledger.same_loss
        return sum(source is not None and same(source, self._bleed.own) for source in sources) > 1


_BAD = Example(
    title="the generator's loss leaks into the discriminator",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    generator_optimizer.zero_grad()
    discriminator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(generator(torch.randn(16, 4))), torch.ones(16, 1))
    generator_loss.backward()  # <- GL304
    generator_optimizer.step()
    fake = generator(torch.randn(16, 4)).detach()
    discriminator_loss = criterion(discriminator(fake), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
""",
)

_BAD_ATTACHED = Example(
    title="the discriminator's loss leaks into the generator through images that were not detached",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    generator_optimizer.zero_grad()
    discriminator_optimizer.zero_grad()
    fake = generator(torch.randn(16, 4))
    discriminator_loss = criterion(discriminator(fake), torch.zeros(16, 1))
    discriminator_loss.backward()  # <- GL304
    discriminator_optimizer.step()
    generator_loss = criterion(discriminator(generator(torch.randn(16, 4))), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
""",
)

_GOOD_ZEROED = Example(
    title="zeroed between the two losses",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(generator(torch.randn(16, 4))), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
    discriminator_optimizer.zero_grad()
    fake = generator(torch.randn(16, 4)).detach()
    discriminator_loss = criterion(discriminator(fake), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
""",
)

_GOOD_FROZEN = Example(
    title="the discriminator frozen during the generator's loss",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    generator_optimizer.zero_grad()
    discriminator_optimizer.zero_grad()
    discriminator.requires_grad_(False)
    generator_loss = criterion(discriminator(generator(torch.randn(16, 4))), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
    discriminator.requires_grad_(True)
    fake = generator(torch.randn(16, 4)).detach()
    discriminator_loss = criterion(discriminator(fake), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
""",
)

_GOOD_TRUNK = Example(
    title="a trunk that two losses train, each head with an optimizer of its own",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
trunk, left, right = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (trunk, left, right)]
for step in range(3):
    for optimizer in optimizers:
        optimizer.zero_grad()
    left(trunk(torch.randn(16, 4))).pow(2).mean().backward()
    optimizers[1].step()
    right(trunk(torch.randn(16, 4))).pow(2).mean().backward()
    optimizers[2].step()
    optimizers[0].step()
""",
)

_GOOD_SLOW = Example(
    title="an encoder that steps on every second batch only",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 4)
encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
for step in range(6):
    batch = torch.randn(16, 4)
    loss = (decoder(encoder(batch)) - batch).pow(2).mean()
    loss.backward()
    decoder_optimizer.step()
    decoder_optimizer.zero_grad()
    if step % 2:
        encoder_optimizer.step()
        encoder_optimizer.zero_grad()
""",
)

RULE = Rule(
    code="GL304",
    name="gradient-bleed",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad", "operations"),
    check=check,
    bad=(_BAD, _BAD_ATTACHED),
    good=(_GOOD_ZEROED, _GOOD_FROZEN, _GOOD_TRUNK, _GOOD_SLOW),
)
