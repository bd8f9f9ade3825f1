"""The training steps of a run: which events belong to which step, and which steps stand for others.

May import `record` only. Steps are 0-based.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from graphlint.record.events import AnyEvent, Backward, OptimizerStep, Repeat, ScriptError, StepBoundary
from graphlint.record.identity import Serial
from graphlint.record.trace import Trace


@dataclass(frozen=True, slots=True)
class Step:
    """A training step whose events are stored.

    Attributes:
        number: 0-based.
        last: the last step of those right after it that were equal to it and not stored; else `number`.
        repeats: how many later steps anywhere were equal to it.
        level: the level of capture.
        told: whether the user's own loop tells where it begins (a batch, a call, a mark), rather than a
            guess from the optimizers.
        boundary: serial of the boundary that began it; None before the first boundary.
        first: serial of its first event.
        end: serial of its last event.
        events: its events, in order.
    """

    number: int
    last: int
    repeats: int
    level: Literal["full", "watch"]
    told: bool
    boundary: Serial | None
    first: Serial
    end: Serial
    events: tuple[AnyEvent, ...]


@dataclass(slots=True)
class _Segment:
    boundary: StepBoundary | None
    events: list[AnyEvent]
    repeats: list[Repeat]

    def trains(self) -> bool:
        """Tells whether anything in it trains; a backward inside another doesn't count by itself."""
        return any(isinstance(event, Backward | OptimizerStep) for event in self.events)


class Steps:
    """The steps of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def all(self) -> tuple[Step, ...]:
        """The stored steps, in time order."""
        return self._number()[0]

    @cached_property
    def count(self) -> int:
        """How many training steps the run had, repeated ones included."""
        return self._number()[1]

    def of(self, serial: Serial) -> Step | None:
        """Returns the step that an event belongs to; None before, between and after steps."""
        index = bisect_right(self._firsts, serial) - 1
        if index < 0:
            return None
        step = self.all[index]
        return step if serial <= step.end else None

    def step_of(self, serial: Serial) -> int | None:
        """Returns the number of the step that an event belongs to; None outside every step."""
        step = self.of(serial)
        return step.number if step is not None else None

    def last_step(self, serial: Serial) -> int | None:
        """Returns the last of the equal steps that the event's step stands for; None outside steps."""
        step = self.of(serial)
        return step.last if step is not None else None

    def repeats(self, serial: Serial) -> int:
        """Returns how many later steps repeated the event's step, wherever they lie."""
        step = self.of(serial)
        return step.repeats if step is not None else 0

    @cached_property
    def _firsts(self) -> list[int]:
        return [step.first for step in self.all]

    @cached_property
    def _segments(self) -> list[_Segment]:
        """The events between boundaries; a boundary takes effect after its `after`, not where it stands."""
        boundaries = [event for event in self._trace.events if isinstance(event, StepBoundary)]
        starts = [boundary.after for boundary in boundaries]
        segments = [_Segment(None, [], []), *(_Segment(boundary, [], []) for boundary in boundaries)]
        for event in self._trace.events:
            if isinstance(event, StepBoundary):
                continue
            segment = segments[bisect_right(starts, event.serial - 1)]
            if isinstance(event, Repeat):
                segment.repeats.append(event)
            else:
                segment.events.append(event)
        return segments

    def _number(self) -> tuple[tuple[Step, ...], int]:
        number = 0
        drafts: dict[int, tuple[int, int, int, _Segment]] = {}
        by_boundary: dict[Serial, int] = {}
        for place, segment in enumerate(self._segments):
            if self._is_step(segment, begun=number > 0):
                drafts[place] = (number, number, 0, segment)
                if segment.boundary is not None:
                    by_boundary[segment.boundary.serial] = place
                number += 1
            for repeat in segment.repeats:
                like = by_boundary.get(repeat.like)
                if like is None:
                    continue
                first, last, repeats, like_segment = drafts[like]
                number += repeat.count
                follows = last == number - repeat.count - 1
                drafts[like] = (
                    first,
                    number - 1 if follows else last,
                    repeats + repeat.count,
                    like_segment,
                )
        return tuple(_step(*draft) for draft in drafts.values()), number

    def _is_step(self, segment: _Segment, *, begun: bool) -> bool:
        if segment.trains():
            return True
        return begun and any(isinstance(event, ScriptError) for event in segment.events)


def _step(number: int, last: int, repeats: int, segment: _Segment) -> Step:
    boundary = segment.boundary
    return Step(
        number=number,
        last=last,
        repeats=repeats,
        level=boundary.level if boundary is not None else "full",
        told=boundary is not None and boundary.reason in {"batch", "call", "manual"},
        boundary=boundary.serial if boundary is not None else None,
        first=segment.events[0].serial,
        end=segment.events[-1].serial,
        events=tuple(segment.events),
    )
