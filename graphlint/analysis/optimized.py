"""Which tensors any optimizer holds or anybody writes by hand, and which get gradients and are neither.

May import `record` and the rest of `analysis`. Memory decides, not identity: an optimizer may hold a flat
copy that the parameters are views of.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.values import ASSIGNMENT
from graphlint.record.events import (
    AnyEvent,
    Backward,
    GradRead,
    ModuleCall,
    Op,
    OptimizerStep,
    ZeroGrad,
)
from graphlint.record.identity import ModuleId, OptimizerId, Serial, StorageId, TensorId
from graphlint.record.live import ParameterPlaced

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


class Optimized:
    """Answers what is trained, by whom, and what only looks as if it were."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def held(self) -> frozenset[StorageId]:
        """The memory of everything that an optimizer was given at any time of the run."""
        held: set[TensorId] = set()
        for row in self._facts.trace.optimizers.values():
            held.update(tensor for group in row.groups for tensor in group)
        for step in self._facts.gradients.all_steps:
            held.update(change.tensor for change in step.changed)
            held.update(step.without_grad, step.unchanged)
        return frozenset(s for t in held if (s := self._facts.values.storage(t)) is not None)

    @cached_property
    def left_out(self) -> dict[TensorId, tuple[Backward, ...]]:
        """The parameters that no optimizer holds and nobody writes, with the backwards that fill them."""
        fills: dict[TensorId, list[Backward]] = {}
        for backward in self._facts.graphs.backwards:
            if backward.call == "autograd.grad" or backward.error is not None:
                continue
            for tensor in backward.reached:
                fills.setdefault(tensor, []).append(backward)
        return {
            tensor: tuple(backwards)
            for tensor, backwards in fills.items()
            if self._is_parameter(tensor)
            and self._facts.values.storage(tensor) not in self.held
            and not self._written(tensor, backwards[0].serial)
            and not self._read_by_hand(tensor)
        }

    def trainers(self, backward: Backward) -> tuple[OptimizerId, ...]:
        """Returns the optimizers that step on what a backward filled, before it is used up."""
        return self._trainers.get(backward.serial, ())

    @cached_property
    def _trainers(self) -> dict[Serial, tuple[OptimizerId, ...]]:
        """For each backward, the optimizers whose next step used what it filled."""
        waiting: dict[TensorId, list[Serial]] = {}
        found: dict[Serial, dict[OptimizerId, None]] = {}
        for event in sorted(self._facts.trace.events, key=_end):
            match event:
                case Backward() if event.call != "autograd.grad" and event.error is None:
                    for tensor in event.reached:
                        waiting.setdefault(tensor, []).append(event.serial)
                case ZeroGrad():
                    for tensor in event.cleared:
                        waiting.pop(tensor, None)
                case OptimizerStep() if event.error is None:
                    for tensor in {change.tensor for change in event.changed} | set(event.unchanged):
                        for serial in waiting.pop(tensor, ()):
                            found.setdefault(serial, {})[event.optimizer] = None
                case _:
                    pass
        return {serial: tuple(optimizers) for serial, optimizers in found.items()}

    def _is_parameter(self, tensor: TensorId) -> bool:
        row = self._facts.trace.tensors.get(tensor)
        placed = any(not place.buffer for place in self._facts.names.places(tensor))
        return placed or (row is not None and row.parameter)

    def _written(self, tensor: TensorId, after: Serial) -> bool:
        """Tells whether the tensor's memory is written after its gradient came in: it is updated by hand."""
        values = self._facts.values
        storage = values.storage(tensor)
        writes = values.writes(storage) if storage is not None else ()
        assigned = (e for e in values.makers(tensor) if isinstance(e, Op) and e.name == ASSIGNMENT)
        return any(event.serial > after for event in (*writes, *assigned))

    def _read_by_hand(self, tensor: TensorId) -> bool:
        """Tells whether a line takes the tensor's gradient that takes none of an optimizer's parameters."""
        return not self._read_at.get(tensor, frozenset()) <= self._lines_of_all

    @cached_property
    def _read_at(self) -> dict[TensorId, frozenset[tuple[str, int]]]:
        found: dict[TensorId, set[tuple[str, int]]] = {}
        for event in self._facts.trace.events:
            frame = self._facts.graphs.frame(event.site) if isinstance(event, GradRead) else None
            if isinstance(event, GradRead) and frame is not None:
                found.setdefault(event.tensor, set()).add((frame.path, frame.line))
        return {tensor: frozenset(lines) for tensor, lines in found.items()}

    @cached_property
    def _lines_of_all(self) -> frozenset[tuple[str, int]]:
        """The lines that read gradients of parameters which an optimizer holds, as logging a norm does."""
        return frozenset(
            line
            for tensor, lines in self._read_at.items()
            if self._facts.values.storage(tensor) in self.held
            for line in lines
        )

    # --- where a parameter comes from --------------------------------------------------------------------

    def born(self, tensor: TensorId) -> ParameterPlaced | Op | None:
        """Returns what first put a parameter into a module, or else what made it; None where unknown."""
        if placements := self.placements(tensor):
            return placements[0]
        made = [
            event
            for other in self._facts.values.sharers(tensor)
            for event in self._facts.values.makers(other)
            if isinstance(event, Op)
        ]
        return min(made, key=lambda event: event.serial, default=None)

    def placements(self, tensor: TensorId) -> tuple[ParameterPlaced, ...]:
        """Returns the times that a parameter was put into a module, in time order."""
        return tuple(self._placements[0].get(tensor, ()))

    def at(self, owner: int, name: str) -> tuple[ParameterPlaced, ...]:
        """Returns the parameters that a module was given under a name, in time order."""
        return tuple(self._placements[1].get((owner, name), ()))

    def replacing(self, old: TensorId, new: TensorId) -> ParameterPlaced | None:
        """Returns when one parameter was put where another had been; None where that was not seen."""
        for before in self.placements(old):
            for after in self.at(before.owner, before.name):
                if after.serial > before.serial and after.tensor == new:
                    return after
        return None

    @cached_property
    def _placements(
        self,
    ) -> tuple[dict[TensorId, list[ParameterPlaced]], dict[tuple[int, str], list[ParameterPlaced]]]:
        by_tensor: dict[TensorId, list[ParameterPlaced]] = {}
        by_place: dict[tuple[int, str], list[ParameterPlaced]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, ParameterPlaced):
                by_tensor.setdefault(event.tensor, []).append(event)
                by_place.setdefault((event.owner, event.name), []).append(event)
        return by_tensor, by_place

    def made_here(self, tensor: TensorId, before: Serial) -> bool:
        """Tells whether a parameter was filled by this run alone: with nothing loaded, copied or unseen."""
        flow = self._facts.values.flow(tensor, before)
        own = self._facts.values.storage(tensor)
        others = {t for t in flow.tensors if self._facts.values.storage(t) != own}
        parameters = {t for t in others if self._is_parameter(t)}
        filled = all(self._filled(other, before) for other in flow.tensors)
        return filled and not (parameters or (flow.orphans & others))

    def _filled(self, tensor: TensorId, before: Serial) -> bool:
        """Tells whether it was seen what filled a tensor: memory that was set aside alone was not."""
        producers = self._facts.values.producers(tensor, before)
        names = [event.name for event in producers if isinstance(event, Op)]
        return not names or not all(name.startswith("torch.empty") for name in names)

    def roots(self, tensor: TensorId) -> frozenset[ModuleId]:
        """Returns the outermost modules that hold a parameter."""
        return frozenset(self._facts.names.root(place.module) for place in self._facts.names.places(tensor))

    def evaluated_only(self, tensor: TensorId) -> bool:
        """Tells whether every call of the modules that hold a parameter was in eval mode."""
        modes = [
            training
            for place in self._facts.names.places(tensor)
            for training in self._modes.get(self._facts.names.root(place.module), ())
        ]
        return bool(modes) and not any(modes)

    @cached_property
    def _modes(self) -> dict[ModuleId, frozenset[bool]]:
        found: dict[ModuleId, set[bool]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, ModuleCall):
                found.setdefault(event.module, set()).add(event.training)
        return {module: frozenset(modes) for module, modes in found.items()}

    def count(self, events: Iterable[Backward]) -> int:
        """Returns how often some backwards were run, repeated steps included."""
        return sum(1 + self._facts.steps.repeats(event.serial) for event in events)


def _end(event: AnyEvent) -> Serial:
    """Returns when an event was over: the backwards of a closure lie inside the step."""
    return event.end if isinstance(event, Backward | OptimizerStep) else event.serial
