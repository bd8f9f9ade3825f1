"""A training step collects garbage or empties the CUDA cache several times.

## What it does

Counts `gc.collect()` and `torch.cuda.empty_cache()` in each training step and reports when one of them runs
twice or more for each pass through the step's backwards, in most steps. Calls are counted
wherever they come from in the user's code.

## Why it matters

`gc.collect()` walks every object of the process, and tensors whose last name was deleted are gone before it
starts. `torch.cuda.empty_cache()` gives cached blocks back to the driver, waits for the device, and makes
the next allocations ask for them again. Neither makes room that PyTorch would not have reused.

## Example

    for images, labels in loader:
        scores = discriminator(images)
        clear_memory()
        loss = criterion(scores, labels)
        clear_memory()
        loss.backward()
        optimizer.step()
        clear_memory()

## Use instead

    for step, (images, labels) in enumerate(loader):
        loss = criterion(discriminator(images), labels)
        loss.backward()
        optimizer.step()

## Known limits

Once a step is not reported, though once every many steps would do. Cleanup that a library does for itself
is not counted. Times are those of this run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphlint.analysis.facts import Facts
from graphlint.analysis.steps import Step
from graphlint.analysis.wording import counted, listed
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward, Cleanup, Repeat, StepBoundary
from graphlint.record.tables import Frame

_SEVERAL = 2
_NS_PER_MS = 1_000_000
_LABELS = 10


@dataclass(frozen=True, slots=True)
class _Churn:
    """The cleanup calls of one step, and how often each kind runs in one pass."""

    step: Step
    calls: tuple[Cleanup, ...]

    @property
    def weight(self) -> int:
        """How many steps it stands for."""
        return 1 + self.step.repeats


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields the cleanup of every step that does it several times, where most steps do."""
    churning = [found for step in facts.steps.all if (found := _churn(facts, step)) is not None]
    if not churning or 2 * sum(found.weight for found in churning) <= facts.steps.count:
        return
    labels = tuple(_labels(facts, churning))
    message, fix = _message(facts, churning), _fix(facts, churning)
    for found in churning:
        yield Occurrence(
            message=message,
            labels=labels,
            fix=fix,
            step=found.step.number,
            last_step=found.step.last,
            cause=("cleanup", labels[0].path, labels[0].line),
        )


def _churn(facts: Facts, step: Step) -> _Churn | None:
    calls = tuple(e for e in step.events if isinstance(e, Cleanup) and _frames(facts, e))
    kinds = Counter(call.call for call in calls)
    if not kinds:
        return None
    # A step that goes through its backward several times (accumulation, critic steps) may clean up each time.
    passes = Counter(event.site for event in step.events if isinstance(event, Backward) and not event.nested)
    return _Churn(step, calls) if max(kinds.values()) >= _SEVERAL * max(passes.values(), default=1) else None


def _frames(facts: Facts, call: Cleanup) -> tuple[Frame, ...]:
    """Returns the user's frames of a call that the user's own line made; none where a library made it."""
    site = facts.trace.sites.get(call.site) if call.site is not None else None
    return site.frames if site is not None and site.direct else ()


def _message(facts: Facts, churning: Sequence[_Churn]) -> str:
    number = len(churning)
    kinds = Counter(call.call for found in churning for call in found.calls)
    spelled = [f"{kind}() runs {_times(kinds[kind] / number)} a step" for kind in sorted(kinds)]
    spent = sum(call.duration_ns for found in churning for call in found.calls) / number / _NS_PER_MS
    collected = sum(call.collected for found in churning for call in found.calls)
    found = f", and gc.collect() frees {_objects(collected, number)}" if kinds["gc.collect"] else ""
    return f"{listed(spelled)}. That takes {spent:.1f} ms of each step{_share(facts, churning)}{found}."


def _objects(collected: int, steps: int) -> str:
    """Returns "3 objects", or that there was nothing, or hardly anything, to free."""
    average = round(collected / steps)
    return counted(average, "object") if average else "hardly anything" if collected else "nothing"


def _share(facts: Facts, churning: Sequence[_Churn]) -> str:
    """Returns " (12% of its time)", where the clock was read at both ends of a step."""
    shares = [
        sum(call.duration_ns for call in found.calls) / duration
        for found in churning
        if (duration := _duration(facts, found.step)) > 0
    ]
    return f" ({100 * sum(shares) / len(shares):.0f}% of its time)" if shares else ""


def _duration(facts: Facts, step: Step) -> int:
    """Returns how long a step took, in nanoseconds; 0 when the record can't say."""
    began: StepBoundary | None = None
    for event in facts.trace.events:
        if isinstance(event, Repeat):
            began = None
        if isinstance(event, StepBoundary):
            if began is not None and began.clock_ns is not None and event.clock_ns is not None:
                return event.clock_ns - began.clock_ns
            began = event if event.serial == step.boundary else None
    return 0


def _times(average: float) -> str:
    rounded = round(average)
    return "once" if rounded == 1 else "twice" if rounded == _SEVERAL else f"{rounded} times"


def _labels(facts: Facts, churning: Sequence[_Churn]) -> Iterator[Label]:
    """Yields the cleanup lines first, then the lines that call the function they stand in."""
    most = max(churning, key=lambda found: len(found.calls))
    lines: dict[tuple[str, int], list[str]] = {}
    callers: dict[tuple[str, int], list[str]] = {}
    for call in most.calls:
        frames = _frames(facts, call)
        lines.setdefault((frames[0].path, frames[0].line), []).append(call.call)
        if len(frames) > 1 and not _drives(facts, most.step, frames[0]):
            callers.setdefault((frames[1].path, frames[1].line), []).append(frames[0].function)
    ordered = sorted(lines.items(), key=lambda item: (-len(item[1]), item[0]))
    found = [Label(path=path, line=line, text=f"{_each(calls)} a step") for (path, line), calls in ordered]
    found += [
        Label(
            path=path,
            line=line,
            text=f"calls {listed([f'`{name}`' for name in sorted(_short(names))])} here",
        )
        for (path, line), names in sorted(callers.items())
    ]
    yield from found[:_LABELS]


def _each(calls: Sequence[str]) -> str:
    """Returns "gc.collect() twice and torch.cuda.empty_cache() twice"."""
    return listed([f"{call}() {_times(number)}" for call, number in sorted(Counter(calls).items())])


def _short(functions: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in functions}


def _drives(facts: Facts, step: Step, frame: Frame) -> bool:
    """Tells whether a frame's function runs the step itself and is no helper that only cleans up."""
    for event in step.events:
        if isinstance(event, Backward) and event.site is not None and event.site in facts.trace.sites:
            for other in facts.trace.sites[event.site].frames:
                if (other.path, other.first_line, other.function) == (
                    frame.path,
                    frame.first_line,
                    frame.function,
                ):
                    return True
    return False


def _fix(facts: Facts, churning: Sequence[_Churn]) -> str:
    most = max(churning, key=lambda found: len(found.calls))
    kinds = {call.call for call in most.calls}
    helped = [
        frames[0].function
        for call in most.calls
        if len(frames := _frames(facts, call)) > 1 and not _drives(facts, most.step, frames[0])
    ]
    helpers = listed([f"`{name}`" for name in sorted(_short(helped))])
    what = f"calls of {helpers}" if len(helped) == len(most.calls) else "calls"
    reasons = []
    if "gc.collect" in kinds:
        reasons.append("`del` and rebinding free a tensor at once, without gc.collect()")
    if "torch.cuda.empty_cache" in kinds:
        reasons.append("PyTorch reuses cached memory by itself, without empty_cache()")
    return f"drop the {what} from the step, or keep one every many steps: {', and '.join(reasons)}."


_CHURNING = """\
import gc

import torch
from torch import nn

torch.manual_seed(0)


def clear_memory():
    gc.collect()  # <- GL501
    torch.cuda.empty_cache()


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    predictions = model(torch.randn(4, 8))
    clear_memory()
    loss = predictions.square().mean()
    optimizer.zero_grad()
    loss.backward()
    clear_memory()
    optimizer.step()
    clear_memory()
"""

_ONCE = """\
import gc

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for step in range(3):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()
    gc.collect()
    torch.cuda.empty_cache()
"""

_CRITIC = """\
import gc

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
for step in range(3):
    for _ in range(3):
        fake = generator(torch.randn(4, 4)).detach()
        critic_loss = critic(fake).mean() - critic(torch.randn(4, 8)).mean()
        c_optimizer.zero_grad()
        critic_loss.backward()
        c_optimizer.step()
        gc.collect()
    generator_loss = -critic(generator(torch.randn(4, 4))).mean()
    g_optimizer.zero_grad()
    generator_loss.backward()
    g_optimizer.step()
    gc.collect()
"""

RULE = Rule(
    code="GL501",
    name="cleanup-churn",
    severity="warning",
    since="0.1",
    needs=("cleanup", "backward"),
    check=check,
    bad=(Example(title="a cleanup function called three times a step", code=_CHURNING),),
    good=(
        Example(title="once a step and once an epoch", code=_ONCE),
        Example(title="once for each critic step", code=_CRITIC),
    ),
)
