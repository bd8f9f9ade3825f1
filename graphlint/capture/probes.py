"""Watches the gradients inside a backward, to tell the node at which they became zero, NaN or infinite.

May import `record` and the rest of `capture`. Hooks on the nodes of one walk, taken off when the engine has
come back. A hook is given a node's gradients, looks, and holds nothing; it returns nothing, so gradients are
passed on, accumulated and handed to the leaves as without it. Leaves have no hook: they outlive the graph.
"""

import re
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from graphlint.capture.extents import extent_of, worst
from graphlint.capture.graphs import AccumulateGrad, Walk
from graphlint.capture.guard import Guard
from graphlint.capture.values import is_bad
from graphlint.record.values import Extent, Turn

MAX_TURNS = 200
"""Turns of one backward that are recorded."""

_RISKY_NAMES = """
    Sqrt Rsqrt Pow Norm LinalgVectorNorm Dist Acos Asin Acosh Atanh Atan2 Std StdMean Prod Cumprod Hypot Cdist
    EuclideanDist Pdist Div Reciprocal Log Xlogy Logit Erfinv LinalgEigh LinalgEig LinalgSvd LinalgDet
    LinalgSlogdet LinalgInvEx LinalgCholeskyEx Renorm WeightNormInterface CtcLoss
"""
_RISKY = frozenset(_RISKY_NAMES.split())
"""Kinds of node that can make a NaN or an infinity of finite gradients, though what they saved is finite."""

_BACKWARD = re.compile(r"Backward\d*$")
_SHORT = frozenset({torch.float16})


class Probe:
    """The hooks of one backward.

    Args:
        guard: runs the looks.
        every_node: look at every node, rather than at those of kinds that make NaN of finite gradients.
        half: look at all nodes in half precision too.
    """

    def __init__(self, guard: Guard, *, every_node: bool, half: bool = False) -> None:
        self._guard = guard
        self._handles: list[Any] = []
        self._turns: list[Turn] = []
        self._half = half
        self.every_node = every_node

    def arm(self, walk: Walk) -> None:
        """Puts hooks on the nodes of a walk; the walk is not held."""
        risky = {kind for kind in set(walk.kinds) if self.every_node or _is_risky(kind)}
        risky.discard(AccumulateGrad)
        wanted = [index for index, kind in enumerate(walk.kinds) if kind in risky]
        if self._half and not self.every_node:
            wanted = sorted({*wanted, *_half_nodes(walk)})
        if not wanted:
            return
        receivers: dict[int, list[int]] = {}
        for source, target in walk.edges:
            receivers.setdefault(source, []).append(target)
        try:
            for index in wanted:
                node = walk.nodes[index]
                slots = _by_slot(node, receivers.get(index, []))
                if slots:
                    self._handles.append(node.register_hook(partial(self._hook, index, slots)))
        except BaseException:
            self.remove()
            raise

    def _hook(
        self, index: int, slots: tuple[int | None, ...], given: tuple[Any, ...], taken: tuple[Any, ...]
    ) -> None:
        if len(self._turns) < MAX_TURNS:
            self._guard.run("gradient-values", self._look, index, slots, given, taken)

    def _look(
        self, index: int, slots: tuple[int | None, ...], given: tuple[Any, ...], taken: tuple[Any, ...]
    ) -> None:
        """Compares what a node was given (`taken`, in torch's order of arguments) with what it gives."""
        before = worst(_extent(gradient) for gradient in taken)
        if before is None or is_bad(before):
            return
        for target, gradient in zip(slots, given, strict=False):
            after = _extent(gradient)
            if target is None or after is None:
                continue
            if after == "nan" or after == "inf":  # noqa: PLR1714 - narrows the type
                self._turns.append(Turn(index, target, after))
            elif after == "zero" and before == "finite":
                self._turns.append(Turn(index, target, "zero"))

    def remove(self) -> tuple[Turn, ...]:
        """Takes the hooks off and returns what they saw."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return tuple(self._turns)


def _extent(gradient: Any) -> Extent | None:
    return extent_of(gradient) if isinstance(gradient, torch.Tensor) else None


def _is_risky(kind: type) -> bool:
    return issubclass(kind, BackwardCFunction) or _BACKWARD.sub("", kind.__name__) in _RISKY


def _half_nodes(walk: Walk) -> list[int]:
    """Returns the nodes whose gradient is in half precision."""
    kinds = zip(walk.nodes, walk.kinds, strict=True)
    return [
        index
        for index, (node, kind) in enumerate(kinds)
        if kind is not AccumulateGrad and any(data.dtype in _SHORT for data in node._input_metadata[:1])
    ]


def _by_slot(node: Any, receivers: list[int]) -> tuple[int | None, ...]:
    """Returns the index of the node that receives each gradient which `node` gives; None where none does."""
    waiting = iter(receivers)
    return tuple([None if target is None else next(waiting) for target, _ in node.next_functions])
