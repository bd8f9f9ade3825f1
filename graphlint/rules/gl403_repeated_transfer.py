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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphlint.analysis.devices_journeys import Arrival, Stop
from graphlint.analysis.devices_roundtrips import real_moves
from graphlint.analysis.devices_wording import Move, bare, called, move, recurring, sentence, sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.tables import Frame

_Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A move that brought a value to a device; `step` is None before, between and after steps."""

    arrival: Arrival
    frame: Frame
    step: int | None
    move: Move | None


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each repeated transfer, once for each step in which it was made."""
    constant: dict[_Where, list[list[_Sent]]] = {}
    twice: dict[tuple[_Where, _Where], list[tuple[_Sent, _Sent]]] = {}
    for sent in _by_value(facts).values():
        steps = {item.step for item in sent if item.step is not None}
        if _every_step(steps):
            first = next(item for item in sent if item.step is not None)
            constant.setdefault(_where(first), []).append(sent)
            continue
        for before, again in pairwise(sent):
            if again.step is not None and before.step == again.step:
                twice.setdefault((_where(before), _where(again)), []).append((before, again))
    for groups in constant.values():
        yield from _constant(facts, groups[0])
    for pairs in twice.values():
        if recurring({again.step for _, again in pairs if again.step is not None}, facts):
            for before, again in pairs:
                yield from _twice(facts, before, again)


def _every_step(steps: set[int]) -> bool:
    """Tells whether a value was sent in steps that follow one another."""
    return any(step + 1 in steps for step in steps)


def _where(sent: _Sent) -> _Where:
    return (sent.frame.path, sent.frame.line)


def _by_value(facts: Facts) -> dict[tuple[Stop, str], list[_Sent]]:
    """Returns the moves that sent one unchanged value to one device, where there are several."""
    found: dict[tuple[Stop, str], list[_Sent]] = {}
    for transfer in real_moves(facts):
        arrival = facts.devices.journeys.arrival(transfer.serial)
        frame = facts.devices.line(transfer)
        if arrival is None or frame is None or transfer.source.tensor in facts.devices.parameters:
            continue
        *_, origin = arrival.stop.route()
        key = (origin, arrival.stop.device)
        before = found.get(key)
        if before and not (arrival.earlier is not None and not arrival.returned):
            # The copy that was sent before has been written to since: it had to be sent again.
            found[key] = before = []
        if arrival.returned or (before and not _unchanged(facts, before[-1].arrival, arrival)):
            continue
        moved = move(facts, transfer)
        step = moved.step if moved is not None else None
        found.setdefault(key, []).append(_Sent(arrival, frame, step, moved))
    return {key: sent for key, sent in found.items() if len(sent) > 1}


def _unchanged(facts: Facts, first: Arrival, second: Arrival) -> bool:
    """Tells whether two moves of a value carried the same content, as far as memory is shared with Python."""
    before, after = first.transfer.digest, second.transfer.digest
    if before is not None and after is not None:
        return before == after
    return not facts.devices.journeys.exposed(second.transfer.source.tensor)


# --- in every step ------------------------------------------------------------------------------------------


def _constant(facts: Facts, sent: Sequence[_Sent]) -> Iterator[Occurrence]:
    inside = [item for item in sent if item.move is not None]
    first = inside[0]
    if first.move is None:
        return
    name, device = called(facts, first.move), first.arrival.stop.device
    lines = list(dict.fromkeys((item.frame.path, item.frame.line) for item in inside))
    frames = {(item.frame.path, item.frame.line): item.frame for item in inside}
    for step in sorted({item.step for item in inside if item.step is not None}):
        here = [item for item in inside if item.step == step]
        size = sized(sum(item.arrival.transfer.bytes for item in here))
        yield Occurrence(
            message=sentence(
                f"{name} goes from {first.arrival.transfer.from_device} to {device} in every step, and "
                f"nothing changes it in between. That sends the same {size} each step."
            ),
            labels=tuple(
                Label(
                    path=frames[line].path, line=frames[line].line, text=f"sent to {device} here, every step"
                )
                for line in lines
            ),
            fix=_once(facts, first, lines),
            step=step,
            cause=("every step", *lines[0]),
        )


def _once(facts: Facts, first: _Sent, lines: Sequence[_Where]) -> str:
    """Returns the remedy: who should hold the value on the device."""
    device, transfer = first.arrival.stop.device, first.arrival.transfer
    origin = first.arrival.stop.previous
    tensor = origin.tensor if origin is not None else transfer.source.tensor
    drop = listed([str(line) for _, line in lines])
    places = facts.names.places(tensor)
    if places:
        root = facts.names.root(places[0].module)
        return (
            f"It is a buffer of {facts.names.module(root)}: move the module to {device} once before the "
            f"loop, and drop the move on line {drop}."
        )
    name = bare(facts, tensor, first.frame)
    if transfer.module is not None and name is not None and name.startswith("self."):
        attribute = name.removeprefix("self.")
        return (
            f"Register it in the module's __init__, `self.register_buffer({attribute!r}, ...)`: moving the "
            f"module to {device} then takes it along, and line {drop} needs no move."
        )
    spelled = f"`{name} = {name}.to({device!r})`" if name is not None else f"it to {device}"
    return f"Move {spelled} once before the loop, and use that copy instead of the move on line {drop}."


# --- twice in a step ----------------------------------------------------------------------------------------


def _twice(facts: Facts, before: _Sent, again: _Sent) -> Iterator[Occurrence]:
    if again.move is None:
        return
    name, device = called(facts, again.move), again.arrival.stop.device
    size = sized(again.arrival.transfer.bytes)
    kept = bare(facts, before.arrival.stop.tensor, before.frame)
    near = place(before.frame, near=again.frame)
    same_line = _where(before) == _where(again)
    copy = f"`{kept}`" if kept is not None else "the copy"
    labels = [
        Label(path=again.frame.path, line=again.frame.line, text=f"sent to {device} again here: {size}")
    ]
    if not same_line:
        labels.append(
            Label(path=before.frame.path, line=before.frame.line, text=f"sent to {device} here before")
        )
    yield Occurrence(
        message=sentence(
            f"{name} is sent from {again.arrival.transfer.from_device} to {device} again within a step, "
            f"and has not changed since {'the time before' if same_line else near}. Each time moves {size} "
            f"for nothing."
        ),
        labels=tuple(labels),
        fix=(
            f"Send it once, before the code that repeats {near}."
            if same_line
            else f"Keep {copy} that {near} made, and use it instead of the move at {place(again.frame)}."
        ),
        step=again.step,
        cause=("again", *_where(before), *_where(again)),
    )


_CONSTANT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class_weights = torch.tensor([0.2, 0.3, 0.5])

for step in range(3):
    x, y = torch.randn(4, 8).to("cuda"), torch.randint(0, 3, (4,)).to("cuda")
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
