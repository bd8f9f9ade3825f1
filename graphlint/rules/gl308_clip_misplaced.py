"""Gradients are clipped where no step feels it, or while they are scaled.

## What it does

Follows what `clip_grad_norm_`, `clip_grads_with_norm_` and `clip_grad_value_` clipped to the next step.
Reports a call that never has an effect: the optimizer had used the gradients already (those of another
network, perhaps, than the one that steps next), there were none yet, or more was still to come. With a
gradient scaler it also reports a clip of gradients that are unscaled only afterwards.

## Why it matters

The script trains as if it did not clip, and nothing says so: the first exploding gradient goes through whole.
Scaled gradients are thousands of times too long, so a limit meant for real ones shrinks each of them to
almost nothing.

## Example

    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Use instead

    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

With a scaler:

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

## Known limits

Of clipping written out by hand only `clamp_` on a gradient is known, in steps that are recorded in full. A
call with an infinite limit only measures and is not judged. A call that a step feels now and then (once for
several accumulated backwards) is left alone. Where the user's code reads the clipped gradients itself, as in
private training, the clip has done its work.
"""

from collections import Counter
from collections.abc import Iterator

from graphlint.analysis.clips import Clipped, Clips
from graphlint.analysis.facts import Facts
from graphlint.analysis.scaling import ScaledClip, Scaling
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import GradientClip, OptimizerStep
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each sighting of a clip that no step feels, or that is taken of scaled gradients."""
    clips = Clips(facts)
    for sightings in clips.misplaced():
        kinds = Counter(sighting.kind for sighting in sightings)
        usual = max(sightings, key=lambda sighting: kinds[sighting.kind])
        frame = facts.wording.frame(usual.clip.site)
        if frame is not None:
            yield from (_without_effect(facts, usual, sighting.clip, frame) for sighting in sightings)
    for clip in clips.refused():
        frame = facts.wording.frame(clip.site)
        if frame is not None:
            yield _refused(facts, clip, frame)
    for found in Scaling(facts).scaled_clips():
        frame = facts.wording.frame(found.clip.site)
        if frame is not None:
            yield _scaled(facts, found, frame)


def _call(facts: Facts, clip: GradientClip) -> str:
    return facts.wording.call_of(clip.site) or f"`{clip.call}(...)`"


# --- no effect ----------------------------------------------------------------------------------------------


def _without_effect(facts: Facts, found: Clipped, seen: GradientClip, frame: Frame) -> Occurrence:
    """Returns a sighting of a clip, told by what the usual one shows."""
    return Occurrence(
        message=f"{_call(facts, found.clip)} {_why(facts, found, frame)}",
        labels=distinct(_labels(facts, found, frame)),
        fix=_between(facts, found, frame),
        step=facts.steps.step_of(seen.serial),
        last_step=facts.steps.last_step(seen.serial),
        cause=(frame.path, frame.line),
    )


def _why(facts: Facts, found: Clipped, frame: Frame) -> str:
    words = facts.wording
    step = _step(facts, found.step, frame)
    if found.instead is not None:
        trained = words.owners(facts.gradients.parameters(found.instead.optimizer))
        return (
            f"clips gradients that {step} has used already. {_capital(_step(facts, found.instead, frame))} "
            f"comes next, and uses those of {trained}, which nothing clips."
        )
    fill = ""
    if found.filled is not None:
        fill = f"{words.backward(found.filled)}{words.at(found.filled.site, near=frame)}"
    if found.kind == "late":
        after = f", and {fill} adds to them before the next one" if fill else ""
        if found.cleared is not None:
            cleared = f"{words.zero(found.cleared)}{words.at(found.cleared.site, near=frame)}"
            after = f", and {cleared} clears them before the next one"
        return f"clips gradients that {step} has used already{after}. Every step uses them unclipped."
    if found.kind == "partial":
        return f"clips the gradients before {fill} adds to them. {_capital(step)} uses the sum unclipped."
    cleared = ""
    if found.cleared is not None:
        cleared = f": {words.zero(found.cleared)}{words.at(found.cleared.site, near=frame)} has cleared them"
    return (
        f"finds no gradients to clip{cleared}, and {fill} computes them only later. "
        f"{_capital(step)} uses them unclipped."
    )


def _step(facts: Facts, step: OptimizerStep | None, near: Frame) -> str:
    """Returns "`optimizer.step()` (line 12)"."""
    if step is None:
        return "the step"
    return f"{facts.wording.step_call(step)}{facts.wording.at(step.site, near=near)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _labels(facts: Facts, found: Clipped, frame: Frame) -> Iterator[Label]:
    words = facts.wording
    yield label(frame, "the clip has no effect here")
    step = found.instead or found.step
    used = words.frame(step.site) if step is not None else None
    if used is not None:
        yield label(used, "uses the gradients unclipped")
    filled = words.frame(found.filled.site) if found.filled is not None else None
    if filled is not None:
        yield label(filled, "computes the gradients")
    cleared = words.frame(found.cleared.site) if found.cleared is not None else None
    if cleared is not None:
        yield label(cleared, "clears the gradients")


def _between(facts: Facts, found: Clipped, frame: Frame) -> str:
    words = facts.wording
    step = _step(facts, found.step, frame)
    if found.instead is not None:
        trained = words.owners(facts.gradients.parameters(found.instead.optimizer))
        return f"give the parameters of {trained} to this call."
    after = "the last backward"
    if found.filled is not None:
        after = f"{words.backward(found.filled)}{words.at(found.filled.site, near=frame)}"
    scaled = _scaled_step(facts, found.step)
    unscale = " and after `unscale_`" if scaled else ""
    return f"clip between {after} and {step}{unscale}."


def _scaled_step(facts: Facts, step: OptimizerStep | None) -> bool:
    """Tells whether a scaler makes the optimizer's steps."""
    if step is None:
        return False
    return any(call.method == "step" and call.optimizer == step.optimizer for call in Scaling(facts).calls)


def _refused(facts: Facts, clip: GradientClip, frame: Frame) -> Occurrence:
    return Occurrence(
        message=(
            f"{_call(facts, clip)} is called before any backward has computed a gradient, and torch refuses "
            "to clip nothing by value."
        ),
        labels=(label(frame, "there is no gradient here yet"),),
        fix="clip after the backward and before the optimizer's step.",
        step=facts.steps.step_of(clip.serial),
        cause=(frame.path, frame.line),
        severity="error",
    )


# --- scaled gradients ---------------------------------------------------------------------------------------


def _scaled(facts: Facts, found: ScaledClip, frame: Frame) -> Occurrence:
    words = facts.wording
    unscaled = found.unscale if found.unscale is not None else found.step
    later = f"{words.call_of(unscaled.site) or 'the scaler'}{words.at(unscaled.site, near=frame)}"
    backward = f"{words.backward(found.backward)}{words.at(found.backward.site, near=frame)}"
    optimizer = facts.names.optimizer_name(found.step.optimizer) if found.step.optimizer is not None else None
    spelled = f"unscale_({optimizer})" if optimizer is not None else "unscale_(optimizer)"
    where = (
        f"move {later} before it" if found.unscale is not None else f"call `scaler.{spelled}` right before it"
    )
    places = (
        (words.frame(found.backward.site), "computes scaled gradients"),
        (words.frame(unscaled.site), "unscales them only here"),
    )
    return Occurrence(
        message=(
            f"{_call(facts, found.clip)} clips scaled gradients: {backward} computed them from a scaled "
            f"loss, and {later} divides them by the scale only afterwards. The limit of {found.clip.limit:g} "
            "meets gradients that are too long by the whole scale (65,536 by default)."
        ),
        labels=distinct(
            (
                label(frame, "clips gradients that are still scaled"),
                *(label(place, text) for place, text in places if place is not None),
            )
        ),
        fix=f"{where}: {_call(facts, found.clip)} then sees the real gradients.",
        step=facts.steps.step_of(found.clip.serial),
        cause=("scaled", frame.path, frame.line),
        severity="error",
    )


_AFTER_STEP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # <- GL308
"""

_BEFORE_BACKWARD = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # <- GL308
    loss.backward()
    optimizer.step()
"""

_SCALED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # <- GL308
    scaler.step(optimizer)
    scaler.update()
"""

_ACCUMULATED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    (model(torch.randn(4, 8)).square().mean() / 4).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""

_UNSCALED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
"""

_MEASURED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norms = []
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
"""

_PRIVATE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for sample in torch.randn(4, 8):
        model.zero_grad()
        model(sample).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for total, p in zip(sums, model.parameters()):
            total += p.grad
    for total, p in zip(sums, model.parameters()):
        p.grad = (total + 0.1 * torch.randn_like(total)) / 4
    optimizer.step()
"""

RULE = Rule(
    code="GL308",
    name="clip-misplaced",
    severity="warning",
    since="0.1.0",
    needs=("clipping", "backward", "optimizer", "zero-grad"),
    check=check,
    bad=(
        Example(title="a clip after the step", code=_AFTER_STEP),
        Example(title="a clip before the backward", code=_BEFORE_BACKWARD),
        Example(title="a clip of scaled gradients", code=_SCALED),
    ),
    good=(
        Example(title="clipped after each of the accumulated backwards", code=_ACCUMULATED),
        Example(title="unscaled before the clip", code=_UNSCALED),
        Example(title="a limit of infinity only measures", code=_MEASURED),
        Example(title="each sample's gradient clipped and added up by hand", code=_PRIVATE),
    ),
)
