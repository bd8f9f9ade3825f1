"""Losses that are given another sort of number than they are made for.

May import `record` and the rest of `analysis`. Only losses that autograd recorded count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.scales import Made, Scale, Scales, short
from graphlint.record.events import Op, OptimizerStep
from graphlint.record.identity import TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Case = Literal["twice", "harmless", "probability", "raw", "range"]

_LOGITS = "takes logits"
_LOGS = "takes logarithms of probabilities"
_WANTS: Mapping[str, tuple[str, Mapping[Scale, Case]]] = {
    "cross_entropy": (_LOGITS, {"probability": "twice", "log-probability": "harmless"}),
    "binary_cross_entropy_with_logits": (_LOGITS, {"probability": "twice"}),
    "multilabel_soft_margin_loss": (_LOGITS, {"probability": "twice"}),
    "nll_loss": (_LOGS, {"probability": "probability", "raw": "raw"}),
    "kl_div": (_LOGS, {"probability": "probability", "raw": "raw"}),
    "ctc_loss": (_LOGS, {"probability": "probability", "raw": "raw"}),
    "binary_cross_entropy": ("takes probabilities", {"raw": "range"}),
}
_NORMALISERS = frozenset({"logsumexp", "log_softmax", "softmax"})
_OUT_OF_RANGE = "between 0 and 1"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A loss and the tensor that it was given.

    Attributes:
        loss: the call.
        given: its first argument.
        made: what that holds, and the operation that made it so.
        case: how that misses what the loss takes.
        severity: where it isn't the usual one.
    """

    loss: Op
    given: TensorId
    made: Made
    case: Case
    severity: Literal["error", "info"] | None

    @property
    def name(self) -> str:
        """The loss, `cross_entropy`."""
        return short(self.loss.name)

    @property
    def by(self) -> str:
        """The operation that made the tensor what it is, `softmax`."""
        return short(self.made.by.name)

    @property
    def takes(self) -> str:
        """What the loss takes, in words."""
        return _WANTS[self.name][0]


class Mismatches:
    """Finds such losses in a trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._scales = Scales(facts)

    def all(self) -> Iterator[Mismatch]:
        """Yields them in time order."""
        for event in self._facts.trace.events:
            if isinstance(event, Op) and event.inputs and short(event.name) in _WANTS:
                found = self._look(event)
                if found is not None:
                    yield found

    def _look(self, loss: Op) -> Mismatch | None:
        use = loss.inputs[0]
        made = self._scales.of(use.tensor, loss.serial)
        if made is None or not use.requires_grad:
            return None
        case = _WANTS[short(loss.name)][1].get(made.scale)
        if case is None or (case == "raw" and self._is_normalised(use.tensor, made)):
            return None
        if case == "range":
            # Weights that turned NaN make values that are in no range either.
            if loss.error is None or _OUT_OF_RANGE not in loss.error or self._spoiled(loss):
                return None
            return Mismatch(loss, use.tensor, made, case, "error")
        if loss.error is not None:
            return None
        return Mismatch(loss, use.tensor, made, case, "info" if case == "harmless" else None)

    def _is_normalised(self, given: TensorId, made: Made) -> bool:
        """Tells whether the script takes the normalising sum elsewhere, and subtracts it by itself."""
        tensors = {given, *made.by.outputs}
        return any(
            isinstance(reader, Op) and short(reader.name) in _NORMALISERS
            for tensor in tensors
            for reader in self._facts.values.consumers(tensor)
        )

    def _spoiled(self, loss: Op) -> bool:
        return any(
            isinstance(event, OptimizerStep) and event.bad_gradients and event.serial < loss.serial
            for event in self._facts.trace.events
        )
