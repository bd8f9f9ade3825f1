"""Gradient scalers: which gradients are scaled, and where the calls of a scaler go against what it expects.

May import `record` and the rest of `analysis`. Whether a loss was scaled is told by the value graph, so only
where it was recorded in full; the order of the calls is known at both levels.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.record.events import Backward, GradientClip, OptimizerStep, ScalerCall
from graphlint.record.identity import OptimizerId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Kind = Literal[
    "unscaled backward",
    "step past the scaler",
    "update missing",
    "unscaled twice",
    "unscaled after step",
    "update before step",
    "backward after unscaling",
    "update without step",
]

_MEANT_FOR_SCALED = 1000.0
"""A limit this high may be one that was multiplied by the scale."""


@dataclass(frozen=True, slots=True)
class Misuse:
    """A call that goes against what a scaler expects.

    Attributes:
        kind: in which way.
        call: the scaler's call at fault, or the one that the fault comes to light in.
        optimizer: the optimizer concerned.
        earlier: the scaler's call that it doesn't go with.
        backward: the backward concerned.
        step: the optimizer's step that went past the scaler.
    """

    kind: Kind
    call: ScalerCall
    optimizer: OptimizerId | None = None
    earlier: ScalerCall | None = None
    backward: Backward | None = None
    step: OptimizerStep | None = None


@dataclass(frozen=True, slots=True)
class ScaledClip:
    """A clip of gradients that were scaled: `backward` made them so, `step` unscales them later."""

    clip: GradientClip
    backward: Backward
    step: ScalerCall
    unscale: ScalerCall | None


class Scaling:
    """The scalers of a trace; those that are switched off left out."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def calls(self) -> tuple[ScalerCall, ...]:
        """The calls of scalers that are switched on, in time order."""
        return tuple(e for e in self._facts.trace.events if isinstance(e, ScalerCall) and e.enabled)

    def misuses(self) -> Iterator[Misuse]:
        """Yields what goes against a scaler, the sightings of each in time order."""
        if not self.calls:
            return
        past = list(self._past())
        yield from past
        for scaler, optimizer in dict.fromkeys((call.scaler, call.optimizer) for call in self.calls):
            if optimizer is not None:
                yield from _causes(tuple(self._of(scaler, optimizer)))
        if not past:
            yield from self._idle_updates()

    def scaled_clips(self) -> Iterator[ScaledClip]:
        """Yields the clips of gradients that are unscaled only later."""
        if not self.calls:
            return
        for event in self._facts.trace.events:
            if (
                isinstance(event, GradientClip)
                and event.limit is not None
                and event.limit < _MEANT_FOR_SCALED
            ):
                found = self._scaled_clip(event)
                if found is not None:
                    yield found

    # --- scaled or not ------------------------------------------------------------------------------------

    def scaled(self, backward: Backward) -> bool | None:
        """Tells whether a backward's loss was scaled; None where the record can't tell."""
        step = self._facts.steps.of(backward.serial)
        if not backward.roots or step is None or step.level != "full":
            return None
        complete = True
        for root in backward.roots:
            flow = self._facts.values.flow(root, backward.serial)
            if not flow.tensors.isdisjoint(self._scaled_tensors):
                return True
            complete = complete and not any(self._wants_gradients(tensor) for tensor in flow.orphans)
        return None if not complete or self._read_before(backward.serial) else False

    @cached_property
    def _scaled_tensors(self) -> frozenset[TensorId]:
        return frozenset(tensor for call in self.calls for tensor in call.scaled)

    def _wants_gradients(self, tensor: TensorId) -> bool:
        row = self._facts.trace.tensors.get(tensor)
        return row is None or row.requires_grad

    def _read_before(self, serial: Serial) -> bool:
        """Tells whether the user's code had asked for the scale, and may scale by hand."""
        return any(call.method == "get_scale" and call.serial < serial for call in self.calls)

    def portions(self, optimizer: OptimizerId, at: Serial) -> tuple[Backward, ...]:
        """Returns the backwards whose gradients the parameters of an optimizer hold at a moment."""
        found: dict[Serial, Backward] = {}
        for tensor in self._facts.gradients.parameters(optimizer):
            life = self._facts.gradients.life(tensor)
            for moment in reversed(life[: bisect_left(life, at, key=lambda moment: moment.serial)]):
                if moment.kind in {"used", "cleared", "assigned"}:
                    break
                if isinstance(moment.event, Backward):
                    found[moment.serial] = moment.event
        return tuple(found[serial] for serial in sorted(found))

    # --- past the scaler ----------------------------------------------------------------------------------

    def _past(self) -> Iterator[Misuse]:
        """Yields the steps that used scaled gradients as they were, without the scaler."""
        for step in self._facts.gradients.all_steps:
            if step.error is not None or self._by_scaler(step) or self._read_before(step.serial):
                continue
            for backward in self.portions(step.optimizer, step.serial):
                if self._unscaled(step.optimizer, backward.serial, step.serial) is None and self.scaled(
                    backward
                ):
                    scale = self._scale_of(backward)
                    if scale is not None:
                        yield Misuse("step past the scaler", scale, step.optimizer, None, backward, step)
                    break

    def _by_scaler(self, step: OptimizerStep) -> bool:
        """Tells whether a scaler made an optimizer step: the same line of the user's asked for both."""
        asked = [call for call in self._steps_of(step.optimizer) if call.serial < step.serial]
        return bool(asked) and asked[-1].site == step.site

    def _steps_of(self, optimizer: OptimizerId) -> Iterator[ScalerCall]:
        return (call for call in self.calls if call.method == "step" and call.optimizer == optimizer)

    def _scale_of(self, backward: Backward) -> ScalerCall | None:
        scales = [c for c in self.calls if c.method == "scale" and c.serial < backward.serial]
        return scales[-1] if scales else None

    def _unscaled(self, optimizer: OptimizerId, after: Serial, before: Serial) -> ScalerCall | None:
        """Returns the call that unscaled an optimizer's gradients between two serials."""
        for call in self.calls:
            if call.method == "unscale_" and call.optimizer == optimizer and after < call.serial < before:
                return call
        return None

    # --- the order of the calls ---------------------------------------------------------------------------

    def _of(self, scaler: int, optimizer: OptimizerId) -> Iterator[Misuse]:
        """Yields what is out of order among the calls of one scaler for one optimizer."""
        unscaled: ScalerCall | None = None
        stepped: ScalerCall | None = None
        updated: ScalerCall | None = None
        for call in (call for call in self.calls if call.scaler == scaler):
            if call.method == "update":
                stepped, updated = None, call if unscaled is not None else None
            elif call.optimizer != optimizer:
                continue
            elif call.method == "step":
                yield from self._step(call, optimizer, unscaled, stepped, updated)
                unscaled, stepped, updated = None, call, None
            elif call.method == "unscale_":
                yield from self._unscale(call, optimizer, unscaled, stepped, updated)
                unscaled, updated = call, None

    def _step(
        self,
        call: ScalerCall,
        optimizer: OptimizerId,
        unscaled: ScalerCall | None,
        stepped: ScalerCall | None,
        updated: ScalerCall | None,
    ) -> Iterator[Misuse]:
        if stepped is not None:
            yield Misuse("update missing", stepped, optimizer, call)
            return
        for backward in self.portions(optimizer, call.serial):
            if self.scaled(backward) is False:
                yield Misuse("unscaled backward", call, optimizer, None, backward)
        if unscaled is None:
            return
        later = self._filled(optimizer, unscaled.serial, call.serial)
        if later is None and updated is not None and unscaled.error is None:
            yield Misuse("update before step", updated, optimizer, unscaled)
        elif later is not None and updated is None and self.scaled(later) is not False:
            yield Misuse("backward after unscaling", unscaled, optimizer, call, later)

    def _unscale(
        self,
        call: ScalerCall,
        optimizer: OptimizerId,
        unscaled: ScalerCall | None,
        stepped: ScalerCall | None,
        updated: ScalerCall | None,
    ) -> Iterator[Misuse]:
        if stepped is not None:
            anew = self._filled(optimizer, stepped.serial, call.serial) is not None
            yield Misuse("update missing" if anew else "unscaled after step", stepped, optimizer, call)
        elif unscaled is not None and updated is None:
            yield Misuse("unscaled twice", call, optimizer, unscaled)

    def _filled(self, optimizer: OptimizerId, after: Serial, before: Serial) -> Backward | None:
        """Returns the first backward between two serials that filled gradients of an optimizer."""
        held = set(self._facts.gradients.parameters(optimizer))
        for backward in self._facts.graphs.backwards:
            fills = backward.call != "autograd.grad" and backward.error is None
            if fills and after < backward.serial < before and not held.isdisjoint(backward.reached):
                return backward
        return None

    def _idle_updates(self) -> Iterator[Misuse]:
        """Yields the updates that torch refused because nothing was unscaled since the one before."""
        last: dict[int, ScalerCall] = {}
        for call in self.calls:
            if call.method == "update":
                if call.error is not None and call.scaler not in last:
                    yield Misuse("update without step", call)
                last.pop(call.scaler, None)
            elif call.method in {"step", "unscale_"}:
                last[call.scaler] = call

    # --- clips --------------------------------------------------------------------------------------------

    def _scaled_clip(self, clip: GradientClip) -> ScaledClip | None:
        for optimizer in dict.fromkeys(
            o for tensor in clip.with_grad for o in self._facts.gradients.optimizers(tensor)
        ):
            step = next((call for call in self._steps_of(optimizer) if call.serial > clip.serial), None)
            if step is None or self._read_before(clip.serial):
                continue
            portions = self.portions(optimizer, clip.serial)
            if not portions or self._unscaled(optimizer, portions[-1].serial, clip.serial) is not None:
                continue
            if self.scaled(portions[-1]) and self.portions(optimizer, step.serial) == portions:
                return ScaledClip(
                    clip, portions[-1], step, self._unscaled(optimizer, clip.serial, step.serial)
                )
        return None


def _causes(misuses: tuple[Misuse, ...]) -> Iterator[Misuse]:
    """Yields the misuses without what an update at the wrong place, which is reported, leads to."""
    early = any(misuse.kind == "update before step" for misuse in misuses)
    for misuse in misuses:
        if not (early and misuse.kind in {"update missing", "unscaled after step"}):
            yield misuse
