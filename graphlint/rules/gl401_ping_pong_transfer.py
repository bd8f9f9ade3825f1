"""A value travels to another device and back, though nothing there needed it to.

## What it does

Follows each value from device to device in the recorded steps, and reports three journeys that a training
step makes for nothing:

- a value comes back to a device where it still lies unchanged;
- a value leaves an accelerator for the host, is rearranged or computed on there without any module, and comes
  back in the same size, though the operations could have run where it was;
- predictions move to another device that only reduces them to a loss, so that their gradient has to travel
  back.

## Why it matters

A copy between the host and a GPU waits for the GPU to finish its work and runs at the speed of the bus. In
the loop it is paid at every step, and a second time in the backward where the value carries a gradient.

## Example

    text = batch["text"].to("cuda")
    fake = generator(text)
    text = text.to("cpu")  # the CPU still has batch["text"]
    scores = discriminator(fake.to("cpu"), text)

## Use instead

    text = batch["text"]
    fake = generator(text.to("cuda"))
    scores = discriminator(fake.to("cpu"), text)

## Known limits

Moves are recorded in the first steps only, and only where the user's own line makes them. A value that
comes back and reaches no backward (for metrics, pictures, logging) is not reported, nor is one that leaves
an accelerator and comes back after the copy there was dropped, which saves memory. A detour through NumPy
is seen where the elements that came back are those that left, in whatever order. Linear algebra, CTC and
random numbers on the host are taken for intended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from graphlint.analysis.devices_roundtrips import (
    HOST,
    Detour,
    Hop,
    Return,
    find_detour,
    find_hop,
    find_return,
    real_moves,
)
from graphlint.analysis.devices_wording import Move, bare, called, move, names, recurring, sentence, sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import Serial
from graphlint.record.tables import Frame

_Journey = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A journey in one step; `journey` names its kind and lines."""

    journey: _Journey
    occurrence: Occurrence
    step: int


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each journey for nothing, once for each step in which it was made."""
    seen: dict[_Journey, list[_Sighting]] = {}
    for sighting in _sightings(facts):
        seen.setdefault(sighting.journey, []).append(sighting)
    for sightings in seen.values():
        if recurring({sighting.step for sighting in sightings}, facts):
            yield from (sighting.occurrence for sighting in sightings)


def _sightings(facts: Facts) -> Iterator[_Sighting]:
    returned: set[Serial] = set()
    for transfer in real_moves(facts):
        moved = move(facts, transfer)
        if moved is None:
            continue
        if (back := find_return(facts, transfer)) is not None:
            returned.add(transfer.serial)
            yield _returned(facts, back, moved)
        elif (detour := find_detour(facts, transfer)) is not None:
            left = move(facts, detour.out)
            if left is not None and left.step == moved.step and detour.out.serial not in returned:
                yield _detoured(facts, detour, left, moved)
        elif (hop := find_hop(facts, transfer)) is not None:
            yield _hopped(facts, hop, moved)


def _returned(facts: Facts, found: Return, back: Move) -> _Sighting:
    left = facts.devices.line(found.out)
    home, away = found.home.device, found.out.to_device
    name, size = called(facts, back), sized(found.back.bytes)
    labels = [_label(back.frame, f"back on {home} here, as it left: {size} moved")]
    if left is not None:
        labels.append(_label(left, f"left {home} for {away} here; {home} keeps its copy"))
    return _sighting(
        ("return", left.line if left is not None else 0),
        back,
        f"{name} goes from {home} to {away} and back, and nothing changes it on the way: {home} still has "
        f"it. The way back moves {size} for nothing in every step.",
        labels,
        _keep(facts, found, back, left),
    )


def _keep(facts: Facts, found: Return, back: Move, left: Frame | None) -> str:
    """Returns the remedy: which copy to use, by the name it has or the one to give it."""
    home = found.home.device
    away = bare(facts, found.back.source.tensor, back.frame) or bare(facts, found.out.result, back.frame)
    result = bare(facts, found.back.result, back.frame)
    result = result if result is None or result.isidentifier() else None
    taken = {away, result}
    kept = next((name for name in names(facts, found.home.tensor, back.frame) if name not in taken), None)
    if kept is not None:
        return f"use `{kept}`, which is still on {home}, and drop the move at {place(back.frame)}."
    loop = facts.graphs.common_frame(found.back.site, found.out.site)
    if loop is not None and loop.line != back.frame.line:
        gone = {*names(facts, found.out.result, loop), *names(facts, found.back.result, loop)}
        moving = facts.sources.statement(left.path, left.line) if left is not None else None
        gone.update(moving.targets if moving is not None else ())
        held = next((name for name in names(facts, found.home.tensor, loop) if name not in gone), None)
        if held is not None:
            return (
                f"use `{held}` at {place(loop, near=back.frame)}, which is still on {home}, instead of what "
                f"{place(back.frame)} moves back."
            )
    at, source = back.frame, left
    if source == at:
        # One line moves it there and back: tell the two apart by who calls it.
        source, at = facts.graphs.parting(found.out.site, found.back.site) or (source, at)
    before = f" before {place(source, near=at)} moves it" if source is not None else ""
    if result is not None and result != away:
        return f"keep the tensor on {home} as `{result}`{before}, and drop the move at {place(back.frame)}."
    own = f"`{away}_{home.partition(':')[0]}`" if away is not None and away.isidentifier() else "of its own"
    return (
        f"keep the tensor on {home} under a name {own}{before}, and use that instead of the move at "
        f"{place(at)}."
    )


def _detoured(facts: Facts, found: Detour, left: Move, back: Move) -> _Sighting:
    home, name = found.out.from_device, called(facts, left)
    labels = [
        _label(back.frame, f"back on {home} here: {sized(found.back.bytes)} moved"),
        _label(left.frame, f"{name} left {home} for the {HOST} here: {sized(found.out.bytes)} moved"),
    ]
    works = [facts.wording.frame(event.site) for event in found.works]
    labels += [_label(frame, f"worked on by the {HOST} here") for frame in works if frame is not None]
    what = (
        "only puts its elements in another order" if found.rearranged else "computes on it without any module"
    )
    return _sighting(
        ("detour", left.frame.line),
        back,
        f"{name} leaves {home} for the {HOST}, which {what}, and comes back in the same size. That moves "
        f"{sized(found.out.bytes + found.back.bytes)} in every step, and {home} is waited for.",
        labels,
        f"do with torch on {home} what the {HOST} does to {name} (indexing, torch.flip, torch.roll, "
        f"arithmetic), and drop the moves at {listed([place(left.frame), place(back.frame)])}.",
    )


def _hopped(facts: Facts, found: Hop, moved: Move) -> _Sighting:
    home, away = found.move.from_device, found.move.to_device
    name, size = called(facts, moved), sized(found.move.bytes)
    known = [bare(facts, loss, moved.frame) for loss in found.reduction.losses]
    loss = next((f"`{spelled}`" for spelled in known if spelled is not None), "the loss")
    labels = [_label(moved.frame, f"moved from {home} to {away} here: {size}")]
    uses = [frame for op in found.reduction.operations if (frame := facts.devices.line(op)) is not None]
    if uses:
        labels.append(_label(uses[0], f"all that {away} does with it: reduce it to {loss}"))
    backward = facts.wording.frame(found.reduction.backwards[0].site)
    if backward is not None:
        labels.append(_label(backward, f"its gradient travels back to {home} here"))
    along = [frame for other in found.along if (frame := facts.devices.line(other)) is not None]
    drop = [place(frame, near=moved.frame) for frame in (moved.frame, *along)]
    return _sighting(
        ("hop", 0),
        moved,
        f"{name}, computed on {home}, moves to {away} only for {loss} to be computed there: no parameter on "
        f"{away} takes part. {size} go there and as much gradient comes back in every step.",
        labels,
        f"compute {loss} on {home}, where {name} is: drop the {_moves(drop)} at {listed(drop)}"
        f"{_send(facts, found, moved)}.",
    )


def _send(facts: Facts, found: Hop, moved: Move) -> str:
    """Returns ", and move `labels` to cuda:0 instead", where the loss has arguments that were never there."""
    known = [bare(facts, tensor, moved.frame) for tensor in found.native]
    spelled = [f"`{name}`" if name is not None else "the loss's other arguments" for name in known]
    return f", and move {listed(spelled)} to {found.move.from_device} instead" if spelled else ""


def _moves(places: list[str]) -> str:
    return "move" if len(set(places)) == 1 else "moves"


def _sighting(kind: tuple[str, int], moved: Move, message: str, labels: list[Label], fix: str) -> _Sighting:
    journey = (kind[0], moved.frame.path, kind[1], moved.frame.line)
    one: dict[tuple[str, int], Label] = {}
    for label in labels:
        one.setdefault((label.path, label.line), label)
    occurrence = Occurrence(
        message=sentence(message), labels=tuple(one.values()), fix=fix, step=moved.step, cause=journey
    )
    return _Sighting(journey, occurrence, moved.step)


def _label(frame: Frame, text: str) -> Label:
    return Label(path=frame.path, line=frame.line, text=text)


_BACK = """\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Linear(8, 8).to("cuda")
discriminator = nn.Linear(16, 1)
optimizer = torch.optim.SGD([*generator.parameters(), *discriminator.parameters()], lr=0.1)

for step in range(3):
    batch = {"text": torch.randn(4, 8)}
    optimizer.zero_grad()
    text = batch["text"].to("cuda")
    fake = generator(text)
    text = text.to("cpu")  # <- GL401
    scores = discriminator(torch.cat([fake.to("cpu"), text], dim=1))
    loss = scores.square().mean()
    loss.backward()
    optimizer.step()
"""

_NUMPY = """\
import torch
from torch import nn

torch.manual_seed(0)
forward = nn.Linear(6, 4).to("cuda")
backward = nn.Linear(6, 4).to("cuda")
optimizer = torch.optim.SGD([*forward.parameters(), *backward.parameters()], lr=0.1)

for step in range(3):
    x = torch.randn(5, 6, device="cuda")
    reversed_x = x.cpu().numpy()[::-1].copy()
    reversed_x = torch.from_numpy(reversed_x).to("cuda")  # <- GL401
    loss = (forward(x) * backward(reversed_x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_HOP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for step in range(3):
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    predictions = model(x)
    predictions = predictions.to("cuda")  # <- GL401
    loss = criterion(predictions, y.to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_SPLIT = """\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Linear(8, 8).to("cuda")
discriminator = nn.Linear(16, 1)
optimizer = torch.optim.SGD([*generator.parameters(), *discriminator.parameters()], lr=0.1)

for step in range(3):
    text = torch.randn(4, 8)
    optimizer.zero_grad()
    fake = generator(text.to("cuda"))
    scores = discriminator(torch.cat([fake.to("cpu"), text], dim=1))
    loss = scores.square().mean()
    loss.to("cuda").backward()
    optimizer.step()
"""

_METRICS = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, labels = torch.randn(3, 4, 8), torch.randint(0, 3, (3, 4))
seen = []

for x, y in zip(images, labels):
    x, y = x.to("cuda"), y.to("cuda")
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append((logits.detach().cpu(), y.cpu(), loss.detach().cpu()))
"""

RULE = Rule(
    code="GL401",
    name="ping-pong-transfer",
    severity="warning",
    since="0.1",
    needs=("operations", "modules", "backward"),
    check=check,
    bad=(
        Example(title="a batch goes to the GPU and comes back for the CPU", code=_BACK, simulate=("cuda",)),
        Example(title="reversed on the host through NumPy", code=_NUMPY, simulate=("cuda",)),
        Example(title="predictions move only to become a loss", code=_HOP, simulate=("cuda",)),
    ),
    good=(
        Example(title="two networks on two devices, each value sent once", code=_SPLIT, simulate=("cuda",)),
        Example(title="results and labels read back for metrics", code=_METRICS, simulate=("cuda",)),
    ),
)
