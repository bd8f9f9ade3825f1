"""A learning-rate scheduler steps before the optimizer, round by round.

## What it does

Follows the steps of each scheduler and of its optimizer. Reports a scheduler whose first step comes before
the optimizer's first, where the same line goes on stepping it between the optimizer's steps. What a
scheduler's constructor does by itself doesn't count.

## Why it matters

The first value of the schedule is never used, and every later one takes effect a round too early: milestones
are reached an epoch before they should, a warm-up starts at its second value.

## Example

    for epoch in range(epochs):
        scheduler.step()
        for images, labels in loader:
            train_step(images, labels)

## Use instead

    for epoch in range(epochs):
        for images, labels in loader:
            train_step(images, labels)
        scheduler.step()

## Known limits

A scheduler that steps several times before the optimizer's first step is being moved to where an earlier run
ended, or waits for an optimizer that starts late, and is left alone. So are one that is told the epoch
(`step(epoch)` with 0 at first), one that skips a rate of zero, and `ReduceLROnPlateau`. A step that a
gradient scaler leaves out counts as the optimizer's, although torch warns. The line must be seen twice; in a
run that was cut short, before anything else is trained or right before the optimizer's step.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphlint.analysis.facts import Facts
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import AnyEvent, Backward, OptimizerStep, Repeat, ScalerCall, SchedulerStep
from graphlint.record.identity import OptimizerId, Serial
from graphlint.record.tables import Frame

_STEPS = re.compile(r"\.step\(")


@dataclass(frozen=True, slots=True)
class _Early:
    """A scheduler's first step that came before `taken`, the optimizer's first; `again` is its second."""

    first: SchedulerStep
    again: SchedulerStep
    taken: OptimizerStep
    between: int


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each scheduler that steps first."""
    by_scheduler: dict[int, list[SchedulerStep]] = {}
    for event in facts.trace.events:
        if isinstance(event, SchedulerStep) and not event.by_metric:
            by_scheduler.setdefault(event.scheduler, []).append(event)
    for steps in by_scheduler.values():
        found = _early(facts, steps)
        frame = facts.wording.frame(found.first.site) if found is not None else None
        if found is not None and frame is not None:
            yield _occurrence(facts, found, frame)


def _early(facts: Facts, steps: Sequence[SchedulerStep]) -> _Early | None:
    """Returns how a scheduler steps too early; None where it doesn't."""
    asked = [step for step in steps if not step.initial]
    if len(asked) < 2 or asked[0].optimizer_stepped or not _advances(steps, asked[0]):  # noqa: PLR2004 - twice
        return None
    first, again = asked[0], asked[1]
    held = _holders(facts, first.optimizer)
    attempts = list(_attempts(facts, held))
    if not attempts or not first.serial < attempts[0] < again.serial or first.site != again.site:
        return None
    last = next(step for step in reversed(asked) if step.site == first.site)
    if attempts[-1] < last.serial:
        # A round ends with the scheduler: the optimizer only began late.
        return None
    if not _finished(facts) and _may_begin_late(facts, first.serial, attempts[0]):
        return None
    taken = [s for s in facts.gradients.all_steps if s.optimizer in held and s.serial > first.serial]
    if not taken:
        return None
    return _Early(first, again, taken[0], sum(serial < again.serial for serial in attempts))


def _finished(facts: Facts) -> bool:
    end = facts.trace.end
    return end is not None and (end.how == "finished" or (end.how == "exit" and not end.exit_code))


def _may_begin_late(facts: Facts, first: Serial, taken: Serial) -> bool:
    """Tells whether something was trained before the scheduler's first step, and again after it.

    Where the run was cut short it can't be told then whether a round ends with the scheduler: gradients
    may be added up over several batches, or the optimizer may have sat out the first ones.
    """
    backwards = [event.serial for event in facts.trace.events if isinstance(event, Backward)]
    return any(serial < first for serial in backwards) and any(first < serial < taken for serial in backwards)


def _advances(steps: Sequence[SchedulerStep], first: SchedulerStep) -> bool:
    """Tells whether a step goes on by one from where the schedule began, past a rate that isn't zero."""
    if first.before and all(rate == 0 for rate in first.before):
        return False
    begun = [step.position for step in steps if step.initial and step.serial < first.serial]
    began = begun[-1] if begun else 0.0
    return first.position is None or began is None or first.position == began + 1


def _holders(facts: Facts, optimizer: OptimizerId) -> frozenset[OptimizerId]:
    """Returns the optimizers that step the parameters of one, itself included: one may wrap another."""
    shared = (o for t in facts.gradients.parameters(optimizer) for o in facts.gradients.optimizers(t))
    return frozenset({optimizer, *shared})


def _attempts(facts: Facts, optimizers: frozenset[OptimizerId]) -> Iterator[Serial]:
    """Yields when the optimizers stepped, or a scaler was asked for it, folded steps included."""
    folded = {step.boundary: step.events for step in facts.steps.all}
    for event in facts.trace.events:
        if isinstance(event, Repeat):
            if any(_is_attempt(inside, optimizers) for inside in folded.get(event.like, ())):
                yield event.serial
        elif _is_attempt(event, optimizers):
            yield event.serial


def _is_attempt(event: AnyEvent, optimizers: frozenset[OptimizerId]) -> bool:
    match event:
        case OptimizerStep(optimizer=optimizer) | ScalerCall(method="step", optimizer=optimizer):
            return optimizer in optimizers
        case _:
            return False


# --- words --------------------------------------------------------------------------------------------------


def _occurrence(facts: Facts, found: _Early, frame: Frame) -> Occurrence:
    name = _called(facts, found, frame)
    step = f"{facts.wording.step_call(found.taken)}{facts.wording.at(found.taken.site, near=frame)}"
    labels = distinct(_labels(facts, found, frame))
    before, after = _spelled(found.first.before), _spelled(found.first.after)
    lost = f"The first value of its schedule, {before}, is never used"
    if found.first.before == found.first.after:
        comes = f"{lost}, and every later value takes effect a round too early."
    else:
        comes = f"{lost}: the first step is taken with {after}."
    return Occurrence(
        message=f"{name} comes before {step} from the first round on. {comes}",
        labels=labels,
        fix=_fix(facts, found, frame, name),
        step=facts.steps.step_of(found.first.serial),
        cause=(labels[0].path, labels[0].line, found.first.type),
    )


def _spelled(rates: Sequence[float | None]) -> str:
    """Returns "a learning rate of 0.1", or several."""
    known = list(dict.fromkeys(f"{rate:g}" for rate in rates if rate is not None))
    if not known:
        return "its learning rate"
    return f"a learning rate of {known[0]}" if len(known) == 1 else f"learning rates of {', '.join(known)}"


def _called(facts: Facts, found: _Early, frame: Frame) -> str:
    name = facts.names.scheduler_name(found.first.scheduler)
    spelled = facts.sources.call(frame.path, frame.line, _STEPS)
    if spelled is not None:
        return f"`{spelled}`"
    return f"`{name}.step()`" if name is not None else f"the step of the {found.first.type}"


def _labels(facts: Facts, found: _Early, frame: Frame) -> Iterator[Label]:
    """Yields the line to change first: the one that hands `step` on to a loop, where there is one."""
    name = facts.names.scheduler_name(found.first.scheduler)
    if facts.sources.call(frame.path, frame.line, _STEPS) is None and name is not None:
        handed = facts.sources.handed_on(f"{name}.step")
        if handed is not None:
            yield Label(
                path=handed[0], line=handed[1], text=f"hands `{name}.step` to what calls it too early"
            )
    yield label(frame, "steps the scheduler before the optimizer's first step")
    taken = facts.wording.frame(found.taken.site)
    if taken is not None:
        yield label(taken, "the optimizer's first step")
    parted = facts.graphs.parting(found.first.site, found.taken.site)
    if parted is not None:
        yield label(parted[0], "steps the scheduler by way of this call")


def _fix(facts: Facts, found: _Early, frame: Frame, name: str) -> str:
    step = f"{facts.wording.step_call(found.taken)}{facts.wording.at(found.taken.site, near=frame)}"
    if found.between > 1:
        return f"step the scheduler at the end of the round, after the last {step}."
    return f"call {name} after {step}."


_EPOCH = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(3):
    scheduler.step()  # <- GL309
    for batch in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
"""

_BATCH = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=9)
for batch in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    scheduler.step()  # <- GL309
    optimizer.step()
"""

_RIGHT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedulers = torch.optim.lr_scheduler
warm_up = schedulers.LinearLR(optimizer, total_iters=1)
scheduler = schedulers.SequentialLR(optimizer, [warm_up, schedulers.StepLR(optimizer, 2)], [1])
for epoch in range(3):
    for batch in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    scheduler.step()
"""

_RESUMED = """\
import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
start = 2
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for epoch in range(start):
        scheduler.step()
for epoch in range(start, 5):
    for batch in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    scheduler.step()
"""

_TOLD = """\
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
for epoch in range(3):
    scheduler.step(epoch)
    for batch in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
"""

_LEFT_OUT = """\
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu")
for batch in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss * float("inf") if batch == 0 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
"""

RULE = Rule(
    code="GL309",
    name="scheduler-before-optimizer",
    severity="warning",
    since="0.1.0",
    needs=("schedulers", "optimizer"),
    check=check,
    bad=(
        Example(title="at the start of each epoch", code=_EPOCH),
        Example(title="before the optimizer in each step", code=_BATCH),
    ),
    good=(
        Example(title="at the end of each epoch", code=_RIGHT),
        Example(title="moved to where an earlier run ended", code=_RESUMED),
        Example(title="told the epoch", code=_TOLD),
        Example(title="a first step that the scaler leaves out", code=_LEFT_OUT),
    ),
)
