"""A loss is given what it isn't made for: probabilities for logits, the reverse, or operands that broadcast.

## What it does

Reports losses whose input was made by an operation that the loss applies itself, or that it needs and doesn't
get: softmax or sigmoid before `cross_entropy` or `binary_cross_entropy_with_logits`, softmax or a bare layer
before `nll_loss`, `kl_div` or `ctc_loss`, a bare layer before `binary_cross_entropy`. And losses in which one
operand has a dimension of size 1 that the other lacks: `(16, 1)` against `(16,)` compares all 256 pairs.

## Why it matters

Nothing fails. Softmax twice leaves a loss that can't fall to zero and small gradients; `nll_loss` of
probabilities is no likelihood; a loss over all pairs is least where every prediction is the targets' mean.

## Example

    probabilities = torch.softmax(model(images), dim=1)
    loss = nn.functional.cross_entropy(probabilities, labels)

## Use instead

    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)

## Known limits

Judged by the operations between, as far as they leave the numbers as they are: views, selections, casts.
What was added to or multiplied is not judged. Dimensions that are inserted where they are used, as pairwise
losses do, are taken as meant. Log-softmax before `cross_entropy` changes nothing and is told as a hint.
"""

import math
from collections.abc import Iterator

from graphlint.analysis.broadcasts import Broadcast, Broadcasts
from graphlint.analysis.facts import Facts
from graphlint.analysis.mismatches import Mismatch, Mismatches
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each loss and what it was given."""
    for found in Mismatches(facts).all():
        loss = facts.graphs.frame(found.loss.site)
        made = facts.graphs.frame(found.made.by.site)
        if loss is not None and made is not None:
            yield _mismatch(facts, found, loss, made)
    for broadcast in Broadcasts(facts).all():
        frame = facts.graphs.frame(broadcast.op.site)
        if frame is not None:
            yield _broadcast(facts, broadcast, frame)


def _mismatch(facts: Facts, found: Mismatch, loss: Frame, made: Frame) -> Occurrence:
    given = facts.names.tensor(found.given, loss.function)
    return Occurrence(
        message=f"`{found.name}` {found.takes}, and {given} {_is(found)}: {_consequence(facts, found)}",
        labels=distinct(
            [
                label(made, f"`{found.by}` here"),
                label(loss, f"`{found.name}` {found.takes}"),
            ]
        ),
        fix=_fix(found, made),
        step=facts.steps.step_of(found.loss.serial),
        last_step=facts.steps.last_step(found.loss.serial),
        cause=(made.path, made.line, loss.path, loss.line, found.case),
        severity=found.severity,
    )


def _is(found: Mismatch) -> str:
    if found.made.scale == "raw":
        return f"comes from `{found.by}` as it is"
    return f"went through `{found.by}` already"


def _consequence(facts: Facts, found: Mismatch) -> str:
    match found.case:
        case "twice":
            return f"it is normalised a second time{_floor(facts, found)}, and its gradients are small."
        case "harmless":
            return "a second time changes nothing, it costs time only."
        case "range":
            return "torch raises as soon as a value lies outside of 0 to 1."
        case "probability":
            return (
                "this is no log-likelihood, and its gradients don't grow where a prediction is badly wrong."
            )
        case "raw":
            return (
                "nothing normalises it, so that the loss can fall without bound and learns no probabilities."
            )


def _floor(facts: Facts, found: Mismatch) -> str:
    """Says how far cross entropy of a softmax can fall: the right class at 1, the others at 0."""
    row = facts.trace.tensors.get(found.given)
    if found.name != "cross_entropy" or found.by != "softmax" or row is None or len(row.shape) < 1:
        return ""
    classes = row.shape[min(1, len(row.shape) - 1)]
    least = math.log(math.e + classes - 1) - 1
    return f": with {classes} classes the loss can't fall below {least:.2f}" if classes > 1 else ""


def _fix(found: Mismatch, made: Frame) -> str:
    line = f"line {made.line}"
    match found.case:
        case "twice":
            return (
                f"take `{found.by}` out at {line} and give `{found.name}` the values before it; apply it "
                "only where probabilities are wanted, outside of the loss."
            )
        case "harmless":
            return f"leave `{found.by}` out at {line}, or use `nll_loss` here."
        case "range":
            return "use `binary_cross_entropy_with_logits`, which takes these values as they are."
        case "probability":
            instead = ", or give logits to `cross_entropy`" if found.name == "nll_loss" else ""
            return f"use `log_softmax` instead of `{found.by}` at {line}{instead}."
        case "raw":
            instead = "" if found.name != "nll_loss" else ", or use `cross_entropy` instead"
            return f"apply `log_softmax` to what {line} returns{instead}."


def _broadcast(facts: Facts, found: Broadcast, frame: Frame) -> Occurrence:
    scope = frame.function
    long, other = _operand(facts, found.long, scope), _operand(facts, found.other, scope)
    a, b, result = found.shapes
    name = facts.names.tensor_name(found.long, scope)
    squeezed = f"`{name}.squeeze({found.dim})`" if name else f"`.squeeze({found.dim})` on the longer one"
    plain = facts.names.tensor_name(found.other, scope)
    instead = f", or `{plain}.unsqueeze({found.dim})`" if plain else ""
    made = facts.values.producer(found.long, found.op.serial)
    there = facts.graphs.common_frame(made.site, found.op.site) if made is not None else None
    return Occurrence(
        message=(
            f"{long[0].upper()}{long[1:]} has the shape {a} and {other} {b}: together they broadcast to "
            f"{result}, and the loss is taken over all pairs instead of each prediction and its own target."
        ),
        labels=distinct(
            [
                label(frame, f"broadcasts {a} and {b} to {result}"),
                *([label(there, f"shape {a} from here")] if there is not None else []),
                *_backward(facts, found),
            ]
        ),
        fix=f"give both one shape: {squeezed}{instead}.",
        step=facts.steps.step_of(found.op.serial),
        last_step=facts.steps.last_step(found.op.serial),
        cause=(frame.path, frame.line, "broadcast"),
    )


def _operand(facts: Facts, tensor: TensorId, scope: str) -> str:
    name = facts.names.tensor_name(tensor, scope)
    return f"`{name}`" if name is not None else "one operand"


def _backward(facts: Facts, found: Broadcast) -> Iterator[Label]:
    frame = facts.graphs.frame(found.backward.site)
    if frame is not None:
        yield label(frame, "trains on the pairs")


_BAD = Example(
    title="softmax before cross entropy",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(2):
    images, labels = torch.randn(16, 4), torch.randint(0, 3, (16,))
    probabilities = torch.softmax(model(images), dim=1)  # <- GL603
    loss = criterion(probabilities, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_PAIRS = Example(
    title="a column of predictions against a row of targets",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    inputs, targets = torch.randn(16, 4), torch.randn(16)
    predictions = model(inputs)
    loss = (predictions - targets).pow(2).mean()  # <- GL603
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_RANGE = Example(
    title="a bare layer before a loss that takes probabilities",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.BCELoss()
inputs, targets = torch.randn(16, 4), torch.ones(16, 1)
optimizer.zero_grad()
scores = model(inputs)  # <- GL603
loss = criterion(scores, targets)
loss.backward()
optimizer.step()
""",
    raises="between 0 and 1",
)

_GOOD = Example(
    title="distillation, whose targets are probabilities",
    code="""\
import torch
from torch import nn

F = nn.functional
torch.manual_seed(0)
teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(2):
    x = torch.randn(16, 4)
    wanted = F.softmax(teacher(x) / 2, dim=1)
    logits = student(x)
    loss = F.kl_div(F.log_softmax(logits / 2, dim=1), wanted, reduction="batchmean")
    loss = loss + F.cross_entropy(logits, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_PAIRS = Example(
    title="all pairs on purpose",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    scores = model(torch.randn(16, 4)).squeeze(1)
    ranks = torch.rand(16)
    apart = scores[:, None] - scores
    loss = nn.functional.softplus(-apart * (ranks[:, None] - ranks).sign()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_FOCAL = Example(
    title="a focal loss that takes the sigmoid itself",
    code="""\
import torch
from torch import nn

F = nn.functional
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16, 1)).float()
    logits = model(x)
    p = torch.sigmoid(logits)
    weight = (1 - torch.where(y > 0, p, 1 - p)) ** 2
    loss = (weight * F.binary_cross_entropy_with_logits(logits, y, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_SCALAR = Example(
    title="one target for all predictions",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = nn.functional.l1_loss(model(torch.randn(16, 4)) - torch.ones(1), torch.zeros(16, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL603",
    name="loss-input-mismatch",
    severity="warning",
    since="0.1.0",
    needs=("operations",),
    check=check,
    bad=(_BAD, _BAD_PAIRS, _BAD_RANGE),
    good=(_GOOD, _GOOD_PAIRS, _GOOD_FOCAL, _GOOD_SCALAR),
)
