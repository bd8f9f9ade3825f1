"""Plays a record through and keeps account of what each gradient holds; `ledger` answers from it.

May import `record` and the rest of `analysis`. The steps that were folded are played again where they stood,
so that what is carried from one step into the next is right behind them too. Where the record contradicts
the account, a gradient that ought to be there is gone or the reverse, something changed it unseen, and the
record is right.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphlint.analysis.values import ASSIGNMENT
from graphlint.record.events import (
    AnyEvent,
    Backward,
    GradRead,
    GradWrite,
    Op,
    OptimizerStep,
    Repeat,
    ScalerCall,
    ZeroGrad,
)
from graphlint.record.identity import OptimizerId, Serial, StorageId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_REPLAYS = 2
_MOST_USED = 4
_ZEROING = frozenset({"zero_", "fill_", "_foreach_zero_"})
_OVERWRITING = frozenset({"copy_", "_foreach_copy_", "set_", "normal_", "uniform_", "index_copy_"})


@dataclass(slots=True, eq=False)
class Portion:
    """What one event added to the gradient of one tensor.

    Attributes:
        tensor: whose gradient.
        source: the backward that added it; None where it was written by hand, or unseen.
        uses: the last step of each optimizer that used it so far.
        skipped: a gradient scaler left out the step for which it was there.
    """

    tensor: TensorId
    source: Backward | None
    uses: dict[OptimizerId, OptimizerStep] = field(default_factory=dict)
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A portion that a step found, and the steps that had used it before, the last of each optimizer."""

    portion: Portion
    before: tuple[OptimizerStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Clearing:
    """Portions that backwards had added and that were cleared before any step used them."""

    event: ZeroGrad | Op
    unused: tuple[Portion, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A step and what it found.

    Attributes:
        step: the step.
        held: the portions in the gradients of the optimizer's parameters; none in a gradient of zeros. A
            parameter without a gradient is left out.
        previous: the optimizer's step before.
        filled: whether any of its parameters was filled since then, cleared or not.
        cleared: what was cleared unused since then of its parameters' gradients, in time order.
    """

    step: OptimizerStep
    held: Mapping[TensorId, tuple[Held, ...]]
    previous: OptimizerStep | None
    filled: bool
    cleared: tuple[Clearing, ...]


class Account:
    """The account of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self.held: dict[TensorId, list[Portion]] = {}
        self.uses: list[Use] = []
        self.clearings: list[Clearing] = []
        self.memory: dict[StorageId, tuple[TensorId, ...]] = {}
        self._gradients: set[TensorId] = set()
        self._zeros: set[TensorId] = set()
        self._filled: dict[TensorId, int] = {}
        self._stepped: dict[OptimizerId, int] = {}
        self._previous: dict[OptimizerId, OptimizerStep] = {}
        self._cleared: dict[OptimizerId, list[Clearing]] = {}
        self._moments = 0
        self._replaying = False
        self._closures = [step for step in facts.gradients.all_steps if step.closure]

    def play(self) -> None:
        """Goes through the whole record."""
        self._find_memory()
        by_boundary = {step.boundary: step for step in self._facts.steps.all}
        for event in _in_time(self._facts.trace.events):
            if isinstance(event, Repeat):
                step = by_boundary.get(event.like)
                self._replaying = True
                for _ in range(min(event.count, _REPLAYS) if step is not None else 0):
                    for again in _in_time(step.events if step is not None else ()):
                        self._happened(again)
                self._replaying = False
            else:
                self._happened(event)

    def _find_memory(self) -> None:
        """Notes in which memory the gradients lie that the user's code took into its hands."""
        for event in self._facts.trace.events:
            if isinstance(event, GradRead | GradWrite):
                self._gradients.add(event.grad)
                self._lies_in(event.grad, event.tensor)
            elif isinstance(event, Op) and event.name == ASSIGNMENT and len(event.inputs) > 1:
                for owner in self.owners(event.inputs[0].tensor):
                    self._lies_in(event.inputs[1].tensor, owner)

    def _lies_in(self, gradient: TensorId, owner: TensorId) -> None:
        storage = self._facts.values.storage(gradient)
        if storage is not None:
            self.memory[storage] = tuple(dict.fromkeys((*self.memory.get(storage, ()), owner)))

    def owners(self, tensor: TensorId) -> tuple[TensorId, ...]:
        """Returns the tensors whose gradients lie in the memory of a tensor."""
        storage = self._facts.values.storage(tensor)
        return self.memory.get(storage, ()) if storage is not None else ()

    def _happened(self, event: AnyEvent) -> None:
        self._moments += 1
        match event:
            case Backward() if event.call != "autograd.grad" and event.error is None:
                self._fill(event)
            case ZeroGrad():
                self._clear(event, event.cleared, zeros=not event.set_to_none)
            case GradWrite():
                self._write((event.tensor,))
            case Op():
                self._change(event)
            case OptimizerStep() if event.error is None:
                self._step(event)
            case ScalerCall(method="skipped", optimizer=int(optimizer)):
                for tensor in self._facts.gradients.parameters(OptimizerId(optimizer)):
                    for portion in self.held.get(tensor, ()):
                        portion.skipped = True
            case _:
                pass

    def _fill(self, backward: Backward) -> None:
        accumulated = set(backward.accumulated)
        for tensor in backward.reached:
            held = self.held.setdefault(tensor, [])
            if tensor not in accumulated:
                held.clear()
            elif not held and tensor not in self._zeros:
                held.append(Portion(tensor, None))
            self._zeros.discard(tensor)
            held.append(Portion(tensor, backward))
            self._filled[tensor] = self._moments

    def _clear(self, event: ZeroGrad | Op, tensors: Iterable[TensorId], *, zeros: bool) -> None:
        unused: list[Portion] = []
        closure = self._closure_around(event.serial)
        for tensor in tensors:
            for portion in self.held.get(tensor, ()):
                source = portion.source
                evaluated = closure is not None and source is not None and source.serial > closure.serial
                if source is not None and not portion.uses and not portion.skipped and not evaluated:
                    unused.append(portion)
            self.held[tensor] = []
            (self._zeros.add if zeros else self._zeros.discard)(tensor)
        if not unused:
            return
        clearing = Clearing(event, tuple(unused))
        if not self._replaying:
            self.clearings.append(clearing)
        holders = {o for portion in unused for o in self._facts.gradients.optimizers(portion.tensor)}
        for optimizer in holders:
            self._cleared.setdefault(optimizer, []).append(clearing)

    def _closure_around(self, serial: Serial) -> OptimizerStep | None:
        """Returns the step whose closure is running: it looks at each gradient that the closure made."""
        place = bisect_left(self._closures, serial, key=lambda step: step.serial) - 1
        step = self._closures[place] if place >= 0 else None
        return step if step is not None and serial < step.end else None

    def _write(self, tensors: Iterable[TensorId]) -> None:
        """Somebody gave a gradient a value by hand: what it held before is not told any more."""
        for tensor in tensors:
            self.held[tensor] = [Portion(tensor, None)]
            self._zeros.discard(tensor)
            self._filled[tensor] = self._moments

    def _change(self, op: Op) -> None:
        """An operation may have changed a gradient in place."""
        name = op.name.rpartition(".")[2]
        if op.name == ASSIGNMENT and op.inputs:
            self._write(self.owners(op.inputs[0].tensor))
            return
        for change in op.changed:
            owners = self.owners(change.tensor)
            if name in _ZEROING:
                # A `ZeroGrad` follows where it was the gradient itself, not another view of its memory.
                if name == "_foreach_zero_" or change.tensor not in self._gradients:
                    self._clear(op, owners, zeros=True)
            elif name in _OVERWRITING:
                self._write(owners)
            else:
                # Scaled or clipped before its use it is what it was; afterwards somebody wears it down.
                worn = (t for t in owners if self.held.get(t) and all(p.uses for p in self.held[t]))
                self._write(tuple(worn))

    def _step(self, step: OptimizerStep) -> None:
        parameters = self._facts.gradients.parameters(step.optimizer)
        bare, changed = set(step.without_grad), {change.tensor for change in step.changed}
        took_part = changed.union(step.unchanged)
        held: dict[TensorId, tuple[Held, ...]] = {}
        for tensor in parameters:
            portions = self.held.setdefault(tensor, [])
            if tensor in took_part and tensor not in bare:
                if not portions and tensor not in self._zeros:
                    portions.append(Portion(tensor, None))
                held[tensor] = tuple([Held(portion, tuple(portion.uses.values())) for portion in portions])
            elif tensor in bare:
                portions.clear()
                self._zeros.discard(tensor)
        if not self._replaying:
            self.uses.append(self._use(step, parameters, held))
        for tensor in held:
            portions = self.held[tensor]
            for portion in portions:
                portion.uses[step.optimizer] = step
            if len(portions) > _MOST_USED:
                # All of them are used now: the first and the last ones tell the story.
                del portions[1 : 1 - _MOST_USED]
        self._stepped[step.optimizer] = self._moments
        self._previous[step.optimizer] = step
        self._cleared[step.optimizer] = []

    def _use(
        self,
        step: OptimizerStep,
        parameters: tuple[TensorId, ...],
        held: Mapping[TensorId, tuple[Held, ...]],
    ) -> Use:
        since = self._stepped.get(step.optimizer, -1)
        return Use(
            step=step,
            held=held,
            previous=self._previous.get(step.optimizer),
            filled=any(self._filled.get(tensor, -1) > since for tensor in parameters),
            cleared=tuple(self._cleared.get(step.optimizer, ())),
        )


def _in_time(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Returns events in the order of their effects: a step uses what is there when its closure has run."""
    return sorted(events, key=_moment)


def _moment(event: AnyEvent) -> Serial:
    return event.end if isinstance(event, OptimizerStep) and event.closure else event.serial
