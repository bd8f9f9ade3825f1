"""Parameters that get gradients in training and that no optimizer holds, with what can be told of why.

May import `record` and the rest of `analysis`. Gradients that merely pass through prove nothing: an optimizer
of other module parameters must have stepped on the same backwards. Where inputs alone are optimized, the
network that they go through is not meant to be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.record.events import Backward, ModuleCall, Op, Transfer
from graphlint.record.identity import ModuleId, OptimizerId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Reason = Literal["copied", "unregistered", "left-out", "apart"]
"""copied: a module holds a tensor computed from it once; unregistered: it is used inside the forward of a
module that doesn't list it; left-out: the optimizer has others of the same module; apart: anything else."""

_SEEN_OFTEN = 3


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Parameters that are trained by nobody, all for one reason.

    Attributes:
        parameters: which they are.
        reason: what can be told of why.
        optimizers: those that step on the backwards which fill them.
        backward: the first of these backwards.
        steps: how often they were filled.
        meant: whether they were made in this run and are used in train mode; otherwise they may have been
            left alone on purpose.
        copies: the calls that made copies of them, for the reason `copied`.
    """

    parameters: tuple[TensorId, ...]
    reason: Reason
    optimizers: tuple[OptimizerId, ...]
    backward: Backward
    steps: int
    meant: bool
    copies: tuple[Op | Transfer, ...]


class ForgottenParameters:
    """Finds the parameters that nobody trains."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Forgotten]:
        """Yields the forgotten parameters by reason."""
        groups: dict[tuple[Reason, bool], list[TensorId]] = {}
        for tensor in self._facts.optimized.left_out:
            if tensor in self._facts.stale.replacements or not self._trained_beside(tensor):
                continue
            reason = self._reason(tensor)
            meant = reason in {"copied", "unregistered"} or self._meant(tensor)
            groups.setdefault((reason, meant), []).append(tensor)
        for (reason, meant), tensors in groups.items():
            backwards = {b.serial: b for t in tensors for b in self._beside[t]}
            first = backwards[min(backwards)]
            optimizers = (o for b in backwards.values() for o in self._facts.optimized.trainers(b))
            yield Forgotten(
                parameters=tuple(sorted(tensors)),
                reason=reason,
                optimizers=tuple(dict.fromkeys(optimizers)),
                backward=first,
                steps=max(self._facts.optimized.count(self._beside[tensor]) for tensor in tensors),
                meant=meant,
                copies=tuple(copy for tensor in sorted(tensors) for copy in self._copies(tensor)),
            )

    def _trained_beside(self, tensor: TensorId) -> bool:
        """Tells whether the parameter was filled often enough by backwards that train other parameters."""
        backwards = self._facts.optimized.left_out[tensor]
        if any(backward.serial in self._missed for backward in backwards):
            return False
        return self._facts.optimized.count(self._beside[tensor]) >= _SEEN_OFTEN

    @cached_property
    def _beside(self) -> dict[TensorId, tuple[Backward, ...]]:
        """The backwards that fill each left-out parameter and that an optimizer of its like stepped on."""
        found: dict[TensorId, tuple[Backward, ...]] = {}
        for tensor, backwards in self._facts.optimized.left_out.items():
            bare = not self._facts.names.places(tensor) and not self._copies(tensor)
            found[tensor] = tuple(b for b in backwards if self._trains(b, bare=bare))
        return found

    def _trains(self, backward: Backward, *, bare: bool) -> bool:
        """Tells whether an optimizer stepped on a backward, of module parameters unless `bare` ones do."""
        for optimizer in self._facts.optimized.trainers(backward):
            held = set(self._facts.gradients.parameters(optimizer)) & set(backward.reached)
            if any(self._facts.names.places(t) or (bare and self._is_parameter(t)) for t in held):
                return True
        return False

    def _is_parameter(self, tensor: TensorId) -> bool:
        row = self._facts.trace.tensors.get(tensor)
        return row is not None and row.parameter

    @cached_property
    def _missed(self) -> frozenset[Serial]:
        """The backwards that were there for another optimizer, none of whose parameters they reached."""
        return frozenset(missed.backward.serial for missed in self._facts.reach.missed())

    # --- why ---------------------------------------------------------------------------------------------

    def _reason(self, tensor: TensorId) -> Reason:
        if self._copies(tensor):
            return "copied"
        roots = self._facts.optimized.roots(tensor)
        if roots & self._optimized_roots:
            return "left-out"
        return "unregistered" if self._inside_another(tensor, roots) else "apart"

    @cached_property
    def _optimized_roots(self) -> frozenset[ModuleId]:
        found: set[ModuleId] = set()
        for optimizer in self._facts.trace.optimizers:
            for tensor in self._facts.gradients.parameters(optimizer):
                found |= self._facts.optimized.roots(tensor)
        return frozenset(found)

    def _copies(self, tensor: TensorId) -> tuple[Op | Transfer, ...]:
        """Returns what made a copy of a parameter that no module holds, once and for all the run."""
        if self._facts.names.places(tensor):
            return ()
        reads = [e for e in self._facts.values.consumers(tensor) if isinstance(e, Op | Transfer)]
        built = [event for event in reads if event.seq[1] > event.seq[0]]
        return tuple(built) if built and built[-1].serial < self._first_backward else ()

    @cached_property
    def _first_backward(self) -> Serial:
        """The serial of the first backward: what comes before it prepares the training."""
        backwards = self._facts.graphs.backwards
        return backwards[0].serial if backwards else Serial(0)

    def _inside_another(self, tensor: TensorId, roots: frozenset[ModuleId]) -> bool:
        """Tells whether a parameter is used within the forward of a module that an optimizer trains."""
        for event in self._facts.values.consumers(tensor):
            if not isinstance(event, Op) or event.call is None:
                continue
            for call in self._around(event.call):
                root = self._facts.names.root(call)
                if root not in roots and root in self._optimized_roots:
                    return True
        return False

    def _around(self, call: Serial) -> Iterator[ModuleId]:
        current: Serial | None = call
        while current is not None and (event := self._calls.get(current)) is not None:
            yield event.module
            current = event.parent

    @cached_property
    def _calls(self) -> dict[Serial, ModuleCall]:
        return {event.serial: event for event in self._facts.trace.events if isinstance(event, ModuleCall)}

    def _meant(self, tensor: TensorId) -> bool:
        """Tells whether a parameter was made in this run, and not used in eval mode only."""
        first = self._facts.optimized.left_out[tensor][0].serial
        made = self._facts.optimized.made_here(tensor, first)
        return made and not self._facts.optimized.evaluated_only(tensor)
