"""A training step asks tensors onto the device where they already are.

## What it does

Collects, for each function that a training step runs, the moves that moved nothing: the tensor was computed
on that device by a module or from what had been moved there, had just been moved there, or had just been
asked there. A line counts only if it moved nothing each time it ran, and only in a run that uses two
devices or more. A whole module that is asked onto its own device in every step counts as well.

Three such moves in a function are a warning. Fewer are a hint in the function that drives the step;
elsewhere they may guard it against other callers and are not reported.

## Why it matters

Each call costs little, but in a script with two devices every `.to` claims that something travels. Moves
that do nothing hide those that do, and are what people add first when an error about devices puzzles them.

## Example

    scores = discriminator(images.to("cpu"))
    scores = scores.to("cpu")
    loss = criterion(scores, labels)
    loss = loss.to("cpu")

## Use instead

    scores = discriminator(images.to("cpu"))
    loss = criterion(scores, labels)

## Known limits

Asking a loader's batch or a freshly made tensor onto a device is never reported, nor is a move inside a
module's forward: it is how device-agnostic code is written. Moves are recorded in the first steps only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphlint.analysis.devices_wording import bare, full_steps, move, recurring
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward, ModuleMove, OptimizerStep, Transfer
from graphlint.record.identity import Serial, TensorId
from graphlint.record.tables import Frame

_CHURN = 3
_LABELS = 12

_Place = tuple[str, int]
_Function = tuple[str, int, str]


@dataclass(slots=True)
class _Line:
    """A line of moves that move nothing: what they ask for, why it is there already, and in which steps."""

    frame: Frame
    name: str
    reason: str
    device: str
    module: bool = False
    steps: list[int] = field(default_factory=list)


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each function with moves that move nothing, once for each step in which it ran."""
    if len(facts.devices.used) < 2:  # noqa: PLR2004 - where all is on one device, a no-op proves nothing
        return
    functions: dict[_Function, list[_Line]] = {}
    for line in [*_tensor_lines(facts), *_module_lines(facts)]:
        if recurring(line.steps, facts):
            key = (line.frame.path, line.frame.first_line, line.frame.function)
            functions.setdefault(key, []).append(line)
    drivers = _drivers(facts)
    for key, lines in functions.items():
        if len(lines) >= _CHURN or key in drivers:
            yield from _occurrences(key, sorted(lines, key=lambda line: line.frame.line))


def _occurrences(key: _Function, lines: list[_Line]) -> Iterator[Occurrence]:
    number = len(lines)
    devices = listed(sorted({line.device for line in lines}))
    where = "The script" if key[2] == "<module>" else f"`{key[2].rpartition('.')[2]}`"
    places = listed([str(line.frame.line) for line in lines], limit=_LABELS)
    names = listed([line.name for line in lines], limit=4)
    labels = [Label(path=line.frame.path, line=line.frame.line, text=line.reason) for line in lines]
    fix = _fix(lines)
    for step in sorted({step for line in lines for step in line.steps}):
        yield Occurrence(
            message=(
                f"{where} asks {names} onto {devices}, where {'it' if number == 1 else 'each'} already is: "
                f"{_moves(lines)} in every step, on {_lines(number)} {places}."
            ),
            labels=tuple(labels[:_LABELS]),
            fix=fix,
            step=step,
            cause=(key[0], key[2]),
            severity="warning" if number >= _CHURN else "info",
        )


def _fix(lines: list[_Line]) -> str:
    modules = [line.name for line in lines if line.module]
    idle = len(lines) - len(modules)
    said = []
    if idle:
        what = "this move" if idle == 1 else "these moves" if not modules else "the moves of tensors"
        said.append(
            f"drop {what}: a result lies where its operands lie, and a tensor moved once stays there."
        )
    if modules:
        said.append(f"{'Move' if said else 'move'} {listed(modules)} once, before the loop.")
    return " ".join(said)


def _moves(lines: list[_Line]) -> str:
    """Returns "4 moves that move nothing"."""
    return f"{counted(len(lines), 'move')} that {'moves' if len(lines) == 1 else 'move'} nothing"


def _lines(number: int) -> str:
    return "line" if number == 1 else "lines"


# --- tensors -------------------------------------------------------------------------------------------


def _tensor_lines(facts: Facts) -> Iterator[_Line]:
    by_place: dict[_Place, list[tuple[Transfer, Frame]]] = {}
    for transfer in facts.devices.transfers:
        frame = facts.devices.line(transfer)
        if frame is not None and transfer.module is None:
            by_place.setdefault((frame.path, frame.line), []).append((transfer, frame))
    for found in by_place.values():
        if all(transfer.noop for transfer, _ in found):
            line = _redundant(facts, found)
            if line is not None:
                yield line


def _redundant(facts: Facts, found: list[tuple[Transfer, Frame]]) -> _Line | None:
    """Returns the line if, whenever it ran in a step, its tensors could not have been anywhere else."""
    line: _Line | None = None
    for transfer, frame in found:
        moved = move(facts, transfer)
        if moved is None:
            continue
        reason = _why_there(facts, transfer, frame)
        if reason is None:
            return None
        if line is None:
            device = facts.devices.spelled(transfer.to_device)
            name = bare(facts, transfer.source.tensor, frame)
            spelled = f"`{name}`" if name is not None else facts.names.tensor(transfer.source.tensor)
            line = _Line(frame, spelled, f"{spelled} {reason}", device)
        line.steps.append(moved.step)
    return line


def _why_there(facts: Facts, transfer: Transfer, frame: Frame) -> str | None:
    """Returns in words why a tensor can only lie where it is asked; None where it might lie elsewhere."""
    device = facts.devices.spelled(transfer.to_device)
    tensor, before = transfer.source.tensor, Serial(transfer.serial - 1)
    asked = _asked_before(facts, tensor, transfer)
    if asked is not None:
        return f"was asked onto {device} at {place(asked, near=frame)} already"
    producer = facts.values.producer(tensor, before)
    if isinstance(producer, Transfer):
        moved = facts.devices.line(producer)
        at = f" at {place(moved, near=frame)}" if moved is not None else ""
        return f"was moved to {device}{at} already"
    local = facts.devices.local(tensor, before)
    if not local.operations or local.opaque:
        return None
    if local.parameters:
        held = [spot for tensor in local.parameters for spot in facts.names.places(tensor)[:1]]
        owners = [facts.names.module(facts.names.root(spot.module)) for spot in held]
        whose = f" with the parameters of {listed(owners)}" if owners else ""
        return f"was computed on {device}{whose}"
    if local.arrivals:
        return f"was computed on {device} from what had been moved there"
    return None


def _asked_before(facts: Facts, tensor: TensorId, transfer: Transfer) -> Frame | None:
    """Returns the line that asked the very tensor onto the device before, in the same step."""
    step = facts.steps.of(transfer.serial)
    for event in facts.values.consumers(tensor):
        if not isinstance(event, Transfer) or event.serial >= transfer.serial or not event.noop:
            continue
        if facts.steps.of(event.serial) is step:
            return facts.devices.line(event)
    return None


# --- modules -------------------------------------------------------------------------------------------


def _module_lines(facts: Facts) -> Iterator[_Line]:
    """Yields the lines that ask a module onto a device in every step, and move nothing after the first."""
    by_place: dict[_Place, list[tuple[ModuleMove, Frame]]] = {}
    for event in facts.trace.events:
        if isinstance(event, ModuleMove):
            frame = facts.devices.line(event)
            if frame is not None:
                by_place.setdefault((frame.path, frame.line), []).append((event, frame))
    full = {step.number for step in full_steps(facts)}
    for found in by_place.values():
        event, frame = found[-1]
        idle = [facts.steps.step_of(later.serial) for later, _ in found[1:] if not later.moved]
        steps = [step for step in idle if step is not None and step in full]
        if len(idle) == len(found) - 1 and len(set(steps)) > 1 and event.tensors:
            device, name = facts.devices.spelled(event.to_device), facts.names.module(event.module)
            reason = f"{name} is on {device} already, with its {counted(event.tensors, 'tensor')}"
            yield _Line(frame, name, reason, device, module=True, steps=steps)


def _drivers(facts: Facts) -> frozenset[_Function]:
    """Returns the functions that drive training steps: a backward or an optimizer is called from them."""
    sites = {event.site for event in facts.trace.events if isinstance(event, Backward | OptimizerStep)}
    return frozenset(
        (frame.path, frame.first_line, frame.function)
        for site in sites
        if site is not None and site in facts.trace.sites
        for frame in facts.trace.sites[site].frames
    )


_CHURNING = """\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Linear(8, 8).to("cuda")
discriminator = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*generator.parameters(), *discriminator.parameters()], lr=0.1)

for step in range(3):
    noise = torch.randn(4, 8, device="cuda")
    fake = generator(noise).to("cpu")
    fake = fake.to("cpu")  # <- GL402
    scores = discriminator(fake)
    scores = scores.to("cpu")
    loss = scores.mean()
    loss = loss.to("cpu")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_MODULE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(4):
    model.to("cuda")  # <- GL402
    x = torch.randn(4, 8, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_AGNOSTIC = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
generator = nn.Linear(8, 8).to("cuda")
discriminator = nn.Linear(8, 1).to("cpu")
optimizer = torch.optim.SGD([*generator.parameters(), *discriminator.parameters()], lr=0.1)

for images in DataLoader(torch.randn(12, 8), batch_size=4):
    real = images.to("cpu")
    labels = torch.ones(real.size(0), 1).to("cpu")
    fake = generator(torch.randn(4, 8, device="cuda")).to("cpu")
    loss = (discriminator(real) - labels).square().mean() + discriminator(fake).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_ONE_DEVICE = """\
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(3):
    x = torch.randn(4, 8, device=device)
    predictions = model(x).to(device)
    loss = predictions.square().mean().to(device)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="GL402",
    name="redundant-transfer",
    severity="warning",
    since="0.1",
    needs=("operations", "modules"),
    check=check,
    bad=(
        Example(title="results asked where they were computed", code=_CHURNING, simulate=("cuda",)),
        Example(title="a module asked onto its device in every step", code=_MODULE, simulate=("cuda",)),
    ),
    good=(
        Example(title="batches and fresh tensors asked onto a device", code=_AGNOSTIC, simulate=("cuda",)),
        Example(title="device-agnostic code where there is one device", code=_ONE_DEVICE),
    ),
)
