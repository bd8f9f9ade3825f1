"""Optimizers that hold tensors which the model has put others in the place of.

May import `record` and the rest of `analysis`. A tensor without a gradient proves nothing by itself: what
took its place must be known, by its place in the module, or because the optimizer was there before all of the
new parameters and has nothing else left.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import Backward, OptimizerStep, Repeat, ZeroGrad
from graphlint.record.identity import ModuleId, OptimizerId, Serial, TensorId
from graphlint.record.tables import Optimizer

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Stale:
    """An optimizer with tensors that the model no longer uses.

    Attributes:
        optimizer: which one.
        tensors: what it holds in vain.
        replacements: the parameters that the model uses instead.
        untrained: those of `replacements` that no optimizer holds.
        step: its first step without a gradient for the tensors.
        steps: how many such steps there were, up to the end of the run.
        whole: whether nothing that it was meant to train is left.
        backward: the first backward that reached a replacement.
    """

    optimizer: OptimizerId
    tensors: tuple[TensorId, ...]
    replacements: tuple[TensorId, ...]
    untrained: tuple[TensorId, ...]
    step: OptimizerStep
    steps: int
    whole: bool
    backward: Backward


class StaleOptimizers:
    """Finds the optimizers whose tensors were replaced."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Stale, ...]:
        """The stale optimizers, in the order of the record."""
        found = []
        for optimizer in self._facts.trace.optimizers:
            steps = [s for s in self._facts.gradients.steps(optimizer) if s.error is None]
            stale = self._of(optimizer, steps) if steps else None
            if stale is not None:
                found.append(stale)
        return tuple(found)

    @cached_property
    def tensors(self) -> frozenset[TensorId]:
        """What optimizers hold in vain."""
        return frozenset(tensor for stale in self.all for tensor in stale.tensors)

    @cached_property
    def replacements(self) -> frozenset[TensorId]:
        """What took their places."""
        return frozenset(tensor for stale in self.all for tensor in stale.replacements)

    def _of(self, optimizer: OptimizerId, steps: list[OptimizerStep]) -> Stale | None:
        meant = self._facts.reach.trainable(optimizer, steps[-1].serial)
        since = {tensor: place for tensor in meant if (place := self._idle_since(tensor, steps)) is not None}
        if not since:
            return None
        replaced = self._replaced(tuple(since), tuple(meant), optimizer, steps, since)
        if not replaced:
            return None
        begin = min(since[tensor] for tensor in replaced)
        idle = steps[begin:]
        count = sum(1 + self._facts.steps.repeats(step.serial) for step in idle)
        new = tuple(dict.fromkeys(tensor for news in replaced.values() for tensor in news))
        backward = self._first_reaching(new, self._begin(steps, begin))
        if count < _SEEN_OFTEN or backward is None:
            return None
        left_out = self._facts.optimized.left_out
        return Stale(
            optimizer=optimizer,
            tensors=tuple(replaced),
            replacements=new,
            untrained=tuple(tensor for tensor in new if tensor in left_out),
            step=idle[0],
            steps=count,
            whole=len(replaced) == len(meant),
            backward=backward,
        )

    def _idle_since(self, tensor: TensorId, steps: list[OptimizerStep]) -> int | None:
        """Returns the index of the step from which on the tensor never had a gradient again."""
        place = len(steps)
        while place and self._is_idle(tensor, self._begin(steps, place - 1), steps[place - 1]):
            place -= 1
        if place == len(steps) or self._repeated_with(tensor, steps[place].serial):
            return None
        return place

    def _is_idle(self, tensor: TensorId, after: Serial, step: OptimizerStep) -> bool:
        """Tells whether a step found no gradient of the tensor, or zeros that zero_grad had left."""
        moments = self._facts.gradients.between(tensor, after, step.end)
        if any(moment.kind in {"filled", "assigned"} for moment in moments):
            return False
        cleared = [moment.event for moment in moments if moment.kind == "cleared"]
        zeroed = cleared and isinstance(cleared[-1], ZeroGrad) and not cleared[-1].set_to_none
        return tensor in step.without_grad or bool(zeroed)

    def _begin(self, steps: list[OptimizerStep], place: int) -> Serial:
        return steps[place - 1].end if place else Serial(-1)

    def _repeated_with(self, tensor: TensorId, after: Serial) -> bool:
        """Tells whether steps that were only counted, later than a serial, gave the tensor a gradient."""
        for event in self._facts.trace.events:
            if isinstance(event, Repeat) and event.serial > after:
                like = self._by_boundary.get(event.like, ())
                if any(isinstance(e, Backward) and tensor in e.reached for e in like):
                    return True
        return False

    @cached_property
    def _by_boundary(self) -> dict[Serial, tuple[object, ...]]:
        return {step.boundary: step.events for step in self._facts.steps.all if step.boundary is not None}

    # --- what took the place -----------------------------------------------------------------------------

    def _replaced(
        self,
        idle: tuple[TensorId, ...],
        meant: tuple[TensorId, ...],
        optimizer: OptimizerId,
        steps: list[OptimizerStep],
        since: dict[TensorId, int],
    ) -> dict[TensorId, tuple[TensorId, ...]]:
        """Returns the idle tensors that were replaced, each with what took its place."""
        row = self._facts.trace.optimizers[optimizer]
        by_place = {t: news for t in idle if (news := self._at_its_place(t) or self._in_its_module(t, row))}
        if by_place:
            return by_place
        begin = self._begin(steps, min(since.values()))
        left_out = self._facts.optimized.left_out
        late = tuple(t for t in self._left_out_since(row) if left_out[t][-1].serial > begin)
        new = late or self._taken_over(idle, begin)
        if not new:
            return {}
        if len(idle) == len(meant):
            return {} if self._used(idle, new, begin) else dict.fromkeys(idle, new)
        roots = self._idle_roots(idle)
        old = tuple(tensor for tensor in idle if self._facts.optimized.roots(tensor) & roots)
        same = old and self._structure(old) == self._structure(new)
        return dict.fromkeys(old, new) if same and not self._used(old, new, begin) else {}

    def _at_its_place(self, tensor: TensorId) -> tuple[TensorId, ...]:
        """Returns the parameters that were found later where the tensor had been, and got gradients."""
        found: dict[TensorId, None] = {}
        for place in self._facts.names.places(tensor):
            spots = self._spots[self._spot(place.module, place.name)]
            found.update(dict.fromkeys(spots[spots.index(tensor) + 1 :]))
        for placed in self._facts.optimized.placements(tensor):
            later = self._facts.optimized.at(placed.owner, placed.name)
            found.update(dict.fromkeys(event.tensor for event in later if event.serial > placed.serial))
        found.pop(tensor, None)
        return tuple(new for new in found if new in self._facts.reach.ever_reached)

    def _in_its_module(self, tensor: TensorId, optimizer: Optimizer) -> tuple[TensorId, ...]:
        """Returns the parameters that the tensor's module got later, as weight normalisation gives it."""
        owners = {event.owner for event in self._facts.optimized.placements(tensor)}
        found: dict[TensorId, None] = {}
        for new in self._left_out_since(optimizer):
            given = self._facts.optimized.placements(new)
            if any(event.owner in owners for event in given) or self._parametrizes(new, tensor):
                found[new] = None
        return tuple(found)

    def _parametrizes(self, new: TensorId, tensor: TensorId) -> bool:
        """Tells whether a parameter belongs to a parametrization in the module that holds a tensor."""
        for place in self._facts.names.places(tensor):
            owner = self._facts.trace.modules.get(place.module)
            for other in self._facts.names.places(new):
                below = self._facts.trace.modules.get(other.module)
                if owner is None or below is None or owner.root != below.root:
                    continue
                prefix = f"{owner.path}.parametrizations.".removeprefix(".")
                if f"{below.path}.".startswith(prefix):
                    return True
        return False

    @cached_property
    def _spots(self) -> dict[tuple[ModuleId, str], list[TensorId]]:
        """What was found at each place below an outermost module, in the order in which it was met."""
        spots: dict[tuple[ModuleId, str], list[TensorId]] = {}
        for place in self._facts.trace.parameters:
            if not place.buffer:
                spots.setdefault(self._spot(place.module, place.name), []).append(place.tensor)
        return spots

    def _spot(self, module: ModuleId, name: str) -> tuple[ModuleId, str]:
        row = self._facts.trace.modules.get(module)
        if row is None:
            return module, name
        return row.root, f"{row.path}.{name}" if row.path else name

    def _left_out_since(self, optimizer: Optimizer) -> tuple[TensorId, ...]:
        """Returns the parameters that got gradients, are in no optimizer and came after this one was made."""
        if optimizer.made < 0:
            return ()
        born = ((t, self._facts.optimized.born(t)) for t in self._facts.optimized.left_out)
        later = (t for t, event in born if event is not None and event.serial > optimizer.made)
        return tuple(tensor for tensor in later if self._facts.names.places(tensor))

    def _taken_over(self, idle: tuple[TensorId, ...], begin: Serial) -> tuple[TensorId, ...]:
        """Returns the parameters, made unseen, whose gradients began when those of the idle ones ended."""
        if not all(any(m.serial <= begin for m in self._facts.gradients.life(tensor)) for tensor in idle):
            return ()
        left_out = self._facts.optimized.left_out
        unseen = (tensor for tensor in left_out if self._facts.optimized.born(tensor) is None)
        begun = (tensor for tensor in unseen if left_out[tensor][0].serial > begin)
        return tuple(tensor for tensor in begun if self._facts.names.places(tensor))

    def _used(self, old: tuple[TensorId, ...], new: tuple[TensorId, ...], begin: Serial) -> bool:
        """Tells whether the loss is computed from the old tensors too, where the record can tell."""
        for backward in self._facts.graphs.backwards:
            if backward.serial > begin and not set(new).isdisjoint(backward.reached):
                connection = self._facts.reach.connection(backward, old)
                if connection is not None and connection.used:
                    return True
        return False

    def _idle_roots(self, idle: tuple[TensorId, ...]) -> frozenset[ModuleId]:
        """Returns the outermost modules all of whose parameters are idle."""
        roots = frozenset(root for tensor in idle for root in self._facts.optimized.roots(tensor))
        return frozenset(r for r in roots if set(self._facts.values.module_parameters(r)) <= set(idle))

    def _structure(self, tensors: tuple[TensorId, ...]) -> Counter[tuple[str, tuple[int, ...]]]:
        rows = self._facts.trace.tensors
        return Counter(
            (self._spot(place.module, place.name)[1], rows[tensor].shape)
            for tensor in tensors
            if tensor in rows
            for place in self._facts.names.places(tensor)[:1]
        )

    def _first_reaching(self, new: tuple[TensorId, ...], begin: Serial) -> Backward | None:
        wanted = set(new)
        for backward in self._facts.graphs.backwards:
            if backward.serial > begin and not wanted.isdisjoint(backward.reached):
                return backward
        return None
