"""Parameters whose gradient is exactly zero whenever it was looked at, and the node that made it so.

May import `record` and the rest of `analysis`. A zero is told only where the record holds the edge of the
graph on which a gradient became zero: one that cancels out, as the last bias of a critic's does, has none.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.graphs import BackwardGraph
from graphlint.record.events import Backward, OptimizerStep
from graphlint.record.graph import Node
from graphlint.record.identity import OptimizerId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_OFTEN = 3
"""Steps whose gradients were looked at, before a zero is believed: it may be that of a first step only."""

Kind = Literal["flat", "rectifier", "saturated", "single", "dropout", "norm", "factor", "stuck", "custom"]

_KINDS: tuple[tuple[Kind, str], ...] = (
    ("flat", "Sign Sgn Round Floor Ceil Trunc"),
    ("rectifier", "Relu Threshold Hardtanh Clamp ClampMin ClampMax Hardsigmoid Hardswish LeakyRelu"),
    ("saturated", "Sigmoid Tanh Softmax LogSoftmax Gelu Silu Softplus LogSigmoid Elu Exp Erf Mish"),
    ("dropout", "NativeDropout"),
    ("norm", "NativeLayerNorm NativeGroupNorm NativeBatchNorm CudnnBatchNorm FusedRmsNorm"),
    ("factor", "Mul Mm Addmm Bmm Baddbmm Mv Dot Convolution"),
)
_KIND_OF: Mapping[str, Kind] = {name: kind for kind, names in _KINDS for name in names.split()}
_BACKWARD = re.compile(r"Backward\d*$")

_TO_THE_LOSS = frozenset(
    [
        *(
            "Sum",
            "Mean",
            "Add",
            "Neg",
            "Mul",
            "Div",
            "View",
            "UnsafeView",
            "ReshapeAlias",
            "Squeeze",
            "Unsqueeze",
        ),
        *("Expand", "Stack", "Cat", "Select", "Index", "MaskedSelect", "Slice", "Minimum", "Maximum", "Min"),
        *("Max", "Pow", "ToCopy", "MaskedFill", "Where", "Topk", "Clone", "Permute", "Transpose", "Split"),
    ]
)
"""Nodes between the loss and a term of it: what such a term leaves at zero is satisfied, not dead."""

_OF_TORCH = frozenset({"CheckpointFunction", "CompiledFunction"})
"""Functions behind which torch hides a graph of the user's own."""

_WITH_BIAS = frozenset({"Addmm", "Baddbmm", "Convolution"})
_LAYERS = frozenset({"Addmm", "Mm", "UnsafeView", "Convolution", "NativeBatchNorm", "NativeLayerNorm"})


def kind_name(node: Node) -> str:
    """Returns what a node is, without torch's numbering: `Sqrt` for `SqrtBackward0`."""
    return _BACKWARD.sub("", node.name)


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Parameters to which one place of the source lets no gradient through.

    Attributes:
        optimizer: whose parameters they are.
        parameters: those of modules that get no other gradient at all.
        node: the node at which the gradient became zero.
        kind: what sort of node it is.
        backward: a backward in which that was seen.
        steps: how many steps' gradients were looked at; all were zero.
        step: the first of them.
    """

    optimizer: OptimizerId
    parameters: tuple[TensorId, ...]
    node: Node
    kind: Kind
    backward: Backward
    steps: int
    step: OptimizerStep


@dataclass(slots=True)
class _Record:
    zero: int = 0
    other: int = 0
    first: OptimizerStep | None = None


class Zeros:
    """Finds the parameters of a trace that never get a gradient other than zero."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def all(self) -> Iterator[Zeroed]:
        """Yields what is zero, by the node that makes it so."""
        groups: dict[tuple[OptimizerId, int | None, str], tuple[Node, Kind, Backward, list[TensorId]]] = {}
        for optimizer, tensor in self._always_zero():
            explained = self._explained(tensor)
            if explained is None:
                continue
            backward, node, kind = explained
            key = (optimizer, node.site, node.name)
            groups.setdefault(key, (node, kind, backward, []))[3].append(tensor)
        for (optimizer, *_), (node, kind, backward, tensors) in groups.items():
            whole = tuple(self._whole(tensors))
            records = [self._records[optimizer, tensor] for tensor in whole]
            if records and records[0].first is not None:
                steps = max(record.zero for record in records)
                yield Zeroed(optimizer, whole, node, kind, backward, steps, records[0].first)

    def _always_zero(self) -> Iterator[tuple[OptimizerId, TensorId]]:
        for (optimizer, tensor), record in self._records.items():
            if record.zero >= _OFTEN and not record.other and record.first is not None:
                trainable = self._facts.reach.trainable(optimizer, record.first.serial)
                if tensor in trainable:
                    yield optimizer, tensor

    @cached_property
    def _records(self) -> dict[tuple[OptimizerId, TensorId], _Record]:
        """How often each parameter's gradient was looked at, and found to be zero."""
        records: dict[tuple[OptimizerId, TensorId], _Record] = {}
        for step in self._facts.gradients.all_steps:
            if not step.gradients_checked or step.error is not None:
                continue
            zero, without = set(step.zero_gradients), set(step.without_grad)
            for tensor in self._facts.gradients.parameters(step.optimizer):
                if tensor in without:
                    continue
                record = records.setdefault((step.optimizer, tensor), _Record())
                record.first = record.first or step
                if tensor in zero:
                    record.zero += 1
                else:
                    record.other += 1
        return records

    def _whole(self, tensors: Iterable[TensorId]) -> Iterator[TensorId]:
        """Yields those whose module has no other parameter of its own that gets a gradient."""
        for tensor in tensors:
            places = self._facts.names.places(tensor)
            if all(self._is_whole(place.module) for place in places):
                yield tensor

    def _is_whole(self, module: int) -> bool:
        own = [
            place.tensor
            for place in self._facts.trace.parameters
            if place.module == module and not place.buffer
        ]
        return all(
            tensor in self._never or not self._facts.values.requires_grad(tensor, self._last)
            for tensor in own
        )

    @cached_property
    def _last(self) -> Serial:
        return self._facts.trace.events[-1].serial

    def _explained(self, tensor: TensorId) -> tuple[Backward, Node, Kind] | None:
        """Returns a node behind which all of a parameter's gradient is zero, and a backward that shows it."""
        for backward in self._probed.get(tensor, ()):
            graph = self._facts.graphs.of(backward)
            if graph is None or tensor not in graph.leaves:
                continue
            edges = self._closed(backward, graph, graph.leaves[tensor])
            if edges is None:
                return None
            kinds = {edge: self._kind(graph, *edge) for edge in sorted(edges)}
            if all(kind is not None for kind in kinds.values()):
                known = [(edge, kind) for edge, kind in kinds.items() if kind is not None]
                # A factor is zero for a reason that another of these nodes may be.
                edge, kind = min(known, key=lambda found: found[1] in {"factor", "stuck"})
                return backward, graph.nodes[edge[0]], kind
            return None
        return None

    @cached_property
    def _probed(self) -> dict[TensorId, list[Backward]]:
        found: dict[TensorId, list[Backward]] = {}
        for backward in self._facts.graphs.backwards:
            if backward.values is not None and backward.values.probed and backward.error is None:
                for tensor in backward.reached:
                    found.setdefault(tensor, []).append(backward)
        return found

    def _closed(self, backward: Backward, graph: BackwardGraph, leaf: int) -> set[tuple[int, int]] | None:
        """Returns the edges above a leaf on which its gradient became zero; None where a way is open."""
        if backward.values is None or graph.graph.truncated:
            return None
        zero = {(turn.source, turn.target) for turn in backward.values.turns if turn.to == "zero"}
        found: set[tuple[int, int]] = set()
        seen, waiting = {leaf}, [leaf]
        while waiting:
            node = waiting.pop()
            if node in graph.graph.roots:
                return None
            for before in graph.walked.predecessors(node):
                if (before, node) in zero:
                    found.add((before, node))
                elif before not in seen:
                    seen.add(before)
                    waiting.append(before)
        return found or None

    def _kind(self, graph: BackwardGraph, source: int, target: int) -> Kind | None:
        """Returns the sort of a node that lets no gradient through; None where that is as it should be."""
        node = graph.nodes[source]
        name = kind_name(node)
        if node.custom in _OF_TORCH:
            return None
        kind = "custom" if node.custom is not None else _KIND_OF.get(name)
        if kind == "saturated" and name in {"Softmax", "LogSoftmax"}:
            kind = "single" if _single(node) else kind if name == "Softmax" else None
        elif kind == "factor":
            event = self._facts.graphs.event(node)
            if event is not None and "dropout" in getattr(event, "name", ""):
                kind = "dropout"
            else:
                kind = self._factor(graph, source, target)
        elif kind == "rectifier" and self._is_loss_term(graph, source, target):
            kind = None
        return kind

    def _is_loss_term(self, graph: BackwardGraph, source: int, target: int) -> bool:
        """Tells a hinge: a rectifier on something computed, whose result goes into the loss as it is."""
        above = graph.upstream([source]) - {source}
        if kind_name(graph.nodes[target]) in _LAYERS:
            return False
        return all(kind_name(graph.nodes[index]) in _TO_THE_LOSS for index in above)

    def _factor(self, graph: BackwardGraph, source: int, target: int) -> Kind | None:
        """Returns how the other factor of a product stays zero; None where it is trained, or a number."""
        node = graph.nodes[source]
        if not node.saves:
            return None
        others = [
            index
            for index in graph.walked.successors(source)
            if index != target and not (kind_name(node) in _WITH_BIAS and _is_bias(graph.nodes[index]))
        ]
        if not others:
            return "factor"
        return "stuck" if graph.leaves_below(others) <= self._never else None

    @cached_property
    def _never(self) -> frozenset[TensorId]:
        """The parameters that never had a gradient other than zero."""
        return frozenset(t for (_, t), record in self._records.items() if record.zero and not record.other)


def _is_bias(node: Node) -> bool:
    return node.leaf is not None and len(node.shape) == 1


def _single(node: Node) -> bool:
    """Tells whether a softmax runs over one entry, in its last dimension or that of the classes."""
    shape = node.shape
    return bool(shape) and 1 in {shape[-1], shape[min(1, len(shape) - 1)]}
