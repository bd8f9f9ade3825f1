"""Parameters that an optimizer holds and no backward of the whole run reached, while it reached others.

May import `record` and the rest of `analysis`. A branch that happened to be idle proves nothing, so an unused
parameter needs several steps, and one of several equal modules in a container (an expert) is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.cuts import Cut
from graphlint.analysis.values import ASSIGNMENT
from graphlint.record.events import Backward, Op, OptimizerStep
from graphlint.record.identity import ModuleId, OptimizerId, Serial, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_STEPS_WHEN_CUT = 2
_STEPS_WHEN_UNUSED = 3
_CONTAINERS = frozenset({"ModuleList", "ModuleDict"})


@dataclass(frozen=True, slots=True)
class Unreached:
    """Parameters of one optimizer that never got a gradient, all for one reason.

    Attributes:
        optimizer: which holds them.
        parameters: which they are.
        reason: `cut`: values flow from them to a loss, the gradient's way back is cut; `unused`: no operation
            that a loss depends on reads them.
        cuts: where, for the first reason.
        step: the first step of the optimizer.
        steps: how many steps it took.
        losses: the backwards that reached its other parameters.
        complete: whether the record shows how every tensor on the way to them was made.
    """

    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    reason: Literal["cut", "unused"]
    cuts: tuple[Cut, ...]
    step: OptimizerStep
    steps: int
    losses: tuple[Backward, ...]
    complete: bool


class UnreachedParameters:
    """Finds parameters that never get a gradient."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Unreached]:
        """Yields the parameters that no backward reached, by optimizer and reason."""
        for optimizer in self._facts.trace.optimizers:
            steps = [s for s in self._facts.gradients.steps(optimizer) if s.error is None]
            if steps:
                yield from self._of(optimizer, steps)

    def _of(self, optimizer: OptimizerId, steps: list[OptimizerStep]) -> Iterator[Unreached]:
        parameters = self._facts.reach.trainable(optimizer, steps[-1].serial)
        known = self._facts.reach.ever_reached | self._facts.stale.tensors
        missing = [p for p in parameters if p not in known]
        if not missing or len(missing) == len(parameters):
            return
        bare = set.intersection(*(set(step.without_grad) for step in steps))
        missing = [p for p in missing if p in bare and not self._written(p, steps[0].serial)]
        count = len(steps) + sum(self._facts.steps.repeats(step.serial) for step in steps)
        losses = self._losses(set(parameters))
        if not missing or not losses:
            return
        used, cuts, complete, differentiated = self._cut(tuple(missing), losses)
        unused = [p for p in missing if p not in used and p not in differentiated]
        reached = [p for p in parameters if p in self._facts.reach.ever_reached]
        used = [p for p in used if not self._is_copy(p, reached)]
        if used and count >= _STEPS_WHEN_CUT:
            yield Unreached(optimizer, tuple(used), "cut", cuts, steps[0], count, losses, complete)
        unused = [p for p in unused if not self._maybe_idle(p)]
        if unused and count >= _STEPS_WHEN_UNUSED:
            yield Unreached(optimizer, tuple(unused), "unused", (), steps[0], count, losses, complete)

    def _losses(self, parameters: set[TensorId]) -> tuple[Backward, ...]:
        """Returns the fully recorded backwards that reached any of the parameters."""
        found = []
        for backward in self._facts.graphs.backwards:
            step = self._facts.steps.of(backward.serial)
            full = step is not None and step.level == "full"
            if full and backward.error is None and not parameters.isdisjoint(backward.reached):
                found.append(backward)
        return tuple(found)

    def _cut(
        self, parameters: tuple[TensorId, ...], losses: tuple[Backward, ...]
    ) -> tuple[list[TensorId], tuple[Cut, ...], bool, set[TensorId]]:
        """Returns the parameters whose values flow to a loss, the cuts there, and whether all was seen.

        The last are those that a loss is computed from without a cut, through a derivative: that of a sum
        doesn't depend on what was added, as a gradient penalty doesn't on the last bias.
        """
        used: dict[TensorId, None] = {}
        differentiated: set[TensorId] = set()
        cuts: dict[SiteId | None, Cut] = {}
        end = self._facts.trace.end
        complete = end is not None and not end.unseen
        for loss in losses:
            connection = self._facts.reach.connection(loss, parameters)
            complete = complete and connection is not None and connection.complete
            if connection is not None and connection.cuts:
                used.update(dict.fromkeys(p for p in parameters if p in connection.used))
                for cut in connection.cuts:
                    cuts.setdefault(cut.site, cut)
            elif connection is not None:
                differentiated |= connection.used
        return list(used), tuple(cuts.values()), complete, differentiated

    def _written(self, parameter: TensorId, after: Serial) -> bool:
        """Tells whether the parameter is kept up to date by hand, as a momentum teacher is."""
        storage = self._facts.values.storage(parameter)
        writes = self._facts.values.writes(storage) if storage is not None else ()
        made = self._facts.values.makers(parameter)
        assigned = (event for event in made if isinstance(event, Op) and event.name == ASSIGNMENT)
        return any(event.serial > after for event in (*writes, *assigned))

    def _is_copy(self, parameter: TensorId, reached: list[TensorId]) -> bool:
        """Tells whether a parameter's memory was filled from a trained one, as a target network's is."""
        values = self._facts.values
        trained = {values.storage(other) for other in reached}
        return any(
            values.storage(source.tensor) in trained
            for tensor in values.sharers(parameter)
            for event in values.makers(tensor)
            for source in values.sources(event)
        )

    def _maybe_idle(self, parameter: TensorId) -> bool:
        """Tells whether the parameter is part of one of several like modules, which may take turns."""
        return any(self._like_used(place.module) for place in self._facts.names.places(parameter))

    def _like_used(self, module: ModuleId) -> bool:
        """Tells whether a module, or one around it, has a reached sibling of its type in a container."""
        row = self._facts.trace.modules.get(module)
        while row is not None and row.path:
            parent_path = row.path.rpartition(".")[0]
            parent = self._by_path.get((row.root, parent_path))
            container = parent is not None and self._facts.trace.modules[parent].type in _CONTAINERS
            if container and any(
                other.type == row.type and other.id in self._reached_modules
                for other in self._facts.trace.modules.values()
                if other.root == row.root and other.path.rpartition(".")[0] == parent_path
            ):
                return True
            row = self._facts.trace.modules[parent] if parent is not None else None
        return False

    @cached_property
    def _by_path(self) -> dict[tuple[ModuleId, str], ModuleId]:
        return {(row.root, row.path): row.id for row in self._facts.trace.modules.values()}

    @cached_property
    def _reached_modules(self) -> frozenset[ModuleId]:
        """The modules below which some parameter was reached."""
        reached: set[ModuleId] = set()
        for tensor in self._facts.reach.ever_reached:
            for place in self._facts.names.places(tensor):
                row = self._facts.trace.modules.get(place.module)
                while row is not None and row.id not in reached:
                    reached.add(row.id)
                    parent = self._by_path.get((row.root, row.path.rpartition(".")[0])) if row.path else None
                    row = self._facts.trace.modules.get(parent) if parent is not None else None
        return frozenset(reached)

    def made_at(self, parameter: TensorId) -> SiteId | None:
        """Returns where the parameter's memory was first filled: the line that built its module."""
        first: Op | None = None
        for tensor in self._facts.values.sharers(parameter):
            for event in self._facts.values.makers(tensor):
                if isinstance(event, Op) and (first is None or event.serial < first.serial):
                    first = event
        return first.site if first is not None else None
