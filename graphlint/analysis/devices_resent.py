"""Values that were sent to a device where they had been before, unchanged.

May import `record` and the rest of `analysis`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.devices_journeys import Arrival, Stop
from graphlint.analysis.devices_roundtrips import real_moves
from graphlint.analysis.devices_wording import Move, move
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Function = tuple[str, str, int]
"""A function's file, name and first line."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A move that brought a value to a device; `step` is None before, between and after steps."""

    arrival: Arrival
    frame: Frame
    step: int | None
    move: Move | None


def sent_again(facts: "Facts") -> dict[tuple[Stop, str], list[Sent]]:
    """Returns the moves that sent one unchanged value to one device, where there are several."""
    found: dict[tuple[Stop, str], list[Sent]] = {}
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
        found.setdefault(key, []).append(Sent(arrival, frame, step, moved))
    return {key: sent for key, sent in found.items() if len(sent) > 1}


def sent_every_step(facts: "Facts") -> dict[Function, list[list[Sent]]]:
    """Returns the values that were sent in steps which follow one another, by the function that sent them."""
    found: dict[Function, list[list[Sent]]] = {}
    for sent in sent_again(facts).values():
        if every_step(sent):
            at = next(item.frame for item in sent if item.step is not None)
            found.setdefault((at.path, at.function, at.first_line), []).append(sent)
    return found


def every_step(sent: Sequence[Sent]) -> bool:
    """Tells whether a value was sent in steps that follow one another."""
    steps = {item.step for item in sent if item.step is not None}
    return any(step + 1 in steps for step in steps)


def _unchanged(facts: "Facts", first: Arrival, second: Arrival) -> bool:
    """Tells whether two moves of a value carried the same content, as far as memory is shared with Python."""
    before, after = first.transfer.digest, second.transfer.digest
    if before is not None and after is not None:
        return before == after
    return not facts.devices.journeys.exposed(second.transfer.source.tensor)
