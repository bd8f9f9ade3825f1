"""What every report says of the run itself; may import `analysis` and `record`.

One summary for all formats, so that none forgets to say what was not seen.
"""

from typing import Literal

import msgspec

from graphlint.analysis.facts import Facts
from graphlint.analysis.steps import Steps
from graphlint.record.events import ModuleMove, ScriptError, Transfer
from graphlint.record.header import Level
from graphlint.record.trace import Trace


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended the script.

    `path` and `line` are where the user's own code raised it or called into what did; both are null when
    no such line was on the stack.
    """

    type: str
    message: str
    path: str | None
    line: int | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run that was audited.

    `script` and `argv` are what was run; empty for a decorated function. `ended` is `unknown` when the run
    was killed before it could say. `steps` counts training steps, `full_steps` those recorded with every
    operation. `devices` are those on which tensors were seen, under the names that the script saw;
    `simulated` are those that were asked for in simulation. `unseen` says what was not recorded.
    """

    script: str
    argv: tuple[str, ...]
    ended: Literal["finished", "steps", "error", "exit", "interrupt", "terminated", "unknown"]
    exit_code: int | None
    error: RunError | None
    steps: int
    full_steps: int
    level: Level
    devices: tuple[str, ...]
    simulated: tuple[str, ...]
    unseen: tuple[str, ...]
    complete: bool


def summarize(trace: Trace) -> Run:
    """Returns the summary of a trace's run, with paths as the record has them."""
    header, end = trace.header, trace.end
    steps = Steps(trace)
    return Run(
        script=header.script,
        argv=header.argv,
        ended=end.how if end is not None else "unknown",
        exit_code=end.exit_code if end is not None else None,
        error=_error(trace),
        steps=end.steps if end is not None else steps.count,
        full_steps=end.full_steps if end is not None else sum(step.level == "full" for step in steps.all),
        level=header.level,
        devices=_devices(trace),
        simulated=header.simulated,
        unseen=end.unseen if end is not None else ("everything after the place where the trace breaks off",),
        complete=trace.complete,
    )


def _devices(trace: Trace) -> tuple[str, ...]:
    """Returns the devices of every tensor met, and those that modules or tensors were moved to or from.

    A parameter that no recorded operation got to read is known by the move of its module alone.
    """
    found = {tensor.device for tensor in trace.tensors.values()}
    devices = Facts(trace).devices
    for event in trace.events:
        if isinstance(event, ModuleMove) and event.tensors:
            found.add(devices.spelled(event.to_device))
        elif isinstance(event, Transfer):
            found.update((event.from_device, event.to_device))
    return tuple(sorted(found))


def _error(trace: Trace) -> RunError | None:
    for event in reversed(trace.events):
        if isinstance(event, ScriptError):
            frame = event.frames[0] if event.frames else None
            return RunError(
                type=event.type,
                message=event.message,
                path=frame.path if frame is not None else None,
                line=frame.line if frame is not None else None,
            )
    return None
