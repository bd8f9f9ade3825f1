"""Follows a NaN or an infinity back to the operation that made it of finite numbers, or to the data.

May import `record` and the rest of `analysis`. Not every result was looked at: between two that were, the
last operation that can overflow is taken.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.scales import short
from graphlint.record.events import Op, Transfer
from graphlint.record.identity import Serial, TensorId
from graphlint.record.values import Extent, ValuesSeen

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_FILLS = frozenset(
    [
        *(
            "masked_fill",
            "masked_fill_",
            "full",
            "full_like",
            "new_full",
            "fill_",
            "where",
            "triu",
            "tril",
            "tensor",
        ),
        *("__setitem__", "index_fill", "index_fill_", "add", "sub", "cat", "stack"),
    ]
)
"""Operations by which a script puts infinities on purpose, or only passes them on to a softmax."""

_WRITES = frozenset(
    {"__setitem__", "tensor", "as_tensor", "from_numpy", "full", "full_like", "fill_", "new_tensor"}
)
"""Operations that put the script's own numbers into a tensor."""

_MASKS = frozenset({"masked_fill", "masked_fill_", "index_fill", "index_fill_"})

_FROM_INFINITY = frozenset({"softmax", "log_softmax", "cross_entropy", "logsumexp", "nll_loss"})
_ARITHMETIC = frozenset(
    [
        *(
            "mul",
            "multiply",
            "__mul__",
            "linear",
            "matmul",
            "mm",
            "bmm",
            "addmm",
            "conv1d",
            "conv2d",
            "conv3d",
            "pow",
        ),
        *("einsum", "square", "cumsum", "half", "to"),
    ]
)
_MOST = 4_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value ceased to be finite.

    Attributes:
        op: the operation that made it so; None where it was so from the start.
        tensor: what came of the operation, or what was so from the start.
        extent: NaN or infinity.
        from_infinity: an operation before it that made an infinity of which this one made the NaN.
    """

    op: Op | None
    tensor: TensorId
    extent: Extent
    from_infinity: Op | None = None

    @property
    def written(self) -> bool:
        """Whether the script put it there itself, as a number."""
        return self.op is not None and (short(self.op.name) in _WRITES or not self.op.inputs)


class Origins:
    """Follows values back, by what one event says that was seen.

    Args:
        facts: the trace.
        seen: what was seen.
    """

    def __init__(self, facts: "Facts", seen: ValuesSeen) -> None:
        self._facts = facts
        self._seen = seen
        self._done: dict[tuple[TensorId, Serial, bool], Origin | None] = {}

    @cached_property
    def _made(self) -> dict[tuple[TensorId, Serial], Extent]:
        return {(v.tensor, v.at): v.extent for v in self._seen.values if v.made}

    @cached_property
    def _read(self) -> dict[tuple[TensorId, Serial], Extent]:
        own = self._seen.serial
        return {(v.tensor, v.at): v.extent for v in self._seen.values if not v.made and v.at != own}

    @cached_property
    def _held(self) -> dict[TensorId, Extent]:
        own = self._seen.serial
        return {v.tensor: v.extent for v in self._seen.values if not v.made and v.at == own}

    def bad_scalar(self) -> TensorId | None:
        """Returns the last single number among the results that isn't finite: a loss, where there is one."""
        rows = self._facts.trace.tensors
        bad = [v for v in self._seen.values if v.made and v.extent in {"nan", "inf"}]
        single = [v.tensor for v in bad if v.tensor in rows and not rows[v.tensor].shape]
        return single[-1] if single else None

    def of(self, tensor: TensorId) -> Origin | None:
        """Returns the origin of a value that is known to be bad; None where the record can't tell."""
        return self._follow(tensor, self._seen.serial, certain=True)

    def _extent(self, tensor: TensorId, reader: Serial) -> Extent | None:
        """Returns what a tensor held when the operation `reader` read it, as far as somebody looked."""
        known = self._read.get((tensor, reader))
        if known is not None:
            return known
        event = self._facts.values.producer(tensor, Serial(reader - 1))
        if isinstance(event, Op):
            known = self._made.get((tensor, event.serial))
        if known is None and self._facts.values.producer(tensor, self._seen.serial) is event:
            known = self._held.get(tensor)
        return known

    def _follow(self, tensor: TensorId, before: Serial, *, certain: bool) -> Origin | None:
        key = (tensor, before, certain)
        if key not in self._done:
            self._done[key] = None
            if len(self._done) <= _MOST:
                self._done[key] = self._find(tensor, before, certain=certain)
        return self._done[key]

    def _find(self, tensor: TensorId, before: Serial, *, certain: bool) -> Origin | None:
        event = self._facts.values.producer(tensor, Serial(before - 1))
        extent = self._extent(tensor, before)
        bad = certain or extent in {"nan", "inf"}
        if isinstance(event, Transfer):
            return self._follow(event.source.tensor, event.serial, certain=bad)
        if not isinstance(event, Op):
            return Origin(None, tensor, extent) if extent is not None and bad and extent != "finite" else None
        if extent in {"finite", "zero"} and not certain:
            return None
        result: Extent = extent if extent in {"nan", "inf"} else "nan"
        inner = self._from_inputs(event, result)
        if inner is not None:
            return inner
        return Origin(event, tensor, result) if bad or short(event.name) in _ARITHMETIC else None

    def _from_inputs(self, event: Op, result: Extent) -> Origin | None:
        """Returns the origin among what an operation read; bad inputs first, then those nobody looked at."""
        extents = [(use.tensor, self._extent(use.tensor, event.serial)) for use in event.inputs]
        # What a mask leaves alone is finite as a rule: nobody looked, and the mask explains the infinity.
        kinds = ("nan", "inf") if short(event.name) in _MASKS and result == "inf" else ("nan", "inf", None)
        for kind in kinds:
            for tensor, extent in extents:
                if extent != kind:
                    continue
                origin = self._follow(tensor, event.serial, certain=kind is not None)
                if origin is None:
                    continue
                if result == "nan" and self._is_mask(origin, event):
                    return Origin(event, event.outputs[0], result, from_infinity=origin.op)
                return origin
        return None

    def _is_mask(self, origin: Origin, reader: Op) -> bool:
        """Tells whether an infinity was put there on purpose, and made a NaN by what read it."""
        if origin.op is None or origin.from_infinity is not None or not reader.outputs:
            return False
        return short(origin.op.name) in _FILLS and short(reader.name) in _FROM_INFINITY
