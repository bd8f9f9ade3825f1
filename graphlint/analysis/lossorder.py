"""Losses of torch that were given the target where the prediction belongs.

May import `record` and the rest of `analysis`. The proof is the gradient: it flows into what was passed as
the target, while what was passed as the prediction is data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.record.events import Backward, Op
from graphlint.record.identity import TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

ASYMMETRIC = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cross_entropy",
        "poisson_nll_loss",
        "kl_div",
    )
)
"""Losses whose result differs when the two are exchanged. Called as torch declares it: input, target."""

_DIVERGENCE = "torch.nn.functional.kl_div"
_LOGARITHMS = ("log_softmax", "logsigmoid", "log")


@dataclass(frozen=True, slots=True)
class SwappedLoss:
    """A loss with its arguments exchanged, and the backward that trained by it."""

    loss: Op
    given: TensorId
    target: TensorId
    backward: Backward


class LossOrder:
    """Finds the swapped losses of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def swapped(self) -> Iterator[SwappedLoss]:
        """Yields each loss that trains through its target, on data as its prediction."""
        losses = [
            event for event in self._facts.trace.events if isinstance(event, Op) and self._is_loss(event)
        ]
        pairs = {(op.name, op.inputs[0].tensor, op.inputs[1].tensor) for op in losses}
        for op in losses:
            given, target = op.inputs[0], op.inputs[1]
            if given.requires_grad or not target.requires_grad:
                continue
            symmetric = (op.name, target.tensor, given.tensor) in pairs
            if symmetric or not self._is_data(given.tensor, op) or not self._is_meant(op):
                continue
            backward = self._trained_by(op)
            if backward is not None:
                yield SwappedLoss(op, given.tensor, target.tensor, backward)

    def _is_loss(self, op: Op) -> bool:
        return op.name in ASYMMETRIC and len(op.inputs) > 1 and op.error is None

    def _is_data(self, tensor: TensorId, op: Op) -> bool:
        """Tells whether nothing that a module computed or holds went into a tensor."""
        flow = self._facts.values.flow(tensor, op.serial)
        return not any(self._facts.names.places(source) for source in flow.tensors)

    def _is_meant(self, op: Op) -> bool:
        """Tells, of a divergence, whether log-probabilities stand where probabilities belong.

        The reverse divergence is asked for with the logarithm of the data first.
        """
        if op.name != _DIVERGENCE:
            return True
        first, second = (self._is_logarithm(use.tensor) for use in op.inputs[:2])
        return second and not first

    def _is_logarithm(self, tensor: TensorId) -> bool:
        for maker in self._facts.values.makers(tensor):
            if isinstance(maker, Op) and maker.name.rpartition(".")[2] in _LOGARITHMS:
                return True
        return False

    def _trained_by(self, op: Op) -> Backward | None:
        """Returns the backward whose graph the loss belongs to."""
        for backward in self._facts.graphs.backwards:
            graph = self._facts.graphs.of(backward)
            if graph is None or backward.same_shape or backward.call == "autograd.grad":
                continue
            if any(graph.nodes[index].op == op.serial for index in graph.executed):
                return backward
        return None
