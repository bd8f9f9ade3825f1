"""An optimizer steps parameters that its loss does not reach.

## What it does

Reports a step of an optimizer none of whose parameters was reached by a backward since its last step. It
names the loss, counts the parameters, and shows the line at which the gradient was cut off (`.detach()`,
`no_grad`, `.data`, `.item()`, a tensor wrapped anew, integers, a comparison), or says that no values flow
from the parameters to the loss either. A backward that raised for another reason is reported as well when it
could not have reached the parameters that it was there for.

## Why it matters

Nothing fails: the loss is computed, printed, and even falls, while the network behind the cut stays as it
was initialised.

## Example

    verdict = discriminator(generator(noise).detach())
    generator_loss = criterion(verdict, real_labels)
    generator_loss.backward()
    generator_optimizer.step()

## Use instead

    verdict = discriminator(generator(noise))
    generator_loss = criterion(verdict, real_labels)
    generator_loss.backward()
    generator_optimizer.step()

## Known limits

A step at which other optimizers stepped on the same backward before is taken for an idle branch until it was
seen three times. Parameters whose gradients were assigned by hand, frozen parameters and groups with a
learning rate of 0 are left out. A step for which no backward was called is GL303's. What Python or another
library computed between two tensors is not seen.
"""

from collections.abc import Iterator

from graphlint.analysis.cut_words import CutWords
from graphlint.analysis.cuts import Cut
from graphlint.analysis.facts import Facts
from graphlint.analysis.reach import Missed
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import Serial
from graphlint.record.tables import Frame

_MOST_CUTS = 3
_TWO = 2


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each step whose optimizer no backward reached."""
    replaced = {stale.optimizer for stale in facts.stale.all if stale.whole}
    for missed in facts.reach.missed():
        if missed.optimizer in replaced:
            continue  # GL205 tells that its parameters were replaced.
        site = missed.backward.site
        if site is None and missed.step is not None:
            site = missed.step.site
        frame = facts.graphs.frame(site)
        if frame is not None:
            yield _Story(facts, missed, frame).occurrence()


class _Story:
    """Puts one missed optimizer into words."""

    def __init__(self, facts: Facts, missed: Missed, frame: Frame) -> None:
        self._facts = facts
        self._missed = missed
        self._frame = frame
        self._holders, self._alone = facts.owners.split(missed.parameters)
        self._owners = listed([*self._holders, *self._alone])
        self._number = len(missed.parameters)
        self._loss = facts.wording.loss(missed.backward)
        self._words = CutWords(facts, missed.backward.site)

    def occurrence(self) -> Occurrence:
        at = self._at()
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(at),
            last_step=self._facts.steps.last_step(at),
            cause=self._cause(),
        )

    def _at(self) -> Serial:
        if self._missed.step is not None:
            return self._missed.step.serial
        return self._missed.backward.serial

    def _cause(self) -> tuple[str | int, ...]:
        """Returns the two lines that make the fault: watched steps see the same ones, but not the cut."""
        step = self._facts.graphs.frame(self._missed.step.site) if self._missed.step is not None else None
        place_of_step = (step.path, step.line) if step is not None else ("", 0)
        return (self._frame.path, self._frame.line, *place_of_step)

    def _cuts(self) -> tuple[Cut, ...]:
        connection = self._missed.connection
        return self._words.distinct(connection.cuts, _MOST_CUTS) if connection is not None else ()

    def _message(self) -> str:
        call = self._facts.wording.backward(self._missed.backward)
        optimizer = self._facts.names.optimizer(self._missed.optimizer)
        missing = f"{self._all()} {self._got()} no gradient{self._why()}."
        return f"{call} does not reach what {optimizer} trains: {missing}"

    def _all(self) -> str:
        if self._number == 1:
            return f"its only parameter, {self._facts.names.parameter(self._missed.parameters[0])},"
        if not self._holders:
            return self._owners
        every = "both" if self._number == _TWO else f"all {self._number}"
        return f"{every} parameters of {self._owners}"

    def _got(self) -> str:
        if self._missed.step is None:
            return "would get"
        return "gets" if self._number == 1 else "get"

    def _why(self) -> str:
        connection = self._missed.connection
        if connection is None:
            return ""
        if not connection.used:
            unread = connection.complete and self._all_seen() and not self._reads()
            one = len(self._holders) + len(self._alone) == 1 and not self._nameless()
            if unread and (name := self._namesake()) is not None:
                return f": they belong to another {name} than the one that computes {self._loss}"
            told = f"{self._owners} {'is' if one else 'are'}n't" if not self._nameless() else "they aren't"
            return f", nor do values: {told} used to compute {self._loss}" if unread else self._left_torch()
        if not connection.cuts:
            return ""
        flow = f". Values flow from {self._owners} to {self._loss}, but"
        if all(cut.kind == "host" for cut in connection.cuts):
            return f"{flow} leave torch on the way, and what comes back has no graph"
        return f"{flow} the gradient's way back is cut"

    def _left_torch(self) -> str:
        """Returns where values of the parameters leave torch, which may be how they come to the loss."""
        reads = self._reads()
        if not reads:
            return ""
        lines = listed([place(frame, near=self._frame) for frame in reads], limit=_MOST_CUTS)
        return (
            f". Values computed from {self._owners} leave torch at {lines}, and what comes back has no graph"
        )

    def _namesake(self) -> str | None:
        """Returns the name that the model of these parameters shares with the one that was reached."""
        names, backward = self._facts.names, self._missed.backward
        mine, theirs = (
            {names.root(place.module) for tensor in tensors for place in names.places(tensor)}
            for tensors in (self._missed.parameters, backward.reached)
        )
        known = {names.module_name(module) for module in theirs - mine} - {None}
        shared = sorted(name for name in map(names.module_name, mine) if name in known and name is not None)
        return f"`{shared[0]}`" if shared else None

    def _nameless(self) -> bool:
        """Tells whether nothing but the optimizer is known to hold the parameters."""
        return not self._holders and "`" not in self._owners

    def _all_seen(self) -> bool:
        """Tells whether nothing was left unseen that could have carried values."""
        end = self._facts.trace.end
        return end is not None and not end.unseen

    def _reads(self) -> tuple[Frame, ...]:
        """Returns the lines that read values of these parameters into Python before the loss was ready."""
        return self._words.reads(self._missed.backward, self._missed.parameters)

    def _labels(self) -> Iterator[Label]:
        parameters = counted(self._number, "parameter")
        text = f"reaches none of the {parameters} of {self._owners}"
        yield label(self._frame, text if self._holders else f"does not reach {self._owners}")
        for cut in self._cuts():
            for found in self._words.places(cut):
                yield label(found.frame, found.text)
        if self._missed.connection is not None and not self._missed.connection.used:
            for frame in self._reads()[:_MOST_CUTS]:
                yield label(frame, "read into Python here: what comes back has no graph")
        step = self._missed.step
        stepped = self._facts.graphs.frame(step.site) if step is not None else None
        if stepped is not None:
            yield label(stepped, "stepped here without a gradient")

    def _fix(self) -> str:
        cuts = self._cuts()
        if cuts:
            remedies = [self._words.remedy(cut, self._loss, self._kept_for(cut)) for cut in cuts]
            return f"{listed(remedies)}."
        optimizer = self._facts.names.optimizer(self._missed.optimizer)
        reads = self._reads()
        if self._missed.connection is not None and not self._missed.connection.used and not reads:
            namesake = self._namesake()
            if self._nameless() or namesake is not None:
                return (
                    f"give {optimizer} the parameters of the {namesake or 'model'} that computes "
                    f"{self._loss}: those that it has belong to {'another one' if namesake else 'no module'}."
                )
            output = f"the output of {self._owners}" if self._holders else self._owners
            return (
                f"compute {self._loss} from {output}, or drop the step of {optimizer} "
                f"if it isn't to be trained by this loss."
            )
        if reads:
            anew = self._words.rewrapped(self._missed.backward, self._missed.parameters, self._loss)
            kept = f"keep the values in tensors between {place(reads[0], near=self._frame)} and {self._loss}"
            return f"{anew or kept}."
        return f"build {self._loss} from the output of {self._owners} with its graph."

    def _kept_for(self, cut: Cut) -> str | None:
        """Returns another loss of the same step that needs the cut: it reads the cut tensor too."""
        backward = self._missed.backward
        step = self._facts.steps.of(backward.serial)
        if step is None:
            return None
        for other in self._facts.graphs.backwards:
            if other.serial == backward.serial or not step.first <= other.serial <= step.end:
                continue
            if set(other.reached) & set(self._missed.parameters):
                continue
            if any(self._facts.values.depends(root, other.serial, (cut.result,)) for root in other.roots):
                return self._facts.wording.loss(other)
        return None


_BAD = Example(
    title="the generator's loss is built on detached images",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    fake = generator(torch.randn(16, 4)).detach()
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(fake), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(fake), torch.ones(16, 1))
    generator_loss.backward()  # <- GL201
    generator_optimizer.step()
""",
)

_BAD_REWRAPPED = Example(
    title="a loss made anew from its number",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss = torch.tensor(loss.item(), requires_grad=True)
    optimizer.zero_grad()
    loss.backward()  # <- GL201
    optimizer.step()
""",
)

_GOOD = Example(
    title="detached for the discriminator only",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(fake.detach()), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(fake), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
""",
)

_GOOD_BY_HAND = Example(
    title="gradients assigned by hand",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        parameter.grad = gradient
    optimizer.step()
""",
)

RULE = Rule(
    code="GL201",
    name="detached-loss",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer"),
    check=check,
    bad=(_BAD, _BAD_REWRAPPED),
    good=(_GOOD, _GOOD_BY_HAND),
)
