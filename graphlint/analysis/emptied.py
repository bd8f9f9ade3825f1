"""Gradients that are zeroed before the step that they were there for.

May import `record` and the rest of `analysis`. Zeroing unused gradients is right in many places: a loss of
another network came by, a step was skipped for an infinity, a gradient was looked at by hand. Told is what
can't be meant: a step that finds nothing because it was all zeroed; all backwards but the last before each
step zeroed, as regularly as no condition on data would; and a rest of a gradient that is accumulated over
several backwards.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.account import Clearing, Use
from graphlint.record.events import Backward, HostRead, Op, OptimizerStep, ZeroGrad
from graphlint.record.identity import OptimizerId, Serial, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_TWICE = 2
_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Emptied:
    """Gradients that were zeroed before a step used them.

    Attributes:
        kind: `all`: the step found nothing; `most`: it found the last of several backwards; `rest`: what
            was left of an accumulated gradient went to no step.
        optimizer: whose parameters.
        parameters: which of them.
        zero: what zeroed them.
        backward: the last backward whose gradients were lost.
        lost: how many backwards in a row were lost, for one step.
        step: the step that came too late; for `rest`, the last one before.
        used: how many backwards the step used.
    """

    kind: Literal["all", "most", "rest"]
    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    zero: ZeroGrad | Op
    backward: Backward
    lost: int
    step: OptimizerStep
    used: int


class EmptiedGradients:
    """Finds gradients that were zeroed too early."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._ledger = facts.ledger

    def all(self) -> Iterator[Emptied]:
        """Yields what was zeroed too early, by optimizer, in time order."""
        for optimizer in self._facts.trace.optimizers:
            uses = self._uses(optimizer)
            found = [lost for line in _by_line(uses) for lost in self._line(optimizer, line, len(uses))]
            yield from found or self._rest(optimizer, uses)

    def _uses(self, optimizer: OptimizerId) -> list[Use]:
        return [u for u in self._ledger.of(optimizer) if not self._ledger.inside_backward(u.step.serial)]

    def _line(self, optimizer: OptimizerId, uses: list[Use], all_uses: int) -> list[Emptied]:
        empty = self._always_empty(optimizer, uses)
        if empty:
            often = sum(self._ledger.sightings(one.step) for one in empty)
            alone = all_uses == 1
            least = _TWICE if not any(self._served_others(one.backward) for one in empty) else _SEEN_OFTEN
            return empty if alone or often >= least else []
        return self._all_but_the_last(optimizer, uses)

    # --- nothing left ------------------------------------------------------------------------------------

    def _always_empty(self, optimizer: OptimizerId, uses: list[Use]) -> list[Emptied]:
        """Returns what was lost before the steps of one line, if none of them ever found a gradient."""
        found: list[Emptied] = []
        proved = by_hand = False
        for use in uses:
            parameters = self._facts.reach.trainable(optimizer, use.step.serial)
            written = {change.tensor for change in use.step.changed} & set(use.step.without_grad)
            held = any(use.held.get(tensor) for tensor in parameters)
            if held and by_hand and not self._ledger.seen(use.step.serial, use.step.end):
                continue  # Clearing by hand goes unseen where a step is only watched.
            if not parameters or written or held:
                return []
            lost = self._lost(use, set(parameters))
            if not lost:
                continue
            zero, backward, tensors = lost[-1]
            proved = proved or self._ledger.seen(backward.serial, use.step.end)
            by_hand = isinstance(zero, Op) or zero.tensor is not None
            found.append(Emptied("all", optimizer, tensors, zero, backward, len(lost), use.step, 0))
        return found if proved else []

    def _lost(
        self, use: Use, parameters: set[TensorId]
    ) -> list[tuple[ZeroGrad | Op, Backward, tuple[TensorId, ...]]]:
        """Returns the backwards whose gradients were zeroed since the last step, and what zeroed them."""
        found: dict[Serial, tuple[ZeroGrad | Op, Backward, tuple[TensorId, ...]]] = {}
        for clearing in use.cleared:
            for backward, tensors in self._sources(clearing, parameters).items():
                before = found[backward.serial][2] if backward.serial in found else ()
                found[backward.serial] = (clearing.event, backward, (*before, *tensors))
        return [found[serial] for serial in sorted(found)]

    def _sources(self, clearing: Clearing, parameters: set[TensorId]) -> dict[Backward, tuple[TensorId, ...]]:
        found: dict[Backward, list[TensorId]] = {}
        for portion in clearing.unused:
            if portion.source is not None and portion.tensor in parameters:
                found.setdefault(self._ledger.outermost(portion.source), []).append(portion.tensor)
        return {backward: tuple(tensors) for backward, tensors in found.items()}

    # --- only the last left ------------------------------------------------------------------------------

    def _all_but_the_last(self, optimizer: OptimizerId, uses: list[Use]) -> list[Emptied]:
        """Returns what was lost before the steps of one line, if each but perhaps the first lost some."""
        found: list[Emptied] = []
        numbers: set[int] = set()
        for index, use in enumerate(uses):
            lost = self._repeated(optimizer, use)
            if lost is None and index:
                return []
            if lost is not None:
                found.append(lost)
                numbers.add(lost.lost)
        if len(numbers) > 1 or not any(self._ledger.seen(f.backward.serial, f.step.end) for f in found):
            return []  # That nobody took the gradients first isn't known of steps that are only watched.
        often = sum(self._ledger.sightings(one.step) for one in found)
        free = not self._reads(found) and len(found) == len(uses)
        return found if often >= (_TWICE if free else _SEEN_OFTEN) else []

    def _repeated(self, optimizer: OptimizerId, use: Use) -> Emptied | None:
        """Returns what was lost before a step that used a later backward of the very same loss."""
        parameters = set(self._facts.reach.trainable(optimizer, use.step.serial))
        fresh = self._fresh(use, parameters)
        lost = [
            one
            for one in self._lost(use, parameters)
            if fresh and self._ledger.same_loss(one[1], fresh[-1]) and one[1].serial < fresh[-1].serial
        ]
        if not lost or any(self._may_serve(backward, zero, tensors) for zero, backward, tensors in lost):
            return None
        if not self._ledger.looked_at.isdisjoint(parameters):
            return None
        zero, backward, tensors = lost[-1]
        return Emptied("most", optimizer, tensors, zero, backward, len(lost), use.step, len(fresh))

    def _fresh(self, use: Use, parameters: set[TensorId]) -> list[Backward]:
        """Returns the backwards that a step used for the first time, in time order."""
        found: dict[Serial, Backward] = {}
        for tensor, held in use.held.items():
            for one in held if tensor in parameters else ():
                mine = any(step.optimizer == use.step.optimizer for step in one.before)
                if one.portion.source is not None and not mine:
                    backward = self._ledger.outermost(one.portion.source)
                    found[backward.serial] = backward
        return [found[serial] for serial in sorted(found)]

    def _may_serve(self, backward: Backward, zero: ZeroGrad | Op, tensors: tuple[TensorId, ...]) -> bool:
        """Tells whether a backward may have been there for something else than the gradients zeroed."""
        if self._served_others(backward) or not self._optimized.issuperset(backward.reached):
            return True
        return any(self._ledger.taken(tensor, backward.serial, zero.serial) for tensor in tensors)

    def _served_others(self, backward: Backward) -> bool:
        """Tells whether a step of any optimizer used a backward."""
        return bool(self._ledger.steps_on(backward))

    @cached_property
    def _optimized(self) -> frozenset[TensorId]:
        """All parameters of all optimizers: a gradient of anything else may be what was wanted."""
        gradients = self._facts.gradients
        return frozenset(t for o in self._facts.trace.optimizers for t in gradients.parameters(o))

    def _reads(self, found: list[Emptied]) -> bool:
        """Tells whether a value was read into Python meanwhile: a condition may have skipped the steps."""
        first, last = found[0].backward.serial, found[-1].step.serial
        if not self._ledger.seen(first, last):
            return True
        return any(isinstance(e, HostRead) and first < e.serial < last for e in self._facts.trace.events)

    # --- the rest of an accumulated gradient -------------------------------------------------------------

    def _rest(self, optimizer: OptimizerId, uses: list[Use]) -> Iterator[Emptied]:
        """Yields the backwards that were zeroed though too few for a step, where a step takes several."""
        if not uses:
            return
        parameters = set(self._facts.reach.trainable(optimizer, uses[0].step.serial))
        groups = [self._fresh(use, parameters) for use in uses]
        whole = len(groups[0])
        often = sum(self._ledger.sightings(use.step) for use in uses) >= _TWICE
        if whole < _TWICE or not often or any(len(group) != whole for group in groups):
            return
        if any(self._ledger.ever_taken(tensor) for tensor in parameters):
            return
        for clearing in self._ledger.clearings:
            lost = self._sources(clearing, parameters)
            if not lost or len(lost) >= whole or not self._routine(clearing.event):
                continue
            before = [use for use in uses if use.step.end < min(b.serial for b in lost)]
            alike = all(self._ledger.same_loss(b, groups[0][-1]) for b in lost)
            if alike and before and not any(self._may_serve(b, clearing.event, t) for b, t in lost.items()):
                last = max(lost, key=lambda backward: backward.serial)
                step = before[-1].step
                yield Emptied("rest", optimizer, lost[last], clearing.event, last, len(lost), step, whole)

    def _routine(self, event: ZeroGrad | Op) -> bool:
        """Tells whether the line that zeroed is also run where it takes nothing away."""
        return event.site in self._routine_sites

    @cached_property
    def _routine_sites(self) -> frozenset[SiteId | None]:
        unused = {clearing.event.serial for clearing in self._ledger.clearings}
        events = (event for event in self._facts.trace.events if isinstance(event, ZeroGrad))
        return frozenset(event.site for event in events if event.serial not in unused)


def _by_line(uses: Iterable[Use]) -> list[list[Use]]:
    """Returns the steps of each line."""
    lines: dict[SiteId | None, list[Use]] = {}
    for use in uses:
        lines.setdefault(use.step.site, []).append(use)
    return list(lines.values())
