"""What sort of number a tensor holds, as far as its derivation proves: probabilities, logarithms, logits.

May import `record` and `analysis.values` only. Told by the operation that made the tensor, looked for through
views and whatever else leaves the numbers as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.record.events import Op, Transfer
from graphlint.record.identity import Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Scale = Literal["probability", "log-probability", "raw"]

_MADE: Mapping[str, Scale] = {
    **dict.fromkeys(("softmax", "softmin", "gumbel_softmax", "sigmoid", "sigmoid_", "expit"), "probability"),
    **dict.fromkeys(("log_softmax", "logsigmoid"), "log-probability"),
    **dict.fromkeys(("linear", "bilinear", "addmm", "matmul", "mm", "relu", "leaky_relu", "tanh"), "raw"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"), "raw"),
}
_LEFT_AS_THEY_ARE = frozenset(
    [
        *(
            "view",
            "reshape",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
            "transpose",
            "permute",
            "movedim",
            "t",
        ),
        *(
            "T",
            "mT",
            "contiguous",
            "clone",
            "float",
            "double",
            "half",
            "to",
            "type",
            "__getitem__",
            "select",
            "cpu",
        ),
        *(
            "narrow",
            "index_select",
            "cat",
            "concat",
            "stack",
            "chunk",
            "split",
            "unbind",
            "expand",
            "dropout",
            "cuda",
        ),
    ]
)
_STILL_PROBABILITIES = frozenset({"mean", "clamp", "clip", "clamp_min", "clamp_max", "clamp_"})


def short(name: str) -> str:
    """Returns the bare name of one of torch's functions, `softmax` or `T`; empty for one of the user's."""
    if not name.startswith("torch."):
        return ""
    head, _, tail = name.rpartition(".")
    return head.rpartition(".")[2] if tail == "__get__" else tail


@dataclass(frozen=True, slots=True)
class Made:
    """The sort of number that a tensor holds, and the operation that made it so."""

    scale: Scale
    by: Op


class Scales:
    """Tells the sort of number that tensors hold."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def of(self, tensor: TensorId, before: Serial) -> Made | None:
        """Returns what a tensor held just before a serial; None where its derivation doesn't prove it."""
        key = (tensor, before)
        if key not in self._cache:
            self._cache[key] = None  # a tensor that is computed from itself proves nothing
            self._cache[key] = self._derive(tensor, before)
        return self._cache[key]

    @cached_property
    def _cache(self) -> dict[tuple[TensorId, Serial], Made | None]:
        return {}

    def _derive(self, tensor: TensorId, before: Serial) -> Made | None:
        event = self._facts.values.producer(tensor, Serial(before - 1))
        if isinstance(event, Transfer):
            return self.of(event.source.tensor, event.serial)
        if not isinstance(event, Op) or not event.inputs or event.error is not None:
            return None
        name = short(event.name)
        if name in _MADE:
            return Made(_MADE[name], event)
        return self._passed_on(name, event)

    def _passed_on(self, name: str, event: Op) -> Made | None:
        if name not in _LEFT_AS_THEY_ARE and name not in _STILL_PROBABILITIES:
            return None
        read = event.inputs if name in {"cat", "concat", "stack"} else event.inputs[:1]
        found = [self.of(use.tensor, event.serial) for use in read]
        first = found[0]
        if first is None or any(other is None or other.scale != first.scale for other in found):
            return None
        return None if name in _STILL_PROBABILITIES and first.scale != "probability" else first
