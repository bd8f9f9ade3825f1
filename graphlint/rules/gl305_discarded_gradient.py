"""A backward computes gradients that are zeroed unused, and a detach would have spared them.

## What it does

Reports a backward that runs through a network whose gradients are all zeroed before any optimizer uses them,
where nothing behind it needed that way. It names the network, the line that zeroes, the share of the
backward's nodes that it cost, and the tensor to detach.

## Why it matters

The usual case is a discriminator's loss on images that were not detached: each step differentiates the whole
generator for nothing, keeps its activations in memory for it, and frees a graph that the generator's own loss
may still want (GL101).

## Example

    images = generator(noise)
    discriminator_loss = criterion(discriminator(images), fake_labels)
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()

## Use instead

    images = generator(noise)
    discriminator_loss = criterion(discriminator(images.detach()), fake_labels)
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()

## Known limits

A generator's backward fills the discriminator's gradients too; that is the way to the generator, no detach
could spare it, and it is not reported. Networks that belong to no optimizer are left out.
"""

from collections.abc import Iterator

from graphlint.analysis.discards import Discard, Discards
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import label
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each network that a backward went through for nothing.

    Steps that were only watched come last: of those it isn't known what was built where.
    """
    blind: list[tuple[Discard, Frame]] = []
    builders: dict[tuple[Frame, tuple[TensorId, ...]], Frame] = {}
    for found in Discards(facts).all():
        frame = facts.graphs.frame(found.backward.site)
        if frame is None:
            continue
        built = facts.graphs.common_frame(found.built, found.backward.site)
        if built is None:
            blind.append((found, frame))
        else:
            builders.setdefault((frame, found.parameters), built)
            yield _occurrence(facts, found, frame, built)
    for found, frame in blind:
        yield _occurrence(facts, found, frame, builders.get((frame, found.parameters)))


def _occurrence(facts: Facts, found: Discard, frame: Frame, built: Frame | None) -> Occurrence:
    owners = facts.wording.owners(found.parameters)
    zero = facts.wording.zero(found.zeroed)
    at = facts.wording.at(found.zeroed.site, near=frame)
    share = round(100 * len(found.nodes) / found.executed)
    return Occurrence(
        message=(
            f"{facts.wording.backward(found.backward)} runs back through {owners} for gradients that "
            f"{zero}{at} throws away unused: {len(found.nodes)} of its {counted(found.executed, 'node')} "
            f"({share} %)."
        ),
        labels=tuple(_labels(facts, found, frame, built)),
        fix=_fix(facts, found, frame),
        step=facts.steps.step_of(found.backward.serial),
        last_step=facts.steps.last_step(found.backward.serial),
        cause=(frame.path, frame.line, *((built.path, built.line) if built is not None else ())),
    )


def _labels(facts: Facts, found: Discard, frame: Frame, built: Frame | None) -> Iterator[Label]:
    owners = facts.wording.owners(found.parameters)
    number = counted(len(found.parameters), "parameter")
    yield label(frame, f"fills the gradients of {number} of {owners}")
    if built is not None:
        yield label(built, "runs back through what was built here")
    zeroed = facts.graphs.frame(found.zeroed.site)
    if zeroed is not None:
        yield label(zeroed, "zeroed here, unused")


def _fix(facts: Facts, found: Discard, frame: Frame) -> str:
    names = [facts.names.tensor_name(tensor, frame.function) for tensor in found.handed_over]
    named = [f"`{name}`" for name in dict.fromkeys(names) if name is not None]
    loss = facts.wording.loss(found.backward)
    taken = facts.graphs.common_frame(found.taken_at, found.backward.site)
    owners = facts.wording.owners(found.parameters)
    where = f" where {place(taken, near=frame)} uses it" if taken is not None else ""
    what = listed(named) if named else f"the output of {owners}"
    return f"detach {what}{where}: {loss} isn't there to train {owners}."


_BAD = Example(
    title="the discriminator's loss on images that were not detached",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    images = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(images), torch.zeros(16, 1))
    discriminator_loss.backward()  # <- GL305
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    images = generator(torch.randn(16, 4))
    generator_loss = criterion(discriminator(images), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
""",
)

_GOOD = Example(
    title="the generator's backward fills the discriminator's gradients, which are zeroed before use",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    images = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(images.detach()), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(images), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
""",
)

RULE = Rule(
    code="GL305",
    name="discarded-gradient",
    severity="warning",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad"),
    check=check,
    bad=(_BAD,),
    good=(_GOOD,),
)
