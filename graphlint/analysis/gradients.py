"""The life of each parameter's gradient: who filled it, who cleared it, who used it, in time order.

May import `record` only. A gradient taken by `autograd.grad` fills nothing, nor does a backward that raised.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from graphlint.record.events import Backward, GradWrite, OptimizerStep, ZeroGrad
from graphlint.record.identity import OptimizerId, Serial, TensorId
from graphlint.record.trace import Trace


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a parameter's gradient."""

    serial: Serial
    kind: Literal["filled", "cleared", "used", "assigned"]
    event: Backward | ZeroGrad | OptimizerStep | GradWrite


class Gradients:
    """The lives of a trace's gradients."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def life(self, tensor: TensorId) -> tuple[Moment, ...]:
        """Returns what happened to the gradient of a tensor, in time order."""
        return tuple(self._lives.get(tensor, ()))

    def between(self, tensor: TensorId, after: Serial, before: Serial) -> tuple[Moment, ...]:
        """Returns what happened to the gradient of a tensor after one serial and before another."""
        return tuple(moment for moment in self.life(tensor) if after < moment.serial < before)

    def next(self, tensor: TensorId, after: Serial) -> Moment | None:
        """Returns what happened next to the gradient of a tensor; None when nothing did."""
        return next((moment for moment in self.life(tensor) if moment.serial > after), None)

    def optimizers(self, tensor: TensorId) -> tuple[OptimizerId, ...]:
        """Returns the optimizers that hold a tensor."""
        return tuple(self._holders.get(tensor, ()))

    def parameters(self, optimizer: OptimizerId) -> tuple[TensorId, ...]:
        """Returns the parameters of an optimizer, all groups together."""
        row = self._trace.optimizers.get(optimizer)
        return tuple(dict.fromkeys(t for group in row.groups for t in group)) if row is not None else ()

    def steps(self, optimizer: OptimizerId) -> tuple[OptimizerStep, ...]:
        """Returns the steps of an optimizer, in time order."""
        return tuple(step for step in self.all_steps if step.optimizer == optimizer)

    def last_step(self, optimizers: Iterable[OptimizerId], before: Serial) -> OptimizerStep | None:
        """Returns the latest step of any of the optimizers before a serial."""
        wanted = set(optimizers)
        found = [s for s in self.all_steps if s.optimizer in wanted and s.serial < before]
        return found[-1] if found else None

    @cached_property
    def all_steps(self) -> tuple[OptimizerStep, ...]:
        """The steps of all optimizers, in time order."""
        return tuple(event for event in self._trace.events if isinstance(event, OptimizerStep))

    @cached_property
    def _holders(self) -> dict[TensorId, list[OptimizerId]]:
        holders: dict[TensorId, list[OptimizerId]] = {}
        for optimizer in self._trace.optimizers:
            for tensor in self.parameters(optimizer):
                holders.setdefault(tensor, []).append(optimizer)
        return holders

    @cached_property
    def _lives(self) -> dict[TensorId, list[Moment]]:
        lives: dict[TensorId, list[Moment]] = {}

        def note(tensors: Iterable[TensorId], moment: Moment) -> None:
            for tensor in tensors:
                lives.setdefault(tensor, []).append(moment)

        for event in self._trace.events:
            match event:
                case Backward() if event.call != "autograd.grad" and event.error is None:
                    note(event.reached, Moment(event.serial, "filled", event))
                case ZeroGrad():
                    note(event.cleared, Moment(event.serial, "cleared", event))
                case GradWrite():
                    note((event.tensor,), Moment(event.serial, "assigned", event))
                case OptimizerStep():
                    had = set(self.parameters(event.optimizer)) - set(event.without_grad)
                    # A closure fills gradients while the step runs; they are used when it returns.
                    note(sorted(had), Moment(event.end, "used", event))
                case _:
                    pass
        for life in lives.values():
            life.sort(key=lambda moment: moment.serial)
        return lives
