"""Steps that use gradients which another optimizer's loss left in their parameters.

May import `record` and the rest of `analysis`. Two losses may well add up on purpose: a trunk below two heads
is trained by both. What tells a bleed from that: the other optimizer had stepped on its loss before this
one's own loss was differentiated; and either the gradient only came by on its way, through these parameters,
to those of the other optimizer, in a forward pass that the own loss has nothing to do with, or the own loss
is computed with the parameters of both, as two players' are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.account import Held, Portion, Use
from graphlint.record.events import Backward, ModuleCall, OptimizerStep
from graphlint.record.identity import ModuleId, OptimizerId, Serial, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


@dataclass(frozen=True, slots=True)
class Bleed:
    """A step that used what another loss had left.

    Attributes:
        use: the step.
        parameters: whose gradients held it.
        foreign: the backward of the other loss.
        other: the step of the other optimizer on that backward.
        own: the backward that was there for this step.
    """

    use: Use
    parameters: tuple[TensorId, ...]
    foreign: Backward
    other: OptimizerStep
    own: Backward


class Bleeds:
    """Finds bleeds."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._related: dict[tuple[Backward, Backward, OptimizerId, OptimizerId], bool] = {}

    def all(self) -> Iterator[Bleed]:
        """Yields the steps that used what another loss had left, in time order."""
        for use in self._facts.ledger.uses:
            if not self._facts.ledger.inside_backward(use.step.serial):
                found = self._of(use)
                if found is not None:
                    yield found

    def _of(self, use: Use) -> Bleed | None:
        trainable = set(self._facts.reach.trainable(use.step.optimizer, use.step.serial))
        parameters: list[TensorId] = []
        found: tuple[Backward, OptimizerStep, Backward] | None = None
        for tensor, held in use.held.items():
            if tensor not in trainable or _stale(held, use):
                continue
            mine = self._foreign(use, held)
            if mine is not None:
                parameters.append(tensor)
                found = found or mine
        return Bleed(use, tuple(parameters), *found) if found is not None else None

    def _foreign(self, use: Use, held: tuple[Held, ...]) -> tuple[Backward, OptimizerStep, Backward] | None:
        """Returns another loss's backward among what a gradient holds, the step on it, and the own one."""
        fresh = [(one.portion, self._source(one.portion)) for one in held]
        for portion, foreign in fresh:
            if foreign is None or portion.skipped:
                continue
            for other in self._steps_on(foreign, use):
                for _, own in fresh:
                    if (
                        own is not None
                        and own.serial > other.end
                        and self._is_bleed(use, foreign, other, own)
                    ):
                        return foreign, other, own
        return None

    def _source(self, portion: Portion) -> Backward | None:
        return self._facts.ledger.outermost(portion.source) if portion.source is not None else None

    def _steps_on(self, backward: Backward, use: Use) -> Iterator[OptimizerStep]:
        """Yields the steps of other optimizers that used a backward before this step did."""
        for step in self._facts.ledger.steps_on(backward):
            if backward.end < step.serial < use.step.serial and step.optimizer != use.step.optimizer:
                yield step

    def _is_bleed(self, use: Use, foreign: Backward, other: OptimizerStep, own: Backward) -> bool:
        ledger = self._facts.ledger
        theirs = set(self._facts.gradients.parameters(other.optimizer))
        if ledger.same_loss(foreign, own):
            return False
        if foreign.site == own.site and not theirs.isdisjoint(own.reached):
            return False
        if not ledger.seen(foreign.serial, use.step.end) or self._made_by_turns(use, other):
            return False
        key = (foreign, own, use.step.optimizer, other.optimizer)
        if key not in self._related:
            mine = set(self._facts.gradients.parameters(use.step.optimizer))
            if self._on_the_way(foreign, mine, theirs):
                self._related[key] = not self._goes_on(foreign, own, mine)
            else:
                self._related[key] = self._shared(own, theirs)
        return self._related[key]

    def _goes_on(self, foreign: Backward, own: Backward, mine: set[TensorId]) -> bool:
        """Tells whether the own loss goes through the very operations that the other loss had gone through.

        It was kept for that (`retain_graph`): both are terms of one loss, as an encoder that is trained
        by some of the terms alone has it.
        """
        before, graph = self._facts.graphs.of(foreign), self._facts.graphs.of(own)
        if before is None or graph is None:
            return False
        again = {index for index, visit in graph.visits.items() if visit.node in before.by_id}
        return any(
            not again.isdisjoint(graph.walked.predecessors(node))
            for leaf, node in graph.leaves.items()
            if leaf in mine
        )

    def _made_by_turns(self, use: Use, other: OptimizerStep) -> bool:
        """Tells whether one optimizer took over from the other: neither steps while the other does."""
        one, two = (self._facts.gradients.steps(o) for o in (use.step.optimizer, other.optimizer))
        return two[-1].end < one[0].serial

    def _shared(self, own: Backward, theirs: set[TensorId]) -> bool:
        """Tells whether a loss is computed with these parameters, detached or not."""
        if not theirs.isdisjoint(own.reached):
            return True
        return any(self._facts.values.depends(root, own.serial, theirs) for root in own.roots)

    def _on_the_way(self, backward: Backward, mine: set[TensorId], theirs: set[TensorId]) -> bool:
        """Tells whether a backward got to their parameters through my parameters' operations."""
        graph = self._facts.graphs.of(backward)
        if graph is None:
            return False
        leaves = [leaf for leaf in graph.leaves if leaf in mine]
        return any(not theirs.isdisjoint(graph.leaves_below(graph.meetings(leaf))) for leaf in leaves)

    def entered_at(self, bleed: Bleed) -> SiteId | None:
        """Returns where the other loss called the module that holds the parameters, or else used them."""
        graph = self._facts.graphs.of(bleed.foreign)
        if graph is None:
            return None
        modules = set(self._facts.owners.modules(self._facts.gradients.parameters(bleed.use.step.optimizer)))
        for leaf in (tensor for tensor in bleed.parameters if tensor in graph.leaves):
            for before in sorted(graph.walked.predecessors(graph.leaves[leaf])):
                node = graph.nodes[before]
                site = self._outermost(node.call, modules).site if node.call in self._calls else node.site
                if site is not None:
                    return site
        return None

    def _outermost(self, serial: Serial | None, modules: set[ModuleId]) -> ModuleCall:
        """Returns the outermost call of one of the modules around a call; that call where there is none."""
        found = current = self._calls[serial]
        while current.parent in self._calls:
            current = self._calls[current.parent]
            if current.module in modules:
                found = current
        return found

    @cached_property
    def _calls(self) -> dict[Serial | None, ModuleCall]:
        return {e.serial: e for e in self._facts.trace.events if isinstance(e, ModuleCall)}


def _stale(held: tuple[Held, ...], use: Use) -> bool:
    """Tells whether a gradient holds what the optimizer had used before: it was not zeroed at all."""
    return any(step.optimizer == use.step.optimizer for one in held for step in one.before)
