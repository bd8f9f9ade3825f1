"""One capture from start to end: taps on one exit stack, levels, step boundaries, the record.

May import the rest of `capture` and `record`. After a session no mode, hook or patched method remains.
"""

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from graphlint.capture.census import LiveGraphCensus
from graphlint.capture.clock import Reason, StepClock
from graphlint.capture.context import CaptureContext
from graphlint.capture.evaluation import Evaluations
from graphlint.capture.expectations import Expectations
from graphlint.capture.failure import bare_error, describe_error
from graphlint.capture.folding import Segment
from graphlint.capture.options import FULL_STEPS, CaptureOptions
from graphlint.capture.recorder import Recorder
from graphlint.capture.sink import Sink
from graphlint.capture.stop import StopRun
from graphlint.capture.taps.backward import BackwardTap
from graphlint.capture.taps.batches import BatchesTap
from graphlint.capture.taps.cleanup import CleanupTap
from graphlint.capture.taps.clipping import ClippingTap
from graphlint.capture.taps.compiled import CompiledTap, ScriptedTap
from graphlint.capture.taps.custom import CustomFunctionsTap
from graphlint.capture.taps.distributed import DistributedTap
from graphlint.capture.taps.modes import ModesTap
from graphlint.capture.taps.modules import ModuleMovesTap, ModulesTap
from graphlint.capture.taps.operations import OperationsTap
from graphlint.capture.taps.optimizer import OptimizerTap
from graphlint.capture.taps.parameters import ParametersTap
from graphlint.capture.taps.scalers import ScalersTap
from graphlint.capture.taps.schedulers import SchedulersTap
from graphlint.capture.taps.zero_grad import ZeroGradTap
from graphlint.errors import UsageError
from graphlint.record.events import (
    AnyEvent,
    BatchDraw,
    GradientClip,
    GradWrite,
    ScalerCall,
    StepBoundary,
    ZeroGrad,
)
from graphlint.record.header import CAPABILITIES, End, Ending, Header
from graphlint.record.identity import Serial
from graphlint.record.trace import Trace
from graphlint.version import __version__

__all__ = ["Session", "StopRun", "active_session"]

MAX_FULL_SEGMENTS = 64
"""Stretches of a run that the automatic level records in full, however often the graphs change."""

MAX_ROWS = 400_000
"""Rows of a record, a few hundred megabytes, after which the full level gives way to watching."""


_BEGUN = (BatchDraw, ZeroGrad, GradWrite, GradientClip, ScalerCall)
"""What happens in a training step before its backward: the step has begun."""


class _Recording:
    """Holds the session that records: one for the process, as what it patches is, whatever thread asks."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def release(self) -> None:
        """Lets the next session record."""
        self.session = None


_recording = _Recording()


def active_session() -> "Session | None":
    """Returns the session that is recording now, in whatever thread, if there is one."""
    return _recording.session


def _real_device(tensor: torch.Tensor) -> str:
    return "cpu" if tensor.is_cpu else str(tensor.device)


class Session:
    """Records everything that happens in its `with` block.

    Args:
        options: what to record.

    Raises:
        UsageError: another session is recording, a simulated device can't be had, the trace can't be written.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self._stack = ExitStack()
        self._full_stack = ExitStack()
        self._steps = 0
        self._full_steps = 0
        self._full_segments = 0
        self._ending: tuple[Ending, int | None] = ("finished", None)
        self._trace: Trace | None = None
        self._suspended = 0

    def __enter__(self) -> Self:
        if _recording.session is not None:
            raise UsageError("graphlint is already recording: captures can't be nested")
        with ExitStack() as stack:
            _recording.session = self
            stack.callback(_recording.release)
            self._sink = Sink(self.options.trace)
            stack.callback(self._sink.close)
            self._sink.add(self._header())
            below: tuple[type[TorchFunctionMode], ...] = (DeviceContext,)
            device = _real_device
            if self.options.simulate:
                from graphlint.capture.devices import SimulatedDevices
                from graphlint.capture.devices.mode import SimulationMode

                device = stack.enter_context(SimulatedDevices(self.options.simulate)).label
                below = (DeviceContext, SimulationMode)
            self._build(below, device)
            self._arm(stack)
            self._stack = stack.pop_all()
        return self

    def _build(
        self, below: tuple[type[TorchFunctionMode], ...], device: Callable[[torch.Tensor], str]
    ) -> None:
        self._recorder = Recorder(self._sink, device)
        self._clock = StepClock(
            self._cut, lambda: len(self._recorder.optimizers.live()), lambda: self._recorder.last_serial
        )
        self._evaluations = Evaluations(self._settled, self._evaluation_starts, self._count_operations)
        self._context = CaptureContext(self._recorder, self._clock, self._evaluations)
        self._census = LiveGraphCensus(self._context)
        self._operations = OperationsTap(self._context, below)
        self._backward = BackwardTap(self._context, self._operations.suspend, self._operations.resume)
        self._full_taps = (
            self._operations,
            ModulesTap(self._context),
            ModuleMovesTap(self._context),
            CustomFunctionsTap(self._context),
        )

    def _arm(self, stack: ExitStack) -> None:
        context = self._context
        taps = (
            OptimizerTap(context, self._operations.suspend, self._operations.resume),
            ZeroGradTap(context),
            self._backward,
            BatchesTap(context),
            CleanupTap(context),
            ClippingTap(context),
            SchedulersTap(context),
            ScalersTap(context),
            ModesTap(context),
            ParametersTap(context),
        )
        for tap in taps:
            tap.arm(stack)
            context.guard.arm(tap.capability)
        context.guard.arm(self._census.capability)
        self.expectations = Expectations(context)
        context.guard.arm(self.expectations.capability)
        DistributedTap(context, self._operations.suspend, self._operations.resume).arm(stack)
        CompiledTap(context, self._suspend, self._resume).arm(stack)
        ScriptedTap(context, self._suspend, self._resume).arm(stack)
        stack.callback(self._operations.remove)
        stack.callback(self._disarm_full)
        self._begin_segment("start", Serial(-1), [])
        self.expectations.begin_open_ones()

    def _header(self) -> Header:
        real = tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))
        return Header(
            graphlint=__version__,
            torch=str(torch.__version__),
            python=platform.python_version(),
            script=self.options.script,
            argv=self.options.argv,
            directory=str(Path.cwd()),
            level=self.options.level,
            simulated=self.options.simulate,
            real_devices=real,
            steps_wanted=self.options.steps,
        )

    # --- levels ------------------------------------------------------------------------------------------

    def _wanted_level(self) -> Literal["full", "watch"]:
        level = self.options.level
        if level == "watch":
            return level
        if len(self._sink.records) > MAX_ROWS:
            self._context.note_unseen(f"operations after the first {MAX_ROWS} rows of the record")
            return "watch"
        if level == "full":
            return level
        if self._evaluations.take():
            return "full"
        if self._full_segments >= MAX_FULL_SEGMENTS:
            if self._backward.wants_full:
                limit = f"the first {MAX_FULL_SEGMENTS} recorded in full"
                self._context.note_unseen(f"operations of steps with new graphs after {limit}")
            return "watch"
        again = self._backward.wants_full
        self._backward.wants_full = False
        beginning = self._full_steps < FULL_STEPS and not self._evaluations.outlasts
        return "full" if beginning or again else "watch"

    def _settled(self) -> bool:
        """Tells whether the automatic level has recorded the steps of the start in full."""
        full_steps = self._full_steps + (self._context.full and self._recorder.segment.trained)
        return self.options.level == "auto" and full_steps >= FULL_STEPS

    def _count_operations(self) -> int:
        return self._operations.count

    def _evaluation_starts(self) -> None:
        """Changes the level at once, where no training step is split by it."""
        segment = self._recorder.segment
        if self._clock.by_hand:
            return
        if self._clock.trained:
            whole = self._clock.complete
        else:
            whole = self._context.full or not any(isinstance(event, _BEGUN) for event in segment.events)
        if whole:
            self._clock.evaluation_starts()

    def _arm_full(self) -> None:
        if self._context.full:
            return
        if not self._suspended:
            self._install_full()
        self._context.full = True

    def _install_full(self) -> None:
        with ExitStack() as stack:
            for tap in self._full_taps:
                tap.arm(stack)
                self._context.guard.arm(tap.capability)
            self._full_stack = stack.pop_all()

    def _disarm_full(self) -> None:
        if self._context.full:
            self._context.full = False
            self._full_stack.close()

    def _suspend(self) -> None:
        self._suspended += 1
        self._full_stack.close()

    def _resume(self) -> None:
        self._suspended -= 1
        if self._context.full and not self._suspended:
            self._install_full()

    # --- steps -------------------------------------------------------------------------------------------

    def _cut(self, reason: Reason, after: Serial) -> None:
        """Ends the step that is being recorded, after the event `after`, and begins the next."""
        if self._backward.wants_full and not self._context.full:
            # What has been watched only can't belong to a step that is recorded in full.
            after = self._recorder.last_serial
        later = self._end_segment(after)
        self._begin_segment(reason, after, later)
        self._census.step_ended(self._steps)
        wanted = self.options.steps
        if wanted is not None and self._steps >= wanted:
            # A cut in hindsight has the beginning of one more step, which would count as one.
            self._recorder.segment.events.clear()
            self._context.stop_wanted = True

    def _end_segment(self, after: Serial) -> list[AnyEvent]:
        segment = self._recorder.segment
        later = segment.split(after)
        self._store_segment(segment)
        self._sink.flush()
        return later

    def _store_segment(self, segment: Segment) -> None:
        self._recorder.folder.add(segment)
        full = segment.level == "full"
        self._evaluations.stored(trained=segment.trained, full=full)
        self._full_segments += full and segment.trained
        if segment.trained:
            self._steps += 1
            self._full_steps += full

    def _begin_segment(self, reason: Reason, after: Serial, later: list[AnyEvent]) -> None:
        level = self._wanted_level()
        just_now = after == self._recorder.last_serial
        boundary = StepBoundary(
            serial=self._recorder.next_serial(),
            reason=reason,
            after=after,
            level=level,
            clock_ns=time.perf_counter_ns() if just_now else None,
        )
        segment = Segment(level, boundary)
        segment.events.extend(later)
        self._recorder.segment = segment
        if level == "full":
            self._operations.new_step()
            self._context.names.new_step()
            self._recorder.new_step()
            self._arm_full()
        else:
            self._disarm_full()

    def mark_step(self) -> None:
        """Begins a training step here; from now on only the user says where steps begin.

        Raises:
            StopRun: enough steps are recorded.
        """
        self._clock.marked("manual")
        self._context.check_stop()

    @contextmanager
    def step_call(self) -> Iterator[None]:
        """Makes what happens in the block one training step.

        Raises:
            StopRun: enough steps are recorded.
        """
        self._clock.marked("call")
        yield
        self._clock.marked("call")
        self._context.check_stop()

    def here(self) -> bool:
        """Tells whether this is the thread and process whose work it records."""
        return self._context.here()

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self._steps

    # --- the end -----------------------------------------------------------------------------------------

    def record_error(self, error: BaseException) -> None:
        """Notes the exception that ended the run, with the user's frames and what the failing line named."""
        if self._context.full and self._context.values.bad_result:
            self._context.guard.run("gradient-values", self._context.values.tell)
        event = self._context.guard.run("operations", describe_error, error, self._recorder)
        if event is None:
            event = bare_error(error, self._recorder)
        self._recorder.emit(event)

    def close(self, how: Ending, exit_code: int | None = None) -> None:
        """Says how the run ended; the record is closed when the block is left."""
        self._ending = (how, exit_code)

    def __exit__(self, *exception: object) -> None:
        self._disarm_full()
        self._stack.callback(self._finish)
        self._stack.close()

    def _finish(self) -> None:
        self._store_segment(self._recorder.segment)
        self._recorder.folder.end_run()
        if self._recorder.folder.dropped_steps:
            dropped = self._recorder.folder.dropped_steps
            self._context.note_unseen(f"{dropped} steps that differed from all earlier ones, past the limit")
        if self._sink.failure is not None:
            self._context.note_unseen(self._sink.failure)
        how, exit_code = self._ending
        self._sink.add(
            End(
                how=how,
                exit_code=exit_code,
                steps=self._steps,
                full_steps=self._full_steps,
                taps=self._context.guard.reports(CAPABILITIES),
                unseen=tuple(self._context.unseen),
            )
        )

    def trace(self) -> Trace:
        """Returns the record; inside the block that of the steps that have ended, without an end."""
        if self._trace is not None:
            return self._trace
        trace = Trace.from_records(self._sink.records)
        if trace.complete:
            self._trace = trace
        return trace
