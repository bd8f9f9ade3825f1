"""The same unchanged value is sent to the same device again.

## What it does

Finds a tensor that a training step moves to a device where an earlier move had already brought the very same
content: twice within a step, or once in every step although nothing changes it (masks, position tables,
statistics, constant targets).

## Why it matters

Each copy waits for the bus and takes memory on the device, for bytes that are there already.

## Example

    for images, labels in loader:
        weights = class_weights.to("cuda")
        loss = F.cross_entropy(model(images.to("cuda")), labels.to("cuda"), weight=weights)

## Use instead

    class_weights = class_weights.to("cuda")
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to("cuda")), labels.to("cuda"), weight=class_weights)

A module keeps such a tensor with `register_buffer`, so that `model.to(device)` takes it along.

## Known limits

Moves are recorded in the first steps only, and only where the user's own line makes them. Values that
Python can write unseen (arrays that share memory with NumPy) count as unchanged only where a checksum of
the moves says so. Parameters are left out, and so is a value that comes back every other step, such as a
list of batches gone through once an epoch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from graphlint.analysis.devices_made import Made, constants_in
from graphlint.analysis.devices_resent import Sent, every_step, sent_again, sent_every_step
from graphlint.analysis.devices_wording import bare, called, recurring, sentence, sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Op
from graphlint.record.identity import TensorId

_LABELS = 8

_Where = tuple[str, int]


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each repeated transfer, once for each step in which it was made."""
    pairs: dict[tuple[_Where, _Where], set[int]] = {}
    repeated: list[list[Sent]] = []
    for sent in sent_again(facts).values():
        if every_step(sent):
            continue
        for before, again in pairwise(sent):
            if again.step is not None and before.step == again.step:
                pairs.setdefault((_where(before), _where(again)), set()).add(again.step)
        repeated += [list(group) for _, group in groupby(sent, key=lambda item: item.step)]
    for function, groups in sent_every_step(facts).items():
        yield from _constant(facts, groups, list(constants_in(facts, function)))
    often = {pair for pair, steps in pairs.items() if recurring(steps, facts)}
    yield from _within_steps(facts, [_repeats(chain, often) for chain in repeated])


def _where(sent: Sent) -> _Where:
    return (sent.frame.path, sent.frame.line)


# --- in every step ------------------------------------------------------------------------------------------


def _constant(facts: Facts, groups: Sequence[Sequence[Sent]], made: Sequence[Made]) -> Iterator[Occurrence]:
    """Yields what the values that are first sent in one function cost, once for each step.

    `made` are constants that the function makes anew each time, only to send them as well.
    """
    values = [[item for item in sent if item.move is not None] for sent in groups]
    inside = [item for sent in values for item in sent]
    firsts = [sent[0] for sent in values if sent]
    if not firsts:
        return
    first, device = firsts[0], firsts[0].arrival.stop.device
    names = listed([called(facts, item.move) for item in firsts if item.move is not None])
    frames = {_where(item): item.frame for item in inside}
    one = len(firsts) == 1
    for step in sorted({item.step for item in inside if item.step is not None}):
        size = sized(sum(item.arrival.transfer.bytes for item in inside if item.step == step))
        yield Occurrence(
            message=sentence(
                f"{names} {'goes' if one else 'go'} from {first.arrival.transfer.from_device} to {device} in "
                f"every step, and nothing changes {'it' if one else 'them'} in between. That sends the same "
                f"{size} each step."
            ),
            labels=distinct(
                (
                    *(label(frame, f"sent to {device} here, every step") for frame in frames.values()),
                    *(label(one.move.frame, "a constant made and sent here, every step") for one in made),
                    *_born(facts, firsts),
                )
            ),
            fix=_remedies(facts, [sent for sent in values if sent]) + _made_there(facts, made),
            step=step,
            cause=("every step", *_where(first)),
        )


def _born(facts: Facts, firsts: Sequence[Sent]) -> Iterator[Label]:
    """Yields where the values were made."""
    for item in firsts:
        tensor = _origin(item)
        makers = [maker for maker in facts.values.makers(tensor) if isinstance(maker, Op)]
        frame = facts.graphs.frame(makers[-1].site) if makers else None
        if frame is not None:
            yield label(frame, "made here, on the host")


def _made_there(facts: Facts, made: Sequence[Made]) -> str:
    if not made:
        return ""
    names = listed([called(facts, one.move) for one in made])
    lines = listed([str(one.move.frame.line) for one in made])
    return f" Make {names} on the device itself (line {lines})."


def _remedies(facts: Facts, values: Sequence[Sequence[Sent]]) -> str:
    """Returns who should hold each value on the device; the buffers of one module are moved with it."""
    buffers: dict[str, list[Sequence[Sent]]] = {}
    others: list[str] = []
    for sent in values:
        if places := facts.names.places(_origin(sent[0])):
            module = facts.names.module(facts.names.root(places[0].module))
            buffers.setdefault(module, []).append(sent)
        else:
            others.append(_once(facts, sent[0], list(dict.fromkeys(_where(item) for item in sent))))
    moved = [_with_module(module, held) for module, held in buffers.items()]
    return " Then ".join([*moved, *others])


def _origin(first: Sent) -> TensorId:
    origin = first.arrival.stop.previous
    return origin.tensor if origin is not None else first.arrival.transfer.source.tensor


def _with_module(module: str, values: Sequence[Sequence[Sent]]) -> str:
    device = values[0][0].arrival.stop.device
    lines = list(dict.fromkeys(str(item.frame.line) for sent in values for item in sent))
    one = len(values) == 1
    moves = f"the move on line {lines[0]}" if len(lines) == 1 else f"the moves on lines {listed(lines)}"
    return (
        f"{'it is a buffer' if one else 'they are buffers'} of {module}: move the module to {device} once "
        f"before the loop, and drop {moves}."
    )


def _once(facts: Facts, first: Sent, lines: Sequence[_Where]) -> str:
    """Returns the remedy for a value that is no buffer."""
    device, transfer = first.arrival.stop.device, first.arrival.transfer
    tensor = _origin(first)
    drop = listed([str(line) for _, line in lines])
    name = bare(facts, tensor, first.frame)
    if transfer.module is not None and name is not None and name.startswith("self."):
        attribute = name.removeprefix("self.")
        return (
            f"register it in the module's __init__, `self.register_buffer({attribute!r}, ...)`: moving the "
            f"module to {device} then takes it along, and line {drop} needs no move."
        )
    spelled = f"`{name} = {name}.to({device!r})`" if name is not None else f"it to {device}"
    return f"move {spelled} once before the loop, and use that copy instead of the move on line {drop}."


# --- again within a step ------------------------------------------------------------------------------------


def _repeats(chain: list[Sent], often: set[tuple[_Where, _Where]]) -> list[Sent]:
    """Returns the moves of one value in one step that repeat the one before them, and the first of all."""
    again = [later for before, later in pairwise(chain) if (_where(before), _where(later)) in often]
    return [chain[0], *again] if again else []


def _within_steps(facts: Facts, chains: Sequence[list[Sent]]) -> Iterator[Occurrence]:
    """Yields the repetitions, those of several values on the same lines as one."""
    alike: dict[tuple[int | None, tuple[_Where, ...]], list[list[Sent]]] = {}
    for chain in chains:
        if chain and chain[1].move is not None:
            lines = tuple(dict.fromkeys(_where(item) for item in chain))
            alike.setdefault((chain[1].step, lines), []).append(chain)
    usual = Counter(lines for _, lines in alike)
    for (step, lines), values in sorted(alike.items(), key=lambda item: -usual[item[0][1]]):
        yield _again(facts, values, step, lines)


def _again(
    facts: Facts, values: Sequence[list[Sent]], step: int | None, lines: Sequence[_Where]
) -> Occurrence:
    first, again = values[0][0], values[0][1:]
    names = listed([called(facts, chain[1].move) for chain in values if chain[1].move is not None])
    device, near = first.arrival.stop.device, place(first.frame, near=again[0].frame)
    one, only_line = len(values) == 1, len(lines) == 1
    lost = sized(sum(item.arrival.transfer.bytes for chain in values for item in chain[1:]))
    labels = [
        Label(
            path=item.frame.path,
            line=item.frame.line,
            text=f"sent to {device} again here: "
            f"{sized(sum(moved.arrival.transfer.bytes for moved in _on_line(values, item)))}",
        )
        for item in again
    ]
    if _where(first) not in {_where(item) for item in again}:
        labels.append(
            Label(path=first.frame.path, line=first.frame.line, text=f"sent to {device} here before")
        )
    since = "in between" if only_line else f"since {near}"
    return Occurrence(
        message=sentence(
            f"{names} {'is' if one else 'are'} sent from {first.arrival.transfer.from_device} to {device} "
            f"{_times(len(values[0]))} in a step, unchanged {since}: {lost} are moved for nothing."
        ),
        labels=tuple(dict.fromkeys(labels)),
        fix=_keep(facts, values, near, only_line=only_line),
        step=step,
        # A further line that repeats it once an epoch makes no other fault of it.
        cause=("again", *(part for line in lines[:2] for part in line)),
    )


def _on_line(values: Sequence[list[Sent]], item: Sent) -> list[Sent]:
    """Returns the repeated moves on the line of one of them."""
    return [moved for chain in values for moved in chain[1:] if _where(moved) == _where(item)]


def _times(number: int) -> str:
    return "twice" if number == 2 else f"{number} times"  # noqa: PLR2004 - a word of its own


def _keep(facts: Facts, values: Sequence[list[Sent]], near: str, *, only_line: bool) -> str:
    one = len(values) == 1
    if only_line:
        copies = "it once, and use that copy" if one else "them once, and use those copies"
        return f"send {copies} wherever {near} needs {'it' if one else 'them'}."
    first = values[0][0]
    kept = [bare(facts, chain[0].arrival.stop.tensor, first.frame) for chain in values]
    named = [f"`{name}`" for name in kept if name is not None]
    copies = listed(named) if len(named) == len(kept) else "the copy" if one else "the copies"
    drop = dict.fromkeys(item.frame.line for item in values[0][1:])
    moves = "the move" if one and len(drop) == 1 else "the moves"
    at = f"{'line' if len(drop) == 1 else 'lines'} {listed([str(line) for line in drop], limit=_LABELS)}"
    return f"keep {copies} that {near} made, and use {'it' if one else 'them'} instead of {moves} at {at}."


_CONSTANT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class_weights = torch.tensor([0.2, 0.3, 0.5])

for step in range(3):
    x, y = torch.randn(4, 8, device="cuda"), torch.randint(0, 3, (4,), device="cuda")
    weights = class_weights.to("cuda")  # <- GL403
    loss = nn.functional.cross_entropy(model(x), y, weight=weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_TWICE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8).to("cuda")
critic = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)

for step in range(3):
    batch = {"text": torch.randn(4, 8)}
    text = batch["text"].to("cuda")
    features = model(text)
    again = batch["text"].to("cuda")  # <- GL403
    loss = critic(features - again).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_FORWARD = """\
import torch
from torch import nn

torch.manual_seed(0)


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = torch.arange(32.0).view(4, 8)

    def forward(self, x):
        return self.layer(x + self.table.to(x.device))  # <- GL403


model = Shifted().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 8, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_FRESH = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = torch.zeros(4, 8)
batches = [torch.randn(4, 8), torch.randn(4, 8)]

for epoch in range(2):
    for batch in batches:
        x = batch.to("cuda")
        loss = (model(x) - history.to("cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.mul_(0.9).add_(batch)
"""

_BUFFER = """\
import torch
from torch import nn

torch.manual_seed(0)


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(32.0).view(4, 8))

    def forward(self, x):
        return self.layer(x + self.table)


model = Shifted().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="GL403",
    name="repeated-transfer",
    severity="warning",
    since="0.1",
    needs=("operations", "optimizer"),
    check=check,
    bad=(
        Example(title="a constant sent in every step", code=_CONSTANT, simulate=("cuda",)),
        Example(title="one batch sent twice in a step", code=_TWICE, simulate=("cuda",)),
        Example(title="a table that the module keeps on the host", code=_FORWARD, simulate=("cuda",)),
    ),
    good=(
        Example(title="batches in turn, and a tensor that changes", code=_FRESH, simulate=("cuda",)),
        Example(title="a buffer that moved with its module", code=_BUFFER, simulate=("cuda",)),
    ),
)
