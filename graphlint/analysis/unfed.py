"""Steps for which no backward was called since the optimizer's last one.

May import `record` and the rest of `analysis`. Such a step may be right: an optimizer's turn in a loop over
all of them, a scheduler that wants a step before its own. Told is where a loss was computed for the step and
never differentiated, and where a step is taken twice on one gradient, each time anew.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.account import Use
from graphlint.record.events import Backward, Op, Transfer, ZeroGrad
from graphlint.record.identity import OptimizerId, Serial, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_START = Serial(-1)
_TWICE = 2
_SEEN_OFTEN = 3
_MOST_FOLLOWED = 2_000


@dataclass(frozen=True, slots=True)
class Unfed:
    """A step without a gradient that is new.

    Attributes:
        kind: `loss`: a loss was computed and never differentiated; `graph`: a forward pass was, but no loss
            is known; `again`: the step repeats the one before on the same gradients.
        use: the step.
        parameters: the optimizer's trainable parameters.
        stale: whether gradients of an earlier step are there still.
        made: the operation that made the loss, or the last one of the forward pass.
        loss: the loss.
        filled: for `again`, the backward whose gradients are used twice.
    """

    kind: Literal["loss", "graph", "again"]
    use: Use
    parameters: tuple[TensorId, ...]
    stale: bool
    made: Op | None = None
    loss: TensorId | None = None
    filled: Backward | None = None


class UnfedSteps:
    """Finds steps without a new gradient."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._ledger = facts.ledger

    @cached_property
    def all(self) -> tuple[Unfed, ...]:
        """The steps that lack a backward, by optimizer and line."""
        return tuple(
            found
            for optimizer in self._facts.trace.optimizers
            for uses in self._lines(optimizer)
            for found in self._line(uses)
        )

    @cached_property
    def steps(self) -> frozenset[Serial]:
        """The serials of these steps."""
        return frozenset(unfed.use.step.serial for unfed in self.all)

    def _lines(self, optimizer: OptimizerId) -> list[list[Use]]:
        """Returns the steps of an optimizer, those of one line together."""
        lines: dict[SiteId | None, list[Use]] = {}
        for use in self._ledger.of(optimizer):
            lines.setdefault(use.step.site, []).append(use)
        return list(lines.values())

    def _line(self, uses: list[Use]) -> list[Unfed]:
        hungry = [use for use in uses if self._is_unfed(use)]
        if len(hungry) == len(uses):
            for find, least in ((self._without_backward, _TWICE), (self._with_a_graph, _SEEN_OFTEN)):
                found = [unfed for use in hungry if (unfed := find(use)) is not None]
                if len(found) >= least:
                    return found
        again = [unfed for use in hungry if (unfed := self._again(use)) is not None]
        gradients = {unfed.filled.serial for unfed in again if unfed.filled is not None}
        proved = any(self._seen(unfed.use) for unfed in again)
        return again if proved and len(gradients) >= _TWICE else []

    def _parameters(self, use: Use) -> tuple[TensorId, ...]:
        return self._facts.reach.trainable(use.step.optimizer, use.step.serial)

    def _is_unfed(self, use: Use) -> bool:
        """Tells whether nothing was added to the gradients since the last step, seen or unseen."""
        parameters = self._parameters(use)
        if not parameters or use.filled or self._ledger.inside_backward(use.step.serial):
            return False
        written = {change.tensor for change in use.step.changed}
        if not written.isdisjoint(use.step.without_grad):
            return False
        return all(one.before for tensor in parameters for one in use.held.get(tensor, ()))

    def _stale(self, use: Use) -> bool:
        return any(use.held.get(tensor) for tensor in self._parameters(use))

    def _since(self, use: Use) -> Serial:
        """Returns the end of the optimizer's last step, or of a later backward that is there for this one.

        A backward after which another optimizer stepped was there for that.
        """
        step = use.step
        others = (s.serial for s in self._facts.gradients.all_steps if s.optimizer != step.optimizer)
        after = max((serial for serial in others if serial < step.serial), default=_START)
        mine = (b.end for b in self._facts.graphs.backwards if after < b.serial < step.end)
        return max(use.previous.end if use.previous is not None else _START, *mine, _START)

    # --- a loss that was never differentiated ------------------------------------------------------------

    def _without_backward(self, use: Use) -> Unfed | None:
        parameters = self._parameters(use)
        after = self._since(use)
        for op in self._between(after, use.step.end):
            for tensor, grad in zip(op.outputs, op.output_grads, strict=False):
                row = self._facts.trace.tensors.get(tensor)
                single = row is not None and all(size == 1 for size in row.shape)
                if grad and single and self._is_dead(tensor, op) and self._uses(tensor, op, parameters):
                    return Unfed("loss", use, parameters, self._stale(use), made=op, loss=tensor)
        return None

    def _uses(self, tensor: TensorId, op: Op, parameters: tuple[TensorId, ...]) -> bool:
        return tensor not in parameters and self._facts.values.depends(tensor, op.serial, parameters)

    def _is_dead(self, tensor: TensorId, made: Op) -> bool:
        """Tells whether no backward of the run was called on a tensor, or on what was computed from it."""
        seen: set[TensorId] = set()
        waiting = [(tensor, made.serial)]
        while waiting:
            current, since = waiting.pop()
            if current in self._roots:
                return False
            if current in seen:
                continue
            seen.add(current)
            if len(seen) > _MOST_FOLLOWED:
                return False
            for event in self._facts.values.consumers(current):
                if event.serial <= since:
                    continue
                if isinstance(event, Op):
                    grads = zip(event.outputs, event.output_grads, strict=False)
                    waiting += [(output, event.serial) for output, grad in grads if grad]
                elif isinstance(event, Transfer):
                    waiting.append((event.result, event.serial))
        return True

    @cached_property
    def _roots(self) -> frozenset[TensorId]:
        """All that a backward was called on."""
        return frozenset(root for backward in self._facts.graphs.backwards for root in backward.roots)

    def _between(self, after: Serial, before: Serial) -> Iterator[Op]:
        """Yields the operations between two serials that built a graph, the last first."""
        last = bisect_left(self._ops, before, key=lambda op: op.serial)
        first = bisect_left(self._ops, after, key=lambda op: op.serial)
        yield from reversed(self._ops[first:last])

    @cached_property
    def _ops(self) -> tuple[Op, ...]:
        """The operations that built a graph, in time order."""
        events = self._facts.trace.events
        return tuple(e for e in events if isinstance(e, Op) and any(e.output_grads))

    # --- a forward pass, no loss -------------------------------------------------------------------------

    def _with_a_graph(self, use: Use) -> Unfed | None:
        """Returns a step before which a graph was built on its parameters, and no backward was run.

        Where another optimizer stepped meanwhile, backwards before that were there for it; what was zeroed
        for this one since then begins its own turn.
        """
        after = use.previous.end if use.previous is not None else _START
        if any(after < backward.serial < use.step.end for backward in self._facts.graphs.backwards):
            turn = self._turn(use, after)
            if turn is None:
                return None
            after = turn
        parameters = self._parameters(use)
        for op in self._between(after, use.step.end):
            if op.seq[1] > op.seq[0] and any(read.tensor in parameters for read in op.inputs):
                return Unfed("graph", use, parameters, self._stale(use), made=op)
        return None

    def _turn(self, use: Use, after: Serial) -> Serial | None:
        """Returns the end of another's step since which this optimizer was zeroed and no backward was run."""
        ends = [s.end for s in self._facts.gradients.all_steps if after < s.end < use.step.serial]
        last = max(ends, default=after)
        if any(last < backward.serial < use.step.end for backward in self._facts.graphs.backwards):
            return None
        zeroed = any(
            isinstance(event, ZeroGrad)
            and event.optimizer == use.step.optimizer
            and last < event.serial < use.step.serial
            for event in self._facts.trace.events
        )
        return last if zeroed else None

    # --- two steps on one gradient -----------------------------------------------------------------------

    def _again(self, use: Use) -> Unfed | None:
        """Returns a step that finds what its last one used, and that alone."""
        parameters = self._parameters(use)
        held = [one for tensor in parameters for one in use.held.get(tensor, ())]
        sources = [one.portion.source for one in held if one.portion.source is not None]
        if use.previous is None or not sources or len(sources) < len(held):
            return None
        mine = all(any(step.optimizer == use.step.optimizer for step in one.before) for one in held)
        if not mine or self._written(parameters, use.previous.end, use.step.serial):
            return None
        last = max(sources, key=lambda source: source.serial)
        return Unfed("again", use, parameters, stale=True, filled=self._ledger.outermost(last))

    def _written(self, parameters: tuple[TensorId, ...], after: Serial, before: Serial) -> bool:
        """Tells whether the parameters were set back by hand meanwhile: a step that is tried again."""
        storages = {self._facts.values.storage(tensor) for tensor in parameters} - {None}
        return any(
            isinstance(change, Op)
            for storage in storages
            if storage is not None
            for change in self._facts.values.changes(storage, after, before)
        )

    def _seen(self, use: Use) -> bool:
        """Tells whether everything since the last step was recorded in full."""
        return use.previous is not None and self._ledger.seen(use.previous.serial, use.step.end)
