"""A gradient scaler is left out of a backward, a step or an update, or called in the wrong order.

## What it does

Follows the calls of `torch.amp.GradScaler`, and which losses were scaled. Reports a backward of an unscaled
loss before a step through the scaler, an optimizer that steps past the scaler on scaled gradients, an
`update()` that is missing or comes too early, an `unscale_()` that comes twice or at the wrong place.

## Why it matters

A step through the scaler divides the gradients by the scale, tens of thousands at first: those of a loss that
was not scaled vanish, and the model hardly trains. A step past the scaler uses gradients that are as many
times too large, infinities included. The other cases raise an error, or unscale twice in silence.

## Example

    scaler.scale(loss)
    loss.backward()
    scaler.step(optimizer)
    scaler.update()

## Use instead

    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

## Known limits

Whether a loss was scaled is known for the steps that are recorded in full, the first ones. Where the script
asks for the scale (`get_scale()`), it may scale by hand, and nothing is said about its backwards and steps. A
scaler with `enabled=False` does nothing and is not judged.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from graphlint.analysis.facts import Facts
from graphlint.analysis.scaling import Kind, Misuse, Scaling
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ScalerCall
from graphlint.record.identity import SiteId
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each misuse of a scaler."""
    for misuse in Scaling(facts).misuses():
        site = _site(misuse)
        frame = facts.wording.frame(site)
        if frame is None:
            continue
        words = _Words(facts, misuse, frame)
        yield Occurrence(
            message=words.message(),
            labels=distinct(_labels(facts, misuse, frame)),
            fix=words.fix(),
            step=facts.steps.step_of(misuse.call.serial),
            last_step=facts.steps.last_step(misuse.call.serial),
            cause=(misuse.kind, frame.path, frame.line),
        )


def _site(misuse: Misuse) -> SiteId | None:
    """Returns the place to change."""
    if misuse.kind == "unscaled backward" and misuse.backward is not None:
        return misuse.backward.site
    if misuse.kind == "step past the scaler" and misuse.step is not None:
        return misuse.step.site
    if misuse.kind == "unscaled after step" and misuse.earlier is not None:
        return misuse.earlier.site
    return misuse.call.site


class _Words:
    """Says what is wrong with a misuse, for a reader of the line `near`."""

    def __init__(self, facts: Facts, misuse: Misuse, near: Frame) -> None:
        self._facts = facts
        self._misuse = misuse
        self._near = near
        self._call = self._spelled(misuse.call)
        self._earlier = self._spelled(misuse.earlier)

    def _spelled(self, call: ScalerCall | None) -> str:
        if call is None:
            return "the scaler"
        return f"{self._bare(call)}{self._at(call.site)}"

    def _bare(self, call: ScalerCall | None) -> str:
        spelled = self._facts.wording.call_of(call.site) if call is not None else None
        return spelled or (f"`scaler.{call.method}()`" if call is not None else "the scaler's call")

    def _at(self, site: SiteId | None) -> str:
        """Returns " (line 12)"; nothing for the line that the reader is at."""
        here = self._facts.wording.frame(site) == self._near
        return "" if here else self._facts.wording.at(site, near=self._near)

    def _backward(self) -> str:
        backward = self._misuse.backward
        if backward is None:
            return "the backward"
        return f"{self._facts.wording.backward(backward)}{self._at(backward.site)}"

    def _loss(self) -> str:
        backward = self._misuse.backward
        return self._facts.wording.loss(backward) if backward is not None else "the loss"

    def message(self) -> str:
        """Returns what the call does, and what comes of it."""
        call, earlier, backward = self._call, self._earlier, self._backward()
        match self._misuse.kind:
            case "unscaled backward":
                text = (
                    f"{backward} differentiates {self._loss()} unscaled, but {call} divides the gradients by "
                    "the scale all the same. They come out too small by all of it (65,536 by default)."
                )
            case "step past the scaler":
                step = self._facts.wording.step(self._misuse.step) if self._misuse.step else "the optimizer"
                text = (
                    f"{step} goes past the scaler with gradients that {backward} computed from a scaled "
                    "loss. They are too large by the scale (65,536 by default), infinities included."
                )
            case "update missing":
                same = self._misuse.earlier is None or self._misuse.earlier.site == self._misuse.call.site
                again = "the next call of it" if same else earlier
                text = f"No `update()` of the scaler comes between {call} and {again}, which torch refuses."
            case "unscaled twice":
                text = (
                    f"{call} unscales gradients that {earlier} has unscaled since the last `update()`, which "
                    "torch refuses."
                )
                if self._misuse.earlier is not None and self._misuse.earlier.site == self._misuse.call.site:
                    text = f"{call} is called again with no step and `update()` between: torch refuses."
            case "unscaled after step":
                text = f"{earlier} comes after {call}, which unscales by itself: torch refuses."
            case "update before step":
                text = (
                    f"{call} makes the scaler forget that {earlier} has unscaled the gradients. The step "
                    "divides them by the scale once more."
                )
            case "backward after unscaling":
                text = (
                    f"{backward} adds scaled gradients after {call} has unscaled those before, and {earlier} "
                    "doesn't unscale again. They stay too large by the whole scale (65,536 by default)."
                )
            case "update without step":
                text = (
                    f"{call} runs although nothing was stepped or unscaled since the update before, which "
                    "torch refuses."
                )
        return text

    def fix(self) -> str:
        """Returns what to change."""
        misuse = self._misuse
        bare, earlier = self._bare(misuse.call), self._bare(misuse.earlier)
        loss = self._loss().strip("`")
        name = None
        if misuse.optimizer is not None:
            name = self._facts.names.optimizer_name(misuse.optimizer)
        optimizer = name or "optimizer"
        scaled = (
            f"`scaler.scale({loss}).backward()`" if " " not in loss else "`backward()` on the scaled loss"
        )
        remedies: dict[Kind, str] = {
            "unscaled backward": f"call {scaled} instead.",
            "step past the scaler": f"call `scaler.step({optimizer})` instead, then `scaler.update()`.",
            "update missing": f"call `scaler.update()` after {bare}, once a round.",
            "unscaled twice": "unscale once for each step, after its last backward.",
            "unscaled after step": f"move {earlier} before {self._call}.",
            "update before step": f"call {bare} after the scaler's step.",
            "backward after unscaling": f"move {bare} behind {self._backward()}.",
            "update without step": f"call `scaler.update()` only right after `scaler.step({optimizer})`.",
        }
        return remedies[misuse.kind]


def _labels(facts: Facts, misuse: Misuse, frame: Frame) -> Iterator[Label]:
    words = facts.wording
    texts = {
        "unscaled backward": ("this loss is not scaled", "divides the gradients by the scale"),
        "step past the scaler": ("uses scaled gradients as they are", "scales the loss"),
        "update missing": ("no `update()` follows", "steps through the scaler"),
        "unscaled twice": ("unscales again", "unscales again"),
        "unscaled after step": ("unscales after the step", "has unscaled and used them already"),
        "update before step": ("updates before the step", "updates before the step"),
        "backward after unscaling": ("unscales too early", "unscales too early"),
        "update without step": ("nothing to update from", "nothing to update from"),
    }
    first, second = texts[misuse.kind]
    yield label(frame, first)
    places = [(misuse.call.site, second)]
    if misuse.backward is not None:
        places.append((misuse.backward.site, "computes the gradients"))
    if misuse.earlier is not None:
        places.append((misuse.earlier.site, _EARLIER.get(misuse.kind, "the other call")))
    for site, text in places:
        place = words.frame(site)
        if place is not None:
            yield label(place, text)


_EARLIER: Mapping[str, str] = MappingProxyType(
    {
        "update missing": "comes before any update",
        "unscaled twice": "unscales the first time",
        "update before step": "unscales the gradients",
        "backward after unscaling": "uses them",
    }
)


_NOT_SCALED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss)
    loss.backward()  # <- GL310
    scaler.step(optimizer)
    scaler.update()
"""

_PAST = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss).backward()
    optimizer.step()  # <- GL310
"""

_NO_UPDATE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # <- GL310
"""

_ACCUMULATED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    loss = model(torch.randn(4, 8)).square().mean() / 4
    scaler.scale(loss).backward()
    if step % 4 == 3:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

_TWO = """\
import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    fake = generator(torch.randn(4, 4))
    c_optimizer.zero_grad()
    critic_loss = critic(fake.detach()).mean() - critic(torch.randn(4, 8)).mean()
    scaler.scale(critic_loss).backward()
    scaler.step(c_optimizer)
    g_optimizer.zero_grad()
    scaler.scale(-critic(fake).mean()).backward()
    scaler.step(g_optimizer)
    scaler.update()
"""

_OFF = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    scaler.step(optimizer)
"""

_BY_HAND = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if all(p.grad.isfinite().all() for p in model.parameters()):
        optimizer.step()
    scaler.update()
"""

RULE = Rule(
    code="GL310",
    name="amp-misuse",
    severity="error",
    since="0.1.0",
    needs=("scalers", "backward", "optimizer", "zero-grad"),
    check=check,
    bad=(
        Example(title="a loss that is scaled, and differentiated unscaled", code=_NOT_SCALED),
        Example(title="a step past the scaler", code=_PAST),
        Example(
            title="no update",
            code=_NO_UPDATE,
            raises="step() has already been called since the last update()",
        ),
    ),
    good=(
        Example(title="unscaled once for several backwards", code=_ACCUMULATED),
        Example(title="two optimizers, one update", code=_TWO),
        Example(title="a scaler that is switched off", code=_OFF),
        Example(title="unscaled, checked and stepped by hand", code=_BY_HAND),
    ),
)
