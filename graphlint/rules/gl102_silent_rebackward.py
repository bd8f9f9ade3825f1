"""A backward goes through a graph again without an error, and its gradient is wrong for it.

## What it does

Reports two repetitions that torch does not notice. A loss that was backwarded by itself and again as part of
a sum: its gradient is counted twice. And a copy of a parameter, made by operations that save nothing (`cat`,
`.to`, `+`), that is differentiated again after an optimizer changed the parameter: the loss is computed from
the old values while the gradient goes to the new ones.

## Why it matters

Nodes that saved nothing can be entered any number of times, and so can a graph kept by `retain_graph=True`.
There is no error and the loss even falls, only not the loss that was meant.

## Example

    local_loss.backward(retain_graph=True)
    total_loss = adversarial_loss + local_loss
    total_loss.backward()

## Use instead

    total_loss = adversarial_loss + local_loss
    total_loss.backward()

## Known limits

Two losses that share a graph add one contribution each, which is right and not reported. A gradient that was
cleared in between is not counted twice. A scale given by `backward(gradient=...)` is not known.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.failures import met_changed_tensor, met_freed_graph
from graphlint.analysis.recounts import Recount, Recounts, Stale
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import label
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import Serial, SiteId
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each loss counted twice and each outdated copy gone through again."""
    recounts = Recounts(facts)
    for found in recounts.counted_twice():
        frame = facts.graphs.frame(found.backward.site)
        if frame is not None:
            yield _counted_twice(facts, found, frame)
    told: set[tuple[Serial, SiteId | None]] = set()
    for stale in recounts.stale():
        frame = facts.graphs.frame(stale.backward.site)
        again = (stale.backward.serial, stale.made.site)
        if stale.made.site in facts.growth.carried_sites:
            continue  # GL104 tells that it goes on from its own earlier value.
        if frame is not None and again not in told and not _raises_later(facts, stale):
            told.add(again)
            yield _stale(facts, stale, frame)


def _raises_later(facts: Facts, found: Stale) -> bool:
    """Tells whether a later backward was refused by torch over a graph that the same line built."""
    made = facts.graphs.frame(found.made.site)
    for later in facts.graphs.backwards:
        if later.serial <= found.backward.serial or not (met_freed_graph(later) or met_changed_tensor(later)):
            continue
        graph = facts.graphs.of(later)
        if graph is not None and any(
            facts.graphs.frame(graph.nodes[index].site) == made for index in graph.visits
        ):
            return True
    return False


def _counted_twice(facts: Facts, found: Recount, frame: Frame) -> Occurrence:
    first = facts.wording.backward(found.earlier)
    loss = facts.wording.loss(found.earlier)
    earlier = facts.graphs.frame(found.earlier.site)
    labels = [label(frame, f"counted again here, in {facts.wording.parameters(found.parameters)}")]
    if earlier is not None:
        labels.append(label(earlier, "counted here first"))
    joined = facts.graphs.frame(found.joined.site) if found.joined is not None else None
    if joined is not None:
        labels.append(label(joined, f"{loss} becomes part of the second loss here"))
    at = f" ({place(earlier, near=frame)})" if earlier is not None else ""
    return Occurrence(
        message=(
            f"{facts.wording.backward(found.backward)} adds the gradient of {loss} a second time: "
            f"{first}{at} has added it already, and nothing cleared it in between."
        ),
        labels=tuple(labels),
        fix=_once(facts, found, frame),
        step=facts.steps.step_of(found.backward.serial),
        last_step=facts.steps.last_step(found.backward.serial),
    )


def _once(facts: Facts, found: Recount, frame: Frame) -> str:
    """Returns the remedy for a loss that is counted twice."""
    joined = facts.graphs.frame(found.joined.site) if found.joined is not None else None
    earlier = facts.graphs.frame(found.earlier.site)
    if joined is None:
        return "call backward once on this loss."
    if earlier is not None and (earlier.path, earlier.line) == (frame.path, frame.line):
        return (
            f"call backward on what {place(joined, near=frame)} adds alone, or once on the sum when it is "
            "complete."
        )
    first, loss = facts.wording.backward(found.earlier), facts.wording.loss(found.earlier)
    at = f" ({place(earlier, near=frame)})" if earlier is not None else ""
    return f"drop {first}{at}: {loss} is part of the loss of line {frame.line}."


def _stale(facts: Facts, found: Stale, frame: Frame) -> Occurrence:
    made = facts.graphs.frame(found.made.site)
    used = facts.graphs.frame(found.user.site) if found.user is not None else None
    parameter = facts.names.parameter(found.parameter)
    copy = _copy_name(facts, found, made, used)
    return Occurrence(
        message=(
            f"{facts.wording.backward(found.backward)} goes again through {copy}, which was computed from "
            f"{parameter} once: {facts.wording.step(found.step)}"
            f"{facts.wording.at(found.step.site, near=frame)} has changed {parameter} since, and the loss "
            f"still sees the old values."
        ),
        labels=tuple(_stale_labels(facts, found, frame, made, used)),
        fix=f"compute {copy} again in each forward pass instead of keeping it.",
        step=facts.steps.step_of(found.backward.serial),
        last_step=facts.steps.last_step(found.backward.serial),
    )


def _copy_name(facts: Facts, found: Stale, made: Frame | None, used: Frame | None) -> str:
    for frame in (used, made):
        name = facts.names.tensor_name(found.copy, frame.function if frame is not None else None)
        if name is not None:
            return f"`{name}`"
    statement = facts.sources.statement(made.path, made.line) if made is not None else None
    if statement is not None and len(statement.targets) == 1:
        return f"`{statement.targets[0]}`"
    return "a copy"


def _stale_labels(
    facts: Facts, found: Stale, frame: Frame, made: Frame | None, used: Frame | None
) -> Iterator[Label]:
    yield label(frame, "gone through again here: no error, but the values are outdated")
    if made is not None:
        yield label(made, f"computed here, once, from {facts.names.parameter(found.parameter)}")
    if used is not None:
        yield label(used, "used here")
    changed = facts.graphs.frame(found.step.site)
    if changed is not None:
        yield label(changed, f"changed here: {facts.names.parameter(found.parameter)}")


_BAD = Example(
    title="a part of the loss backwarded alone and again in the sum",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    prediction = model(torch.randn(16, 4))
    size = prediction.pow(2).mean()
    size.backward(retain_graph=True)
    total = size + prediction.abs().mean()
    total.backward()  # <- GL102
    optimizer.step()
    optimizer.zero_grad()
""",
)

_BAD_STALE = Example(
    title="rows concatenated once, before training",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
fixed, learned = torch.randn(3, 4), nn.Parameter(torch.randn(2, 4))
rows = torch.cat([fixed, learned])
optimizer = torch.optim.SGD([learned], lr=0.1)
for step in range(3):
    loss = (torch.randn(16, 4) @ rows.t()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- GL102
    optimizer.step()
""",
)

_GOOD = Example(
    title="two losses share a retained graph, one contribution each",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    prediction = model(torch.randn(16, 4))
    prediction.pow(2).mean().backward(retain_graph=True)
    prediction.abs().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
)

_GOOD_VIEW = Example(
    title="a view of a parameter used by two losses",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(4, 4))
upper = weight[:2]
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    (torch.randn(16, 4) @ upper.t()).pow(2).mean().backward()
    (torch.randn(16, 4) @ upper.t()).abs().mean().backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL102",
    name="silent-rebackward",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "zero-grad"),
    check=check,
    bad=(_BAD, _BAD_STALE),
    good=(_GOOD, _GOOD_VIEW),
)
