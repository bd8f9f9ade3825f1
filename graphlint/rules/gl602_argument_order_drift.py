"""A module called with its arguments swapped at one place.

## What it does

Reports two calls of one module that give it the same two things in opposite order, where its forward does
other things with the one than with the other: one call is trained and the other only evaluates, or both are
terms of one loss and a constant stands where the other has what is trained. Also reports losses of torch
whose gradient flows into the target, while the prediction is data.

## Why it matters

Both orders run when the shapes fit. The model is then trained on a mask as if it were segment numbers, or a
loss takes the logarithm of the labels, and nothing crashes: the numbers are only worse than they could be.

## Example

    pooled = encoder(batch["ids"], batch["segments"], batch["mask"])  # training
    pooled = encoder(batch["ids"], batch["mask"], batch["segments"])  # prediction

## Use instead

    pooled = encoder(batch["ids"], attention_mask=batch["mask"], segment_ids=batch["segments"])

## Known limits

Things are told to be the same by where they come from: the same tensor, the same element of a batch, the same
result of a module, the same line that made them, noise by how it was drawn. A module that is called in one
order only, be it the wrong one, can't be told. Both orders used in training, or both in evaluation, are taken
as meant, and so are two things that a forward treats alike (pairs, siamese networks).
"""

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher

from graphlint.analysis.argumentorder import ArgumentOrder, Exchange, distinct_exchanges
from graphlint.analysis.facts import Facts
from graphlint.analysis.lossorder import LossOrder, SwappedLoss
from graphlint.analysis.wording import place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ModuleCall
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each pair of arguments that change places, and for each swapped loss."""
    for exchange in distinct_exchanges(ArgumentOrder(facts).exchanges()):
        calls = sorted((exchange.one, exchange.other), key=lambda call: _likeness(facts, call, exchange))
        frames = [facts.graphs.frame(call.site) for call in calls]
        if frames[0] is not None and frames[1] is not None:
            yield _exchanged(facts, exchange, calls[0], frames[0], frames[1])
    for swapped in LossOrder(facts).swapped():
        frame = facts.graphs.frame(swapped.loss.site)
        if frame is not None:
            yield _swapped(facts, swapped, frame)


def _exchanged(facts: Facts, exchange: Exchange, call: ModuleCall, here: Frame, there: Frame) -> Occurrence:
    module = facts.names.module(exchange.one.module, here.function)
    first, second = f"`{exchange.first}`", f"`{exchange.second}`"
    given = f"{module} is given its {first} and {second}"
    if exchange.apart:
        trained, other = (facts.wording.at(one.site, near=here) for one in (exchange.one, exchange.other))
        told = (
            f"{given} in one order where it is trained{trained}, and in the opposite one where it is "
            f"evaluated{other}. What is evaluated is not what was trained."
        )
    else:
        told = (
            f"{given} in opposite orders for two terms of one loss: what is trained stands at {place(here)} "
            f"where {place(there, near=here)} has a constant. The two terms are not the same loss."
        )
    return Occurrence(
        message=told,
        labels=distinct(_labels(facts, exchange, call, here, there)),
        fix=f"pass {first} and {second} in the order that the forward declares at both lines, or by keyword.",
        step=facts.steps.step_of(exchange.one.serial),
        cause=(
            here.path,
            min(here.line, there.line),
            max(here.line, there.line),
            exchange.first,
            exchange.second,
        ),
    )


def _labels(facts: Facts, exchange: Exchange, call: ModuleCall, here: Frame, there: Frame) -> Iterator[Label]:
    other = exchange.other if call is exchange.one else exchange.one
    yield label(here, _passed(facts, call, exchange))
    yield label(there, _passed(facts, other, exchange))


def _passed(facts: Facts, call: ModuleCall, exchange: Exchange) -> str:
    spelled = _spelled(facts, call)
    use = "trains" if call is exchange.one or not exchange.apart else "evaluates"
    first, second = spelled.get(exchange.first), spelled.get(exchange.second)
    if first is None or second is None:
        return f"{use} with `{exchange.first}` and `{exchange.second}` in this order"
    return f"{use} with `{first}` as `{exchange.first}` and `{second}` as `{exchange.second}`"


def _spelled(facts: Facts, call: ModuleCall) -> dict[str, str]:
    """Returns the arguments of a call as its line spells them; empty where they can't be told apart."""
    frame = facts.graphs.frame(call.site)
    statement = facts.sources.statement(frame.path, frame.line) if frame is not None else None
    names = list(dict.fromkeys(call.arguments))
    for text in statement.calls if statement is not None else ():
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or any(isinstance(given, ast.Starred) for given in node.args):
            continue
        given = [ast.unparse(one) for one in (*node.args, *(keyword.value for keyword in node.keywords))]
        if len(given) == len(names):
            return dict(zip(names, given, strict=True))
    return {}


def _likeness(facts: Facts, call: ModuleCall, exchange: Exchange) -> float:
    """Returns how like the arguments are to the parameters they are given for: which call to show first."""
    spelled = _spelled(facts, call)
    names = (exchange.first, exchange.second)
    return sum(SequenceMatcher(None, name, spelled.get(name, "")).ratio() for name in names)


def _swapped(facts: Facts, swapped: SwappedLoss, frame: Frame) -> Occurrence:
    name = swapped.loss.name.rpartition(".")[2]
    given, target = _loss_words(facts, swapped, frame)
    trained = facts.graphs.frame(swapped.backward.site)
    labels = [label(frame, f"{given} as the prediction, {target} as the target")]
    if trained is not None:
        labels.append(label(trained, "the gradient flows into the target"))
    return Occurrence(
        message=(
            f"`{name}` is given {given} as its prediction and {target} as its target: the gradient flows "
            "into the target, and the prediction is data. What is minimised is not the loss of that name."
        ),
        labels=distinct(labels),
        fix=f"pass the prediction first: {target}, then {given}.",
        step=facts.steps.step_of(swapped.backward.serial),
        last_step=facts.steps.last_step(swapped.backward.serial),
        cause=(frame.path, frame.line, "loss"),
    )


def _loss_words(facts: Facts, swapped: SwappedLoss, frame: Frame) -> tuple[str, str]:
    """Returns words for what was passed first and second: by name, or as the line spells them."""
    names = [facts.names.tensor_name(tensor, frame.function) for tensor in (swapped.given, swapped.target)]
    statement = facts.sources.statement(frame.path, frame.line)
    calls = statement.calls if statement is not None else ()
    nodes = (node for text in calls for node in ast.walk(ast.parse(text, mode="eval")))
    pairs = [node.args[:2] for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    spelled = list(dict.fromkeys((ast.unparse(first), ast.unparse(second)) for first, second in pairs))
    if len(spelled) == 1:
        names = [name or text for name, text in zip(names, spelled[0], strict=True)]
    given, target = (f"`{name}`" if name is not None else None for name in names)
    return (
        given or facts.names.tensor(swapped.given, frame.function),
        target or facts.names.tensor(swapped.target, frame.function),
    )


_BAD = Example(
    title="mask and segments swapped in training, not in prediction",
    code="""\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.segment = nn.Embedding(20, 8), nn.Embedding(2, 8)

    def forward(self, ids, attention_mask, segment_ids):
        hidden = self.token(ids) + self.segment(segment_ids)
        weight = attention_mask.unsqueeze(-1).float() + 0.01
        return (hidden * weight).sum(1) / weight.sum(1)


def batch():
    ids = torch.randint(20, (8, 6))
    mask = torch.ones(8, 6, dtype=torch.long)
    segments = torch.zeros(8, 6, dtype=torch.long)
    segments[:, 3:] = 1
    mask[:, 5:] = 0
    return ids, mask, segments, torch.randint(2, (8,))


torch.manual_seed(0)
encoder, head = Encoder(), nn.Linear(8, 2)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
for step in range(4):
    ids, mask, segments, label = batch()
    loss = nn.functional.cross_entropy(head(encoder(ids, segments, mask)), label)  # <- GL602
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        ids, mask, segments, label = batch()
        print((head(encoder(ids, mask, segments)).argmax(1) == label).float().mean().item())
""",
)

_BAD_TERM = Example(
    title="one of two terms of a loss with the labels where the scores belong",
    code="""\
import torch
from torch import nn


class SoftCrossEntropy(nn.Module):
    def forward(self, labels, scores):
        return -(labels * scores.log_softmax(-1)).sum(-1).mean()


torch.manual_seed(0)
left, right, criterion = nn.Linear(4, 3), nn.Linear(4, 3), SoftCrossEntropy()
optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    labels = torch.rand(8, 3).softmax(-1)
    loss_left = criterion(labels, left(x))
    loss_right = criterion(right(x), labels)  # <- GL602
    optimizer.zero_grad()
    (loss_left + loss_right).backward()
    optimizer.step()
""",
)

_BAD_LOSS = Example(
    title="the picture as the prediction, and its reconstruction as the target",
    code="""\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.rand(8, 6)
    loss = F.binary_cross_entropy(x, model(x))  # <- GL602
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD = Example(
    title="the same order everywhere, once by keyword",
    code=_BAD.code.replace(
        "encoder(ids, segments, mask)", "encoder(ids, segment_ids=segments, attention_mask=mask)"
    ).replace("  # <- GL602", ""),
)

_GOOD_PAIRS = Example(
    title="a siamese network trained on pairs in both orders, and tested in one",
    code="""\
import torch
from torch import nn


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.guess = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, one, two):
        return nn.functional.cosine_similarity(self.guess(self.encoder(one)), self.encoder(two))


torch.manual_seed(0)
matcher = Matcher()
optimizer = torch.optim.SGD(matcher.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    a, b = x + 0.1 * torch.randn(8, 4), x + 0.1 * torch.randn(8, 4)
    loss = -(matcher(a, b) + matcher(b, a)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        print(matcher(b, a).mean().item())
""",
)

_GOOD_SYMMETRIC = Example(
    title="a divergence taken both ways",
    code="""\
import torch
from torch import nn


class Divergence(nn.Module):
    def forward(self, wanted, scores):
        return (wanted.softmax(-1) * (wanted.log_softmax(-1) - scores.log_softmax(-1))).sum(-1).mean()


torch.manual_seed(0)
model, divergence = nn.Linear(4, 3), Divergence()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, wanted = torch.randn(8, 4), torch.randn(8, 3)
    scores = model(x)
    there = divergence(wanted, scores)
    back = divergence(scores, wanted)
    optimizer.zero_grad()
    (there + back).backward()
    optimizer.step()
""",
)

_GOOD_TEACHER = Example(
    title="a student's probabilities as the target of a teacher's log-probabilities",
    code="""\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    with torch.no_grad():
        wanted = F.log_softmax(teacher(x), -1)
    loss = F.kl_div(wanted, F.softmax(student(x), -1), reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL602",
    name="argument-order-drift",
    severity="error",
    since="0.1.0",
    needs=("backward", "modules", "operations"),
    check=check,
    bad=(_BAD, _BAD_TERM, _BAD_LOSS),
    good=(_GOOD, _GOOD_PAIRS, _GOOD_SYMMETRIC, _GOOD_TEACHER),
)
