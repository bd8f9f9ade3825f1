"""Gradients reach an optimizer's parameters, and it never steps.

## What it does

Reports an optimizer that takes no step in a run that came to its end, while backwards filled the gradients of
its parameters time and again and nothing else changed them. It names the backward, the parameters, and the
line that zeroes what was not used.

## Why it matters

The network stays as it was initialised. The loss that was to train it is computed and differentiated for
nothing; where it is one of two players, the other one wins.

## Example

    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()

## Use instead

    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()

## Known limits

Only a run that finished is judged: with `--steps` the step may come later. Parameters that another optimizer
steps, that are written to by hand, or whose gradients the user's code copies are left out; so is an optimizer
that nobody zeroes and whose parameters get gradients only on the way to those of another one.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.unstepped import Unstepped, UnsteppedOptimizers
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each optimizer that never steps."""
    for unstepped in UnsteppedOptimizers(facts).all():
        frame = facts.graphs.frame(unstepped.backwards[0].site)
        if frame is not None:
            yield _occurrence(facts, unstepped, frame)


def _occurrence(facts: Facts, unstepped: Unstepped, frame: Frame) -> Occurrence:
    optimizer = facts.names.optimizer(unstepped.optimizer)
    backward = unstepped.backwards[0]
    computed = f"{facts.wording.backward(backward)} ({place(frame)})"
    zeroed = ""
    if unstepped.zero is not None:
        at = facts.wording.at(unstepped.zero.site, near=frame)
        zeroed = f", {facts.wording.zero(unstepped.zero)}{at} throws them away"
    name = facts.names.optimizer_name(unstepped.optimizer)
    parameters = facts.wording.parameters(unstepped.parameters)
    step = f"`{name}.step()`" if name is not None else f"`step` of {optimizer}"
    return Occurrence(
        message=(
            f"{optimizer} never steps: {computed} fills the gradients of {parameters}{zeroed}, and the "
            f"parameters stay as they are."
        ),
        labels=distinct(_labels(facts, unstepped, frame)),
        fix=f"call {step} after {computed}.",
        step=facts.steps.step_of(backward.serial),
        last_step=facts.steps.last_step(unstepped.backwards[-1].serial),
        cause=(frame.path, frame.line, optimizer),
    )


def _labels(facts: Facts, unstepped: Unstepped, frame: Frame) -> Iterator[Label]:
    owners = facts.wording.owners(unstepped.parameters)
    yield label(frame, f"fills the gradients of {owners}, which no step uses")
    zeroed = facts.graphs.frame(unstepped.zero.site) if unstepped.zero is not None else None
    if zeroed is not None:
        yield label(zeroed, "zeroes them")
    row = facts.trace.optimizers[unstepped.optimizer]
    made = facts.graphs.frame(row.site)
    if made is not None:
        yield label(made, "this optimizer never steps")


_BAD = Example(
    title="zeroed and differentiated, not stepped",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()  # <- GL311
    print(step, loss.item())
""",
)

_BAD_SECOND = Example(
    title="one loss for two optimizers, of which one steps",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
encoder_optimizer = torch.optim.Adam(encoder.parameters())
decoder_optimizer = torch.optim.Adam(decoder.parameters())
for step in range(4):
    batch = torch.randn(16, 4)
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    loss = (decoder(encoder(batch)) - batch).pow(2).mean()
    loss.backward()  # <- GL311
    encoder_optimizer.step()
""",
)

_GOOD_ON_THE_WAY = Example(
    title="a critic that is not trained in this phase, on the way to the generator",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
critic_optimizer = torch.optim.Adam(critic.parameters())
for step in range(4):
    generator_optimizer.zero_grad()
    loss = -critic(generator(torch.randn(16, 4))).mean()
    loss.backward()
    generator_optimizer.step()
""",
)

_GOOD_REPLACED = Example(
    title="another optimizer took over",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
finetuning = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    finetuning.step()
""",
)

_GOOD_BY_HAND = Example(
    title="an update by hand",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
""",
)

_GOOD_LATE = Example(
    title="an optimizer that steps for the first time late",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
encoder_optimizer = torch.optim.Adam(encoder.parameters())
decoder_optimizer = torch.optim.Adam(decoder.parameters())
for step in range(12):
    batch = torch.randn(16, 4)
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    loss = (decoder(encoder(batch)) - batch).pow(2).mean()
    loss.backward()
    decoder_optimizer.step()
    if step > 9:
        encoder_optimizer.step()
""",
)

RULE = Rule(
    code="GL311",
    name="optimizer-never-stepped",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad", "operations"),
    check=check,
    bad=(_BAD, _BAD_SECOND),
    good=(_GOOD_ON_THE_WAY, _GOOD_REPLACED, _GOOD_BY_HAND, _GOOD_LATE),
)
