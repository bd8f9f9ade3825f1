"""Cuts a record down to its first training steps, for a block that went on after the steps asked for.

May import `analysis` and `record`.
"""

import msgspec

from graphlint.analysis.steps import Step, Steps
from graphlint.record.events import AnyEvent, Repeat, StepBoundary
from graphlint.record.identity import Serial
from graphlint.record.trace import Trace


def first_steps(trace: Trace, count: int) -> Trace:
    """Returns the trace as a run that was stopped after `count` steps would have left it.

    The trace itself comes back when it has no more steps than that, or breaks off.
    """
    steps = Steps(trace)
    if trace.end is None or steps.count <= count:
        return trace
    kept = [step for step in steps.all if step.number < count]
    full = sum(step.level == "full" for step in kept)
    end = msgspec.structs.replace(trace.end, how="steps", exit_code=None, steps=count, full_steps=full)
    return msgspec.structs.replace(trace, events=_events(trace, steps, kept[-1], count), end=end)


def _events(trace: Trace, steps: Steps, last: Step, count: int) -> tuple[AnyEvent, ...]:
    """Returns the events of the first `count` steps; `last` is the last of these that is stored."""
    limit = _limit(trace, steps, count)
    room = count - last.number - 1
    events: list[AnyEvent] = []
    for event in trace.events:
        if event.serial > limit:
            break
        if isinstance(event, Repeat) and event.serial > last.end:
            shown = min(room, event.count)
            room -= shown
            if shown:
                events.append(msgspec.structs.replace(event, count=shown))
        else:
            events.append(event)
    return tuple(events)


def _limit(trace: Trace, steps: Steps, count: int) -> Serial:
    """Returns the serial after which the first stored step past `count` begins."""
    later = {step.boundary for step in steps.all if step.number >= count}
    for event in trace.events:
        if isinstance(event, StepBoundary) and event.serial in later:
            return event.after
    return trace.events[-1].serial
