"""The `graphlint.expect(...)` blocks of a record, and which sightings happened in them.

May import `analysis`, `record` and `lint`.
"""

from collections.abc import Sequence
from functools import cached_property

import msgspec

from graphlint.analysis.facts import Facts
from graphlint.lint.finding import Occurrence
from graphlint.record.events import Repeat, StepBoundary
from graphlint.record.expectations import ExpectBegin, ExpectEnd
from graphlint.record.identity import Serial

_MARKS = ExpectBegin | ExpectEnd | StepBoundary | Repeat


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block, from its first serial to its last; `last` is None for one that was never left.

    `path` and `line` are where it was declared: the `with`, or the call of a decorated function.
    """

    rules: tuple[str, ...]
    reason: str
    path: str
    line: int
    first: Serial
    last: Serial | None

    def holds(self, serial: Serial) -> bool:
        """Returns whether an event happened in it."""
        return self.first <= serial and (self.last is None or serial <= self.last)


class Blocks:
    """The blocks of one trace."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Block, ...]:
        """The blocks, in the order in which they began."""
        events = self._facts.trace.events
        ends = {event.begin: event.serial for event in events if isinstance(event, ExpectEnd)}
        found = []
        for event in events:
            frame = self._facts.graphs.frame(event.site) if isinstance(event, ExpectBegin) else None
            if isinstance(event, ExpectBegin) and frame is not None:
                found.append(
                    Block(
                        rules=event.rules,
                        reason=event.reason,
                        path=frame.path,
                        line=frame.line,
                        first=event.serial,
                        last=ends.get(event.serial),
                    )
                )
        return tuple(found)

    def around(self, occurrence: Occurrence, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """Returns those of `blocks` in which a sighting happened; none when part of it happened outside.

        It happened in them when, for one of the lines that it labels, all that the line did in that step was
        done in one of them.
        """
        for label in occurrence.labels:
            serials = self._of_step(self._serials.get((label.path, label.line), []), occurrence.step)
            holders = [next((block for block in blocks if block.holds(serial)), None) for serial in serials]
            inner = tuple(dict.fromkeys(block for block in holders if block is not None))
            if inner and None not in holders:
                return inner
        return ()

    def _of_step(self, serials: Sequence[Serial], step: int | None) -> list[Serial]:
        return [serial for serial in serials if step is None or self._facts.steps.step_of(serial) == step]

    @cached_property
    def _serials(self) -> dict[tuple[str, int], list[Serial]]:
        """When each line did anything that was recorded, in order."""
        sites = self._facts.trace.sites
        serials: dict[tuple[str, int], list[Serial]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, _MARKS) or event.site not in sites:
                continue
            for place in {(frame.path, frame.line) for frame in sites[event.site].frames}:
                serials.setdefault(place, []).append(event.serial)
        return serials

    def in_full(self, block: Block) -> bool:
        """Returns whether any of a block was recorded in full."""
        return any(
            step.level == "full"
            and block.first <= step.end
            and (block.last is None or step.first <= block.last)
            for step in self._facts.steps.all
        )
