"""Keeps a record bounded: watched steps that equal an earlier one are counted, not stored.

May import `record`. A step is compared event by event on everything but serials, times and the identity of
tensors that are made anew in each step.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal

import msgspec

from graphlint.record.events import (
    AnyEvent,
    Backward,
    BatchDraw,
    Cleanup,
    GradientClip,
    OptimizerStep,
    Repeat,
    ScalerCall,
    SchedulerStep,
    StepBoundary,
    Visit,
)
from graphlint.record.expectations import ExpectEnd
from graphlint.record.identity import Serial
from graphlint.record.live import ParameterPlaced

MAX_SHAPES = 200
"""Different kinds of watched step that are stored; the steps of further kinds are only counted."""

_MAX_REPEAT_ROWS = 5_000


class Segment:
    """The events between two step boundaries, while they are collected."""

    def __init__(self, level: Literal["full", "watch"], boundary: StepBoundary | None = None) -> None:
        self.level = level
        self.events: list[AnyEvent] = []
        self.boundary = boundary

    @property
    def trained(self) -> bool:
        """Whether the segment is a training step: it holds a backward or an optimizer's step."""
        return any(isinstance(event, (Backward, OptimizerStep)) for event in self.events)

    def split(self, after: Serial) -> list[AnyEvent]:
        """Takes out and returns the events that come after `after`: they belong to the next step."""
        later = [event for event in self.events if event.serial > after]
        self.events = [event for event in self.events if event.serial <= after]
        return later


class StepFolder:
    """Stores the first of each kind of watched step, and counts the others.

    Args:
        store: takes the events to keep.
    """

    def __init__(self, store: Callable[[Iterable[AnyEvent]], None]) -> None:
        self._store = store
        self._shapes: dict[Hashable, Serial] = {}
        self._run: tuple[Serial, Serial, int] | None = None
        self._rows = 0
        self.dropped_steps = 0

    def add(self, segment: Segment) -> None:
        """Takes a finished segment."""
        boundary = segment.boundary
        if segment.level == "full" or boundary is None:
            self.end_run()
            self._keep(segment)
            return
        shape = _shape(segment.events)
        stored = self._shapes.get(shape)
        if stored is not None:
            self._count(stored, boundary.serial)
        elif len(self._shapes) < MAX_SHAPES:
            self.end_run()
            self._shapes[shape] = boundary.serial
            self._keep(segment)
        else:
            self.dropped_steps += 1

    def _keep(self, segment: Segment) -> None:
        if segment.boundary is not None:
            self._store((segment.boundary,))
        self._store(segment.events)

    def _count(self, like: Serial, serial: Serial) -> None:
        if self._run is not None and self._run[1] == like:
            self._run = (self._run[0], like, self._run[2] + 1)
            return
        self.end_run()
        self._run = (serial, like, 1)

    def end_run(self) -> None:
        """Stores the count of equal steps that is being kept."""
        if self._run is None:
            return
        serial, like, count = self._run
        self._run = None
        self._rows += 1
        if self._rows > _MAX_REPEAT_ROWS:
            self.dropped_steps += count
        else:
            self._store((Repeat(serial=serial, like=like, count=count),))


def _shape(events: list[AnyEvent]) -> Hashable:
    position = {event.serial: index for index, event in enumerate(events)}
    return tuple([_event_shape(event, position) for event in events])


def _event_shape(event: AnyEvent, position: dict[Serial, int]) -> Hashable:
    """Returns what makes two events of two steps the same; the lengths and types tell kinds apart."""
    if isinstance(event, Backward):
        visits = tuple([_visit_shape(visit, position) for visit in event.visits]) if event.visits else ()
        return (
            event.site,
            event.call,
            event.retain_graph,
            event.create_graph,
            event.graph,
            event.nodes,
            event.executed,
            visits,
            event.reached,
            event.accumulated,
            # A result that was recorded in full is entered once, and that is never left out.
            event.calls,
            event.error,
            event.nested,
            len(event.targets),
            None if event.values is None else event.values.root,
        )
    if isinstance(event, OptimizerStep):
        return (
            event.site,
            event.optimizer,
            tuple([change.tensor for change in event.changed]),
            event.without_grad,
            event.unchanged,
            event.closure,
            event.error,
            # Looked at now and then only, so that this adds few kinds of step.
            (event.zero_gradients, event.bad_gradients) if event.gradients_checked else None,
        )
    return _light_shape(event, position)


def _light_shape(event: AnyEvent, position: dict[Serial, int]) -> Hashable:
    shape: tuple[Hashable, ...]
    match event:
        case Cleanup():
            shape = ("cleanup", event.call)
        case ParameterPlaced():
            shape = ("parameter", event.name)
        case BatchDraw():
            shape = ("batch", len(event.tensors))
        case ExpectEnd():
            shape = ("expect-end", position.get(event.begin, -1))
        case GradientClip():
            shape = ("clip", event.call, event.parameters, event.with_grad, event.limit is not None)
        case SchedulerStep():
            # Rates change as they should; whether the optimizer had ever stepped is what tells steps apart.
            shape = ("scheduler", event.scheduler, event.initial, event.optimizer_stepped)
        case ScalerCall():
            call = (event.scaler, event.method, event.optimizer)
            shape = ("scaler", *call, event.enabled, event.error)
        case _:
            return msgspec.structs.replace(event, serial=Serial(0))
    return (event.site, *shape)


def _visit_shape(visit: Visit, position: dict[Serial, int]) -> Hashable:
    return (visit.index, position.get(visit.backward, -1), visit.freed)
