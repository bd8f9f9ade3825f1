"""Losses in which one operand has a dimension of size 1 that the other lacks, so that all pairs are compared.

May import `record` and the rest of `analysis`. `(16, 1)` against `(16,)` gives `(16, 16)`. Whoever wants that
inserts or keeps the dimension where it is used; a layer's output and a batch have it by nature.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.scales import short
from graphlint.record.events import Backward, Op
from graphlint.record.identity import Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_PAIRED = frozenset({"sub", "rsub", "__rsub__", "mul", "multiply", "add", "div", "true_divide", "subtract"})
_ELEMENTWISE = _PAIRED | frozenset(
    [
        *(
            "pow",
            "__pow__",
            "square",
            "abs",
            "neg",
            "sqrt",
            "log",
            "log1p",
            "exp",
            "clamp",
            "clamp_min",
            "relu",
        ),
        *("float", "double", "softplus", "sigmoid", "tanh", "cosh", "minimum", "maximum", "rsqrt", "to"),
    ]
)
_PASSED_ON = _ELEMENTWISE | frozenset({"mean", "sum", "norm", "detach"})
_INSERTS = frozenset({"unsqueeze", "__getitem__", "view", "reshape", "expand", "unflatten", "broadcast_to"})
_KEEPS = frozenset(
    [
        *(
            "sum",
            "mean",
            "norm",
            "vector_norm",
            "amax",
            "amin",
            "max",
            "min",
            "logsumexp",
            "var",
            "std",
            "prod",
        ),
        *("median", "nansum", "nanmean"),
    ]
)
"""Reductions, which may keep their dimension at size 1."""

_ELEMENT_BY_ELEMENT = frozenset(
    [
        *(
            "float",
            "double",
            "to",
            "detach",
            "clone",
            "contiguous",
            "pow",
            "__pow__",
            "square",
            "neg",
            "abs",
            "sqrt",
        ),
        *("exp", "log", "mul", "div", "add", "sub", "rsub", "__rsub__", "clamp", "clamp_min"),
    ]
)
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Broadcast:
    """An operation whose operands differ by a dimension of size 1, on the way to a loss.

    Attributes:
        op: the operation.
        long: the operand with the extra dimension, at `dim` (0-based).
        other: the operand without it.
        shapes: of the two and of what comes of them.
        backward: a backward of the loss.
    """

    op: Op
    long: TensorId
    other: TensorId
    dim: int
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    backward: Backward


class Broadcasts:
    """Finds the broadcasts of a trace that a loss hides."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Broadcast]:
        """Yields the broadcasts, in time order."""
        for event in self._facts.trace.events:
            if not isinstance(event, Op) or event.error is not None or len(event.inputs) < _PAIR:
                continue
            name = short(event.name)
            if name in _LOSSES or name in _PAIRED:
                found = self._look(event, scored=name in _LOSSES)
                if found is not None:
                    yield found

    def _look(self, op: Op, *, scored: bool) -> Broadcast | None:
        one, two = op.inputs[0].tensor, op.inputs[1].tensor
        for long, other in ((one, two), (two, one)):
            a, b = self._shape(long), self._shape(other)
            dim = extra_dimension(a, b)
            if dim is None:
                continue
            result = _broadcast(a, b)
            if math.prod(result) == math.prod(a) or self._is_meant(op, long, scored=scored):
                return None
            backward = self._loss_of(op)
            return Broadcast(op, long, other, dim, (a, b, result), backward) if backward else None
        return None

    def _shape(self, tensor: TensorId) -> tuple[int, ...]:
        row = self._facts.trace.tensors.get(tensor)
        return row.shape if row is not None else ()

    def _is_meant(self, op: Op, long: TensorId, *, scored: bool) -> bool:
        """Tells whether the dimension was inserted for this use, rather than being there by nature.

        A loss function that returns one number is never meant to be given all pairs.
        """
        if scored and op.outputs and not self._shape(op.outputs[0]):
            return False
        inserted = self._inserted(op, long)
        if inserted is None:
            return False
        step = self._facts.steps.of(op.serial)
        here, there = self._facts.graphs.frame(op.site), self._facts.graphs.frame(inserted.site)
        if here is None or there is None or here.line == there.line:
            return True
        in_step = step is None or step.number == 0 or inserted.serial >= step.first
        return in_step and (here.path, here.function) == (there.path, there.function)

    def _inserted(self, op: Op, tensor: TensorId) -> Op | None:
        """Returns the call that gave a tensor its extra dimension; None where it was made with it."""
        before = op.serial
        for _ in range(8):
            event = self._facts.values.producer(tensor, Serial(before - 1))
            if not isinstance(event, Op) or not event.inputs:
                return None
            shape, name = self._shape(tensor), short(event.name)
            sources = [use.tensor for use in event.inputs]
            source = next((t for t in sources if self._shape(t) == shape), sources[0])
            before_shape = self._shape(source)
            if name in _INSERTS and len(before_shape) < len(shape):
                return event
            if name in _KEEPS and len(before_shape) == len(shape) and before_shape != shape:
                return event
            if name not in _ELEMENT_BY_ELEMENT and name not in _INSERTS:
                return None
            tensor, before = source, event.serial
        return None

    def _loss_of(self, op: Op) -> Backward | None:
        """Returns a backward of what becomes of an operation: element by element, then a mean or a sum."""
        scalar = self._reduced(op)
        if scalar is None:
            return None
        for backward in self._facts.graphs.backwards:
            if backward.serial < op.serial or backward.same_shape:
                continue
            for root in backward.roots:
                if self._facts.values.depends(root, backward.serial, [scalar]):
                    return backward
        return None

    def _reduced(self, op: Op) -> TensorId | None:
        """Returns the number that all elements end in; None where they are used as pairs would be."""
        current = op
        for _ in range(16):
            if not current.outputs:
                return None
            out = current.outputs[0]
            if not self._shape(out):
                return out if any(current.output_grads) else None
            readers = [e for e in self._facts.values.consumers(out) if isinstance(e, Op)]
            following = [e for e in readers if short(e.name) in _PASSED_ON]
            others = [e for e in readers if e not in following and any(e.output_grads)]
            if not following or others:
                return None
            if self._meets_pairs(op, out, following[-1]):
                return None
            current = following[-1]
        return None

    def _meets_pairs(self, op: Op, out: TensorId, reader: Op) -> bool:
        """Tells whether the pairs are joined with others that have another origin: then they are meant."""
        others = [use.tensor for use in reader.inputs if use.tensor != out]
        return any(
            self._shape(other) == self._shape(out)
            and not self._facts.values.depends(other, reader.serial, op.outputs)
            for other in others
        )


def extra_dimension(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """Returns the dimension of size 1 without which `a` would be `b`; None where there is none."""
    if len(a) != len(b) + 1:
        return None
    return next((i for i, size in enumerate(a) if size == 1 and (*a[:i], *a[i + 1 :]) == b), None)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    padded = ((1,) * (len(a) - len(b)), b)
    filled = (*padded[0], *padded[1])
    return tuple(max(one, two) for one, two in zip(a, filled, strict=True))
