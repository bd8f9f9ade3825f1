"""A tensor that the graph had saved was changed before the backward used it.

## What it does

Reports a tensor that was written to between the forward pass that saved it and the backward that needed it:
by an optimizer's step, by an in-place operation, through a view. Torch refuses such a backward; the finding
names the line that saved, the line that changed, and the parameter and the optimizer where a step did it. The
silent kind is reported too: written through `.data` or another detached alias, which torch does not notice.

## Why it matters

The gradient would be that of another function than the one that was computed. Torch's message names a shape
and two version numbers, not the tensor and not the line.

## Example

    verdict = discriminator(generator(noise))
    discriminator_loss(verdict).backward(retain_graph=True)
    discriminator_optimizer.step()
    generator_loss(verdict).backward()

## Use instead

    images = generator(noise)
    discriminator_loss(discriminator(images.detach())).backward()
    discriminator_optimizer.step()
    generator_loss(discriminator(images)).backward()

## Known limits

A silent write is reported only where the alias was taken from the very tensor that was saved and is as large;
one through NumPy or through part of the memory is not seen.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.failures import met_changed_tensor
from graphlint.analysis.overwrites import Overwrite, Overwrites
from graphlint.analysis.reentry import Reentry
from graphlint.analysis.reentry_words import ReentryWords
from graphlint.analysis.wording import counted, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward, Op, OptimizerStep
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each backward that needed a tensor which had been written to."""
    overwrites = Overwrites(facts)
    for backward in facts.graphs.backwards:
        frame = facts.graphs.frame(backward.site)
        if frame is None:
            continue
        if met_changed_tensor(backward) is not None:
            found = overwrites.refused(backward)
            if found is None:
                yield _bare(facts, backward, frame)
            else:
                yield _Story(facts, found, frame, silent=False).occurrence()
        else:
            for found in overwrites.unseen(backward):
                yield _Story(facts, found, frame, silent=True).occurrence()


def _bare(facts: Facts, backward: Backward, frame: Frame) -> Occurrence:
    """Returns what can be said when the write itself was out of the record's sight."""
    told = met_changed_tensor(backward)
    shape = f" of shape {told.shape}" if told is not None and told.shape is not None else ""
    return Occurrence(
        message=f"{facts.wording.backward(backward)} needs a tensor{shape} that was changed in place since.",
        labels=(label(frame, "needed here: torch raises"),),
        fix="find the write in place between the forward pass and this line; it was not recorded, level full "
        "records every step.",
        step=facts.steps.step_of(backward.serial),
        last_step=facts.steps.last_step(backward.serial),
    )


class _Story:
    """Puts one overwritten tensor into words."""

    def __init__(self, facts: Facts, found: Overwrite, frame: Frame, *, silent: bool) -> None:
        self._facts = facts
        self._found = found
        self._frame = frame
        self._silent = silent
        self._call = facts.wording.backward(found.backward)
        self._tensor = facts.names.tensor(found.tensor, frame.function)
        self._saved = facts.graphs.common_frame(found.node.site, found.event.site)

    def occurrence(self) -> Occurrence:
        serial = self._found.backward.serial
        return Occurrence(
            message=self._message(),
            labels=distinct(self._labels()),
            fix=self._fix(),
            step=self._facts.steps.step_of(serial),
            last_step=self._facts.steps.last_step(serial),
        )

    def _message(self) -> str:
        others = self._found.others
        also = f" and {counted(others, 'other tensor')}" if others else ""
        told = f"{self._call} needs {self._tensor} as the graph saved it, but {self._writer()} changed"
        if self._silent:
            return f"{told} it in between, unseen by torch: the gradient is not that of the loss."
        return f"{told} it{also} in place in between."

    def _writer(self) -> str:
        event = self._found.event
        at = self._facts.wording.at(event.site, near=self._frame)
        if isinstance(event, OptimizerStep):
            return f"{self._facts.wording.step(event)}{at}"
        frame = self._facts.graphs.frame(event.site)
        return f"{place(frame, near=self._frame)}" if frame is not None else "an in-place operation"

    def _labels(self) -> Iterator[Label]:
        ending = "the gradient uses the new values, without an error" if self._silent else "torch raises"
        yield label(self._frame, f"needed here: {ending}")
        event = self._found.event
        changed = self._facts.graphs.frame(event.site)
        saving = f"saved here for the backward, by {self._found.node.name}"
        by = (
            f" by {self._facts.wording.step(event)}"
            if isinstance(event, OptimizerStep)
            else self._in_module()
        )
        changing = f"changed here{by}: {self._tensor}"
        if changed is not None and self._saved is not None and changed.line == self._saved.line:
            yield label(changed, f"{saving}; then {changing}")
        else:
            if self._saved is not None:
                yield label(self._saved, saving)
            if changed is not None:
                yield label(changed, changing)
        via = self._facts.graphs.common_frame(event.site, self._found.node.site)
        if via is not None and via != changed:
            yield label(via, "changed by way of this call")

    def _in_module(self) -> str:
        """Returns " in `net.3`" where a module did the writing."""
        module = self._found.event.module if isinstance(self._found.event, Op) else None
        return f" in {self._facts.names.module(module)}" if module is not None else ""

    def _fix(self) -> str:
        if isinstance(self._found.event, OptimizerStep):
            return self._fix_step(self._found.event)
        changed = self._facts.graphs.frame(self._found.event.site)
        where = f" at {place(changed, near=self._frame)}" if changed is not None else ""
        kept = (
            f"save a copy at {place(self._saved, near=self._frame)}"
            if self._saved is not None
            else "save a copy"
        )
        if self._facts.names.places(self._found.tensor):
            before = f", or before {place(self._saved, near=self._frame)} uses it" if self._saved else ""
            return f"write to {self._tensor} after {self._call}{before}."
        new = f"make a new tensor{where}{self._in_module()} instead of writing into {self._tensor}"
        return f"{new}, write after {self._call}, or {kept} (`.clone()`)."

    def _fix_step(self, step: OptimizerStep) -> str:
        graph = self._facts.graphs.of(self._found.backward)
        if graph is not None and graph.visits:
            case = Reentry(self._facts, self._found.backward, graph)
            words = ReentryWords(self._facts, case, self._frame)
            return f"{words.remedy()} retain_graph=True is not needed then."
        at = self._facts.wording.at(step.site, near=self._frame)
        saved = self._facts.graphs.common_frame(self._found.node.site, self._found.backward.site)
        quoted = self._facts.wording.call_at(saved) if saved is not None else None
        if quoted is not None and saved is not None:
            where = place(saved, near=self._frame)
            return (
                f"call {quoted} ({where}) after {self._facts.wording.step(step)}{at}, or call {self._call} "
                f"before it."
            )
        return f"call {self._call} before {self._facts.wording.step(step)}{at}, or the forward pass after it."


_BAD = Example(
    title="the graph retained over a step of the optimizer",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Linear(4, 8)
discriminator = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(2):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    verdict = discriminator(fake)
    discriminator_loss = criterion(verdict, torch.zeros(16, 1))
    discriminator_loss.backward(retain_graph=True)
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(verdict, torch.ones(16, 1))
    generator_loss.backward()  # <- GL105
    generator_optimizer.step()
""",
    raises="modified by an inplace operation",
)

_BAD_SILENT = Example(
    title="weights written through .data between the forward pass and the backward",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for step in range(2):
    loss = second(first(torch.randn(16, 4)).tanh()).pow(2).mean()
    second.weight.data.clamp_(-0.01, 0.01)
    optimizer.zero_grad()
    loss.backward()  # <- GL105
    optimizer.step()
""",
)

_GOOD = Example(
    title="weights clipped after the step",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for step in range(2):
    loss = second(first(torch.randn(16, 4)).tanh()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    second.weight.data.clamp_(-0.01, 0.01)
""",
)

RULE = Rule(
    code="GL105",
    name="saved-tensor-modified",
    severity="error",
    since="0.1.0",
    needs=("backward",),
    check=check,
    bad=(_BAD, _BAD_SILENT),
    good=(_GOOD,),
)
