"""Optimizers that are stepped, or were about to be, while no backward reaches their parameters.

May import `record` and the rest of `analysis`. An idle branch is no fault: what is told here is weighed by
how often it was seen and by whether the backward was there for this optimizer alone.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.cuts import Connection, Cut
from graphlint.record.events import Backward, GradWrite, Op, OptimizerStep, ZeroGrad
from graphlint.record.identity import OptimizerId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_START = Serial(-1)
_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Missed:
    """An optimizer none of whose parameters a loss reached.

    Attributes:
        optimizer: which one.
        parameters: its trainable parameters.
        step: the step that found no gradients; None when the backward raised before it.
        backward: the backward that ought to have reached them.
        connection: how the loss hangs on the parameters; None where the record can't tell.
    """

    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    step: OptimizerStep | None
    backward: Backward
    connection: Connection | None


class Reach:
    """Which optimizers' parameters the backwards of a trace reach."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def ever_reached(self) -> frozenset[TensorId]:
        """All tensors whose gradient some backward filled, or somebody assigned."""
        reached: set[TensorId] = set()
        for event in self._facts.trace.events:
            if isinstance(event, Backward) and event.call != "autograd.grad":
                reached.update(event.reached)
            elif isinstance(event, GradWrite):
                reached.add(event.tensor)
        return frozenset(reached)

    def trainable(self, optimizer: OptimizerId, at: Serial) -> tuple[TensorId, ...]:
        """Returns the parameters that an optimizer is meant to change: with gradients, at a rate above 0."""
        row = self._facts.trace.optimizers.get(optimizer)
        if row is None:
            return ()
        found: dict[TensorId, None] = {}
        for index, group in enumerate(row.groups):
            if index < len(row.lrs) and row.lrs[index] == 0:
                continue
            found.update(dict.fromkeys(t for t in group if self._facts.values.requires_grad(t, at)))
        return tuple(found)

    def missed(self) -> Iterator[Missed]:
        """Yields the steps that found no gradient and aren't explained as idle, and the doomed backwards."""
        seen: dict[OptimizerId, list[Missed]] = {}
        for step in self._facts.gradients.all_steps:
            found = self._missed_by(step)
            if found is not None:
                seen.setdefault(step.optimizer, []).append(found)
        for sightings in seen.values():
            proved = [missed for missed in sightings if self._proved(missed, sightings)]
            # The first to be told is one of which the record knows the most.
            yield from sorted(proved, key=lambda missed: missed.connection is None)
        for backward in self._facts.graphs.backwards:
            if backward.error is not None:
                yield from self.doomed(backward)

    def _missed_by(self, step: OptimizerStep) -> Missed | None:
        if step.error is not None:
            return None
        parameters = self.trainable(step.optimizer, step.serial)
        after = self._previous_end.get(step.serial, _START)
        if not parameters or not set(parameters) <= set(step.without_grad):
            return None
        begin, end = (bisect_right(self._fill_serials, serial) for serial in (after, step.end))
        fills = self._fills[begin:end]
        if any(not set(parameters).isdisjoint(b.reached) for b in fills):
            return None
        backward = fills[-1] if fills else None
        if backward is None or step.serial in self._facts.unfed.steps:
            return None
        connection = self.connection(backward, parameters)
        return Missed(step.optimizer, parameters, step, backward, connection)

    @cached_property
    def _fills(self) -> tuple[Backward, ...]:
        return tuple(b for b in self._facts.graphs.backwards if b.call != "autograd.grad" and b.error is None)

    @cached_property
    def _fill_serials(self) -> list[Serial]:
        return [backward.serial for backward in self._fills]

    @cached_property
    def _previous_end(self) -> dict[Serial, Serial]:
        """The end of the step that each optimizer took before a step."""
        ends: dict[Serial, Serial] = {}
        last: dict[OptimizerId, Serial] = {}
        for step in self._facts.gradients.all_steps:
            if step.optimizer in last:
                ends[step.serial] = last[step.optimizer]
            last[step.optimizer] = step.end
        return ends

    def _built_a_graph(self, parameters: tuple[TensorId, ...], after: Serial, before: Serial) -> bool:
        """Tells whether an operation read a parameter and built a graph on it between two serials."""
        for parameter in parameters:
            for event in self._facts.values.consumers(parameter):
                if after < event.serial < before and isinstance(event, Op) and event.seq[1] > event.seq[0]:
                    return True
        return False

    def _proved(self, missed: Missed, sightings: list[Missed]) -> bool:
        """Tells whether a step without gradients is a fault rather than an idle branch.

        A backward after which this optimizer stepped first was there for it: once is enough, unless the
        parameters do get gradients at other times. Where others stepped on it too, it must happen often.
        """
        often = sum(self._count(sighting) for sighting in sightings) >= _SEEN_OFTEN
        elsewhere = not self.ever_reached.isdisjoint(missed.parameters)
        if self._is_for(missed):
            return not elsewhere or (often and self._always_missed(missed, sightings))
        return often and self._took_part(missed) and not elsewhere

    def _took_part(self, missed: Missed) -> bool:
        """Tells whether the parameters were used for the loss, or at least in a forward pass before it."""
        if missed.connection is None:
            return False
        start = self._facts.steps.of(missed.backward.serial)
        after = Serial(start.first - 1) if start is not None else _START
        return bool(missed.connection.used) or self._built_a_graph(
            missed.parameters, after, missed.backward.serial
        )

    def _is_for(self, missed: Missed) -> bool:
        """Tells whether no other optimizer stepped between the backward and the step."""
        if missed.step is None:
            return False
        start, end = missed.backward.serial, missed.step.serial
        return not any(start < step.serial < end for step in self._facts.gradients.all_steps)

    def _always_missed(self, missed: Missed, sightings: list[Missed]) -> bool:
        """Tells whether the line never had a gradient, or no step of the optimizer had one any more."""
        first = sightings[0].step
        steps = self._facts.gradients.steps(missed.optimizer)
        later = [step for step in steps if first is not None and step.serial >= first.serial]
        if len(later) == len(sightings):
            return True
        site = missed.step.site if missed.step is not None else None
        here = [sighting for sighting in sightings if sighting.step and sighting.step.site == site]
        often = sum(self._count(sighting) for sighting in here) >= _SEEN_OFTEN
        return often and len(here) == sum(step.site == site for step in steps)

    def _count(self, missed: Missed) -> int:
        return 1 + (self._facts.steps.repeats(missed.step.serial) if missed.step is not None else 0)

    def connection(self, backward: Backward, parameters: tuple[TensorId, ...]) -> Connection | None:
        """Returns how a backward's roots hang on parameters; None where the record can't tell."""
        step = self._facts.steps.of(backward.serial)
        if not backward.roots or (step is not None and step.level == "watch"):
            return None
        found = [self._facts.cuts.connection(r, backward.serial, parameters) for r in backward.roots]
        cuts: dict[Serial, Cut] = {cut.serial: cut for one in found for cut in one.cuts}
        return Connection(
            used=frozenset(t for one in found for t in one.used),
            carried=any(one.carried for one in found),
            frozen=frozenset(t for one in found for t in one.frozen),
            cuts=tuple(cuts[serial] for serial in sorted(cuts)),
            complete=all(one.complete for one in found),
        )

    def doomed(self, backward: Backward) -> Iterator[Missed]:
        """Yields the optimizer that a backward was there for and could not have reached, had it not raised.

        That is: the only optimizer whose gradients were zeroed since the last step of another one in this
        training step; everything that the backward reaches was stepped already; and values do flow from
        the optimizer's parameters to the loss, through a cut.
        """
        now = self._facts.steps.of(backward.serial)
        if now is None or not backward.reached:
            return
        stepped = [
            event
            for event in now.events
            if isinstance(event, OptimizerStep) and event.serial < backward.serial and event.error is None
        ]
        if not stepped:
            return
        done = {t for step in stepped for t in self._facts.gradients.parameters(step.optimizer)}
        if not set(backward.reached) <= done:
            return
        zeroed = self._zeroed(stepped[-1].end, backward.serial)
        if len(zeroed) != 1 or zeroed[0] in {step.optimizer for step in stepped}:
            return
        parameters = self.trainable(zeroed[0], backward.serial)
        if not set(parameters).isdisjoint(backward.reached) or not self.ever_reached.isdisjoint(parameters):
            return
        connection = self.connection(backward, parameters)
        if connection is not None and connection.cuts and not connection.carried:
            yield Missed(zeroed[0], parameters, None, backward, connection)

    def _zeroed(self, after: Serial, before: Serial) -> list[OptimizerId]:
        """Returns the optimizers whose parameters were zeroed between two serials, by whatever call."""
        zeroed: list[OptimizerId] = []
        for event in self._facts.trace.events:
            if not isinstance(event, ZeroGrad) or not after < event.serial < before:
                continue
            for optimizer in self._cleared_by(event):
                if optimizer not in zeroed:
                    zeroed.append(optimizer)
        return zeroed

    def _cleared_by(self, event: ZeroGrad) -> list[OptimizerId]:
        if event.optimizer is not None:
            return [event.optimizer]
        if event.module is not None:
            below = set(self._facts.values.module_parameters(event.module))
            return [
                optimizer
                for optimizer in self._facts.trace.optimizers
                if not below.isdisjoint(self._facts.gradients.parameters(optimizer))
            ]
        return list(self._facts.gradients.optimizers(event.tensor)) if event.tensor is not None else []
