"""Words for what travels between devices: names, sizes, and how often a thing recurs.

May import `record` and the rest of `analysis`. Nothing is decided here but how often a habit must show.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.steps import Step
from graphlint.record.events import ScriptError, Transfer
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_UNITS = ("bytes", "KiB", "MiB", "GiB")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Move:
    """A real move or a no-op that the user's own line made in a training step."""

    transfer: Transfer
    frame: Frame
    step: int


def full_steps(facts: "Facts") -> tuple[Step, ...]:
    """Returns the training steps in which moves were recorded."""
    return tuple(step for step in facts.steps.all if step.level == "full")


def recurring(steps: Collection[int], facts: "Facts") -> bool:
    """Tells whether what was seen in these steps is a habit of the loop, and no rare event in it.

    Seen in two steps, or in the only one that was recorded whole (one that an error cut short proves little).
    """
    whole = [
        step
        for step in full_steps(facts)
        if not any(isinstance(event, ScriptError) for event in step.events) or step.number in steps
    ]
    return len(set(steps)) > 1 or len(whole) <= 1


def move(facts: "Facts", transfer: Transfer) -> Move | None:
    """Returns a transfer with its line and its step; None outside of steps or where a library made it."""
    frame = facts.devices.line(transfer)
    step = facts.steps.of(transfer.serial)
    if frame is None or step is None or step.level != "full":
        return None
    return Move(transfer, frame, step.number)


def bare(facts: "Facts", tensor: TensorId, frame: Frame) -> str | None:
    """Returns the name by which a reader of `frame` knows a tensor, without backticks; None if nameless."""
    return facts.names.tensor_name(tensor, frame.function)


def names(facts: "Facts", tensor: TensorId, frame: Frame) -> tuple[str, ...]:
    """Returns every name that a tensor had in the function of `frame`, in the order in which it got them."""
    given = (name for name in facts.trace.names if name.of == "tensor" and name.id == tensor)
    return tuple(name.name for name in given if name.scope == frame.function)


def called(facts: "Facts", move: Move) -> str:
    """Returns the name of what is moved: the tensor's, that of what it is a view of, or a description."""
    names = [bare(facts, move.transfer.source.tensor, move.frame)]
    arrival = facts.devices.journeys.arrival(move.transfer.serial)
    if arrival is not None and arrival.stop.previous is not None:
        names.append(bare(facts, arrival.stop.previous.tensor, move.frame))
    names.append(bare(facts, move.transfer.result, move.frame))
    known = next((name for name in names if name is not None), None)
    return f"`{known}`" if known is not None else facts.names.tensor(move.transfer.source.tensor)


def sentence(text: str) -> str:
    """Returns the text with a capital at its start."""
    return text[:1].upper() + text[1:]


def sized(count: int) -> str:
    """Returns "96 bytes", "1.2 KiB", "4 MiB"."""
    if count == 1:
        return "1 byte"
    size, unit = float(count), 0
    while size >= _KIB and unit < len(_UNITS) - 1:
        size, unit = size / _KIB, unit + 1
    return f"{size:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"
