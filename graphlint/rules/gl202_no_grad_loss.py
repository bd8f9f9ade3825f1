"""A backward is called on a loss that has no graph.

## What it does

Reports a backward that torch refused because the tensor it was called on does not require gradients. It shows
where the way from the parameters to the loss was lost: the `no_grad` block, the `.detach()`, the derivative
taken without create_graph, the integers.

## Why it matters

Torch's message names only the last tensor; the cut often lies in another function. The usual "fix",
`loss.requires_grad = True`, silences the error and trains nothing (GL201).

## Example

    with torch.no_grad():
        loss = criterion(model(x), y)
    loss.backward()

## Use instead

    loss = criterion(model(x), y)
    loss.backward()

## Known limits

Where the values went through Python or another library, the cut is not seen.
"""

from collections.abc import Iterator, Sequence

from graphlint.analysis.cut_words import CutWords
from graphlint.analysis.cuts import Connection
from graphlint.analysis.facts import Facts
from graphlint.analysis.failures import met_no_graph
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

_MOST_CUTS = 3


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each backward that torch refused because its root had no graph."""
    for backward in facts.graphs.backwards:
        frame = facts.graphs.frame(backward.site)
        if not met_no_graph(backward) or frame is None:
            continue
        connection = facts.reach.connection(backward, _parameters(facts))
        words = CutWords(facts, backward.site)
        unseen = connection is not None and not connection.used
        reads = words.reads(backward, _parameters(facts))[-_MOST_CUTS:] if unseen else ()
        yield Occurrence(
            message=_message(facts, backward, connection, reads),
            labels=distinct(_labels(words, frame, connection, reads)),
            fix=_fix(facts, words, backward, connection, reads),
            step=facts.steps.step_of(backward.serial),
            last_step=facts.steps.last_step(backward.serial),
        )


def _parameters(facts: Facts) -> tuple[TensorId, ...]:
    """Returns the parameters of all modules and optimizers."""
    held = dict.fromkeys(place.tensor for place in facts.trace.parameters if not place.buffer)
    for optimizer in facts.trace.optimizers:
        held.update(dict.fromkeys(facts.gradients.parameters(optimizer)))
    return tuple(held)


def _message(facts: Facts, backward: Backward, connection: Connection | None, reads: Sequence[Frame]) -> str:
    call = facts.wording.backward(backward)
    loss = facts.wording.loss(backward)
    told = f"{call} is called on a loss without a graph, and torch raises"
    if connection is None:
        return f"{told}."
    if connection.used and connection.used == connection.frozen:
        owners = facts.wording.owners(sorted(connection.used))
        return f"{told}: {loss} is computed from {owners}, none of whose parameters requires gradients."
    if connection.cuts:
        cut = sorted(connection.used - connection.frozen)
        number = counted(len(cut), "parameter")
        owners = facts.wording.owners(cut)
        return f"{told}: values flow to {loss} from {number} of {owners}, but the gradient's way back is cut."
    if reads:
        return (
            f"{told}: no operation of torch leads from a parameter to {loss}, and values computed from "
            f"parameters were read out of torch before."
        )
    if not connection.used:
        return f"{told}: no operation that was recorded leads from a parameter to {loss}."
    return f"{told}."


def _labels(
    words: CutWords, frame: Frame, connection: Connection | None, reads: Sequence[Frame]
) -> Iterator[Label]:
    yield label(frame, "called here on a loss that requires no gradient: torch raises")
    for cut in words.distinct(connection.cuts if connection is not None else (), _MOST_CUTS):
        for found in words.places(cut):
            yield label(found.frame, found.text)
    for read in reads:
        yield label(read, "read out of torch here: what comes back has no graph")


def _fix(
    facts: Facts,
    words: CutWords,
    backward: Backward,
    connection: Connection | None,
    reads: Sequence[Frame],
) -> str:
    loss = facts.wording.loss(backward)
    if reads:
        at = place(reads[-1], near=facts.graphs.frame(backward.site))
        return f"keep the values in tensors between {at} and {loss}: compute it by operations of torch."
    if connection is not None and connection.cuts:
        remedies = [words.remedy(cut, loss) for cut in words.distinct(connection.cuts, _MOST_CUTS)]
        return f"{listed(remedies)}. Setting requires_grad on {loss} would silence torch and train nothing."
    if connection is not None and connection.used and connection.used == connection.frozen:
        owners = facts.wording.owners(sorted(connection.used))
        return f"unfreeze what is to be trained in {owners} (`requires_grad_(True)`)."
    return f"compute {loss} from the model's output by operations of torch, with gradients switched on."


_BAD = Example(
    title="the forward runs under no_grad",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    with torch.no_grad():
        prediction = model(torch.randn(16, 4))
    loss = prediction.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- GL202
    optimizer.step()
""",
    raises="does not require grad and does not have a grad_fn",
)

_BAD_DERIVATIVE = Example(
    title="a derivative taken without create_graph",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    time = torch.rand(16, 1, requires_grad=True)
    speed = torch.autograd.grad(model(time).sum(), time)[0]
    loss = (speed - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- GL202
    optimizer.step()
""",
    raises="does not require grad and does not have a grad_fn",
)

_GOOD = Example(
    title="only the frozen part runs under no_grad",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(2):
    with torch.no_grad():
        features = backbone(torch.randn(16, 4))
    loss = head(features).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL202",
    name="no-grad-loss",
    severity="error",
    since="0.1.0",
    needs=("backward",),
    check=check,
    bad=(_BAD, _BAD_DERIVATIVE),
    good=(_GOOD,),
)
