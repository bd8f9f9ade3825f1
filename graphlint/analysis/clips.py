"""Clips of gradients: which of them a step felt, and which came when there was nothing to clip, or too late.

May import `record` and the rest of `analysis`. What a place in the source does is told from all its
sightings: a clip that a step feels now and then is where it should be.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.gradients import Moment
from graphlint.record.events import (
    Backward,
    GradientClip,
    GradRead,
    GradWrite,
    Op,
    OptimizerStep,
    ZeroGrad,
)
from graphlint.record.identity import Serial, SiteId, StorageId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Kind = Literal["felt", "late", "empty", "partial", "unknown"]

_SEEN_OFTEN = 2
_CLAMPS = frozenset({"clamp_", "clip_"})


@dataclass(frozen=True, slots=True)
class Clipped:
    """A sighting of a clip.

    Attributes:
        clip: the call.
        kind: `felt` by a step (or by the user's code); `late`: a step had used the gradients already;
            `empty`: there were none yet; `partial`: more was added to them before the step.
        tensor: a parameter by which that is told.
        cleared: what cleared its gradient afterwards (`late`) or before (`empty`).
        filled: the backward that came next for it.
        step: the step that used its gradient unclipped.
        instead: the next step where the clip is of the wrong parameters: it uses gradients of others, just
            computed, that nothing ever clips.
    """

    clip: GradientClip
    kind: Kind
    tensor: TensorId | None = None
    cleared: ZeroGrad | None = None
    filled: Backward | None = None
    step: OptimizerStep | None = None
    instead: OptimizerStep | None = None


class Clips:
    """The clips of a trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def misplaced(self) -> Iterator[tuple[Clipped, ...]]:
        """Yields the sightings of each call that no step ever felt."""
        felt = {t for one in self._all if one.kind == "felt" for t in one.clip.parameters}
        for sightings in self._by_site.values():
            told = [one for one in sightings if one.kind != "unknown"]
            if not told or any(one.kind == "felt" for one in told):
                continue
            often = sum(1 + self._facts.steps.repeats(one.clip.serial) for one in told) >= _SEEN_OFTEN
            if often and felt.isdisjoint(t for one in told for t in one.clip.parameters):
                yield tuple(told)
            elif often and all(one.kind == "late" for one in told):
                missed = [self._missed(one.clip, felt) for one in told]
                if all(step is not None for step in missed):
                    yield tuple(replace(one, instead=step) for one, step in zip(told, missed, strict=True))

    def _missed(self, clip: GradientClip, felt: set[TensorId]) -> OptimizerStep | None:
        """Returns the step right after a clip that uses other gradients, which nothing ever clips.

        Nothing but a backward for that step lies before the clip since any step, and nothing between them.
        """
        steps = self._facts.gradients.all_steps
        place = bisect_left(steps, clip.serial, key=_begin)
        if place in {0, len(steps)}:
            return None
        before, after = steps[place - 1], steps[place]
        used = {change.tensor for change in after.changed}
        mine = set(clip.parameters)
        filled = [b for b in self._facts.graphs.backwards if before.serial < b.serial < after.serial]
        if not used or used & (felt | mine) or len(filled) != 1 or filled[0].serial > clip.serial:
            return None
        reached = set(filled[0].reached)
        return after if used <= reached and mine.isdisjoint(reached) else None

    def refused(self) -> Iterator[GradientClip]:
        """Yields the clips that torch refused because no gradient had been computed since the last use."""
        for event in self._facts.trace.events:
            if isinstance(event, GradientClip) and event.error is not None and not event.with_grad:
                held = [t for t in event.parameters if self._facts.gradients.optimizers(t)]
                lives = [self._before(tensor, event) for tensor in held]
                if held and not any(moment is not None and moment.kind == "filled" for moment in lives):
                    yield event

    @cached_property
    def _all(self) -> tuple[Clipped, ...]:
        return tuple(self._sighting(clip) for clip in self._calls)

    @cached_property
    def _calls(self) -> tuple[GradientClip, ...]:
        """The clips that set a limit and did not raise, those written out by hand included."""
        found: list[GradientClip] = []
        for event in self._facts.trace.events:
            if isinstance(event, GradientClip) and event.limit is not None and event.error is None:
                found.append(event)
            elif isinstance(event, Op) and event.name.rpartition(".")[2] in _CLAMPS:
                found += self._by_hand(event)
        return tuple(found)

    def _by_hand(self, op: Op) -> Iterator[GradientClip]:
        """Yields an operation that limits the values of a gradient in place as the clip that it is."""
        for change in op.changed:
            owner = self._owners.get(self._facts.values.storage(change.tensor))
            if owner is not None and op.site not in self._called:
                yield GradientClip(
                    serial=op.serial,
                    site=op.site,
                    call="clip_grad_value_",
                    parameters=(owner,),
                    with_grad=(owner,),
                    limit=0.0,
                )

    @cached_property
    def _called(self) -> frozenset[SiteId | None]:
        """The places that call torch's own clipping."""
        return frozenset(e.site for e in self._facts.trace.events if isinstance(e, GradientClip))

    @cached_property
    def _owners(self) -> dict[StorageId | None, TensorId]:
        """The tensors whose gradients the user's code took into its hands, by the gradient's memory."""
        reads = (e for e in self._facts.trace.events if isinstance(e, GradRead | GradWrite))
        return {self._facts.values.storage(read.grad): read.tensor for read in reads}

    @cached_property
    def _by_site(self) -> dict[SiteId, list[Clipped]]:
        found: dict[SiteId, list[Clipped]] = {}
        for one in self._all:
            if one.clip.site is not None:
                found.setdefault(one.clip.site, []).append(one)
        return found

    def _sighting(self, clip: GradientClip) -> Clipped:
        if any(
            step.closure and step.serial < clip.serial < step.end for step in self._facts.gradients.all_steps
        ):
            return Clipped(clip, "felt")
        found: dict[Kind, Clipped] = {}
        for tensor in clip.parameters:
            if self._facts.gradients.optimizers(tensor):
                one = self._of(clip, tensor)
                if one.kind == "felt":
                    return one
                found.setdefault(one.kind, one)
        order: tuple[Kind, ...] = ("late", "empty", "partial")
        return next((found[kind] for kind in order if kind in found), Clipped(clip, "unknown"))

    def _of(self, clip: GradientClip, tensor: TensorId) -> Clipped:
        """Returns what a clip did to the gradient of one parameter."""
        before, after = self._before(tensor, clip), self._after(tensor, clip)
        if after is None:
            return Clipped(clip, "unknown")
        if after.kind == "used" or self._facts.ledger.taken(tensor, clip.serial, after.serial):
            return Clipped(clip, "felt", tensor)
        state = "cleared" if before is None or tensor not in clip.with_grad else before.kind
        cleared = after.event if isinstance(after.event, ZeroGrad) else None
        if state == "used" and before is not None and isinstance(before.event, OptimizerStep):
            return Clipped(clip, "late", tensor, cleared, self._fill_after(tensor, clip), before.event)
        filled, step = self._fill_after(tensor, clip), self._step_after(tensor, clip)
        if cleared is not None or filled is None or step is None:
            return Clipped(clip, "unknown")
        if state == "cleared":
            earlier = before.event if before is not None and isinstance(before.event, ZeroGrad) else None
            return Clipped(clip, "empty", tensor, earlier, filled, step)
        return Clipped(clip, "partial", tensor, None, filled, step)

    def _before(self, tensor: TensorId, clip: GradientClip) -> Moment | None:
        """Returns what happened last to a gradient before a clip."""
        life = self._facts.gradients.life(tensor)
        place = bisect_left(life, clip.serial, key=_serial)
        return life[place - 1] if place else None

    def _after(self, tensor: TensorId, clip: GradientClip) -> Moment | None:
        """Returns what happened next to a gradient after a clip, apart from what the user wrote to it."""
        return next((moment for moment in self._later(tensor, clip) if moment.kind != "assigned"), None)

    def _later(self, tensor: TensorId, clip: GradientClip) -> tuple[Moment, ...]:
        life = self._facts.gradients.life(tensor)
        return life[bisect_left(life, clip.serial, key=_serial) :]

    def _fill_after(self, tensor: TensorId, clip: GradientClip) -> Backward | None:
        events = (moment.event for moment in self._later(tensor, clip))
        return next((event for event in events if isinstance(event, Backward)), None)

    def _step_after(self, tensor: TensorId, clip: GradientClip) -> OptimizerStep | None:
        events = (moment.event for moment in self._later(tensor, clip))
        return next((event for event in events if isinstance(event, OptimizerStep)), None)


def _begin(step: OptimizerStep) -> Serial:
    return step.serial


def _serial(moment: Moment) -> Serial:
    return moment.serial
