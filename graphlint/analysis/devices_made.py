"""Tensors that a step makes on the host only to move them, and those that hold the same numbers each time.

May import `record` and the rest of `analysis`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.devices_roundtrips import find_hop, real_moves
from graphlint.analysis.devices_wording import Move, move
from graphlint.record.events import Op, Transfer
from graphlint.record.identity import Serial
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_HOST = "cpu"
_FILLED = frozenset(
    f"torch.{name}" for name in ("zeros", "ones", "full", "empty", "eye", "arange", "linspace", "logspace")
)
DRAWN = frozenset(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm"))


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that `made` made on the host, and its only use."""

    made: Op
    frame: Frame
    move: Move

    @property
    def constant(self) -> bool:
        """Whether it holds the same numbers each time that it is made."""
        return self.made.name in _FILLED


def made_to_be_moved(facts: "Facts") -> dict[tuple[str, int], list[Made]]:
    """Returns what each line makes on the host for a move only, in steps that follow one another."""
    found: dict[tuple[str, int], list[Made]] = {}
    following = _with_hops(facts)
    for transfer in facts.devices.transfers:
        moved = move(facts, transfer)
        if moved is None or transfer.noop or transfer.from_device != _HOST or transfer.to_device == "meta":
            continue
        made = _made_for(facts, moved) if transfer.serial not in following else None
        if made is not None:
            found.setdefault((made.frame.path, made.frame.line), []).append(made)
    return {line: sightings for line, sightings in found.items() if _in_a_row(sightings)}


def _in_a_row(sightings: list[Made]) -> bool:
    steps = {one.move.step for one in sightings}
    return any(step + 1 in steps for step in steps)


def constants_in(facts: "Facts", function: tuple[str, str, int]) -> Iterator[Made]:
    """Yields one of each line's constants that a function, by file, name and first line, makes and moves."""
    for sightings in made_to_be_moved(facts).values():
        first = sightings[0]
        places = {(at.path, at.function, at.first_line) for at in (first.frame, first.move.frame)}
        if first.constant and places == {function}:
            yield first


def _made_for(facts: "Facts", moved: Move) -> Made | None:
    """Returns how a tensor was made, where the step made it itself and the move is its only use."""
    source = moved.transfer.source.tensor
    makers = facts.values.makers(source)
    if len(makers) != 1 or moved.transfer.source.requires_grad or source in facts.devices.parameters:
        return None
    made = makers[0]
    if not isinstance(made, Op) or made.inputs or made.host_inputs or made.name not in _FILLED | DRAWN:
        return None
    frame = facts.devices.line(made)
    step = facts.steps.step_of(made.serial)
    if frame is None or step != moved.step:
        return None
    uses = [event for other in facts.values.sharers(source) for event in facts.values.consumers(other)]
    if uses != [moved.transfer] or _moves_on(facts, moved):
        return None
    return Made(made, frame, moved)


def _moves_on(facts: "Facts", moved: Move) -> bool:
    """Tells whether the copy is moved once more: then it matters which device should have the value."""
    result = moved.transfer.result
    uses = [event for other in facts.values.sharers(result) for event in facts.values.consumers(other)]
    return any(isinstance(event, Transfer) and not event.noop for event in uses)


def _with_hops(facts: "Facts") -> frozenset[Serial]:
    """Returns the moves that only follow predictions to a device where those become a loss."""
    hops = (find_hop(facts, transfer) for transfer in real_moves(facts))
    return frozenset(transfer.serial for hop in hops if hop is not None for transfer in hop.along)
