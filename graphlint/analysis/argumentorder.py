"""Calls of one module, or of a loss, whose tensors change places.

May import `record` and the rest of `analysis`. What a tensor is, is told by where it comes from: the same
memory, the same element of a batch, the same result of a module, the same line that made it. Two orders are a
fault only where the module treats the two places differently, and nobody uses both orders on purpose.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from graphlint.analysis.lossorder import ASYMMETRIC
from graphlint.record.events import Backward, BatchDraw, ModuleCall, Op, Transfer
from graphlint.record.identity import ModuleId, Serial, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Origin = tuple[str | int, ...]

_MOST_HOPS = 64
_MOST_CALLS = 8
_DRAWS = frozenset(f"torch.{name}" for name in ("rand", "randn", "rand_like", "randn_like", "normal"))
_FEWEST = 2  # arguments that can change places


@dataclass(frozen=True, slots=True)
class Exchange:
    """Two calls of a module that give two tensors in opposite order.

    Attributes:
        one: the call that is trained, or the earlier of two that are.
        other: the call in the opposite order.
        first, second: the parameters of the forward whose tensors change places.
        apart: whether one is trained and the other only evaluates; else both make the same loss.
    """

    one: ModuleCall
    other: ModuleCall
    first: str
    second: str
    apart: bool


class Origins:
    """Where tensors come from, so that those of two calls can be told to be the same."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def origin(self, tensor: TensorId, outside: ModuleCall) -> Origin | None:
        """Returns what a tensor is, seen from a call that was given it; None where the record can't tell.

        What reshapes, converts, moves or detaches it, and any other operation on it alone, is seen through.
        """
        current = tensor
        for _ in range(_MOST_HOPS):
            if current in self._batches:
                return self._batches[current]
            if self._facts.names.places(current):
                return ("held", current)
            result = self._results.get(current)
            if result is not None and result[0].end < outside.serial:
                return ("result", result[0].module, result[1])
            makers = self._facts.values.makers(current)
            if not makers:
                return None
            maker = makers[0]
            if isinstance(maker, Transfer):
                current = maker.source.tensor
                continue
            sources = {use.tensor for use in maker.inputs} if isinstance(maker, Op) else set()
            if not isinstance(maker, Op) or len(sources) != 1 or current in sources:
                return self._made(maker, current)
            current = sources.pop()
        return None

    def drawn(self, tensor: TensorId, outside: ModuleCall) -> str | None:
        """Returns the operation that drew a tensor's random numbers for a call; None for anything else."""
        origin = self.origin(tensor, outside)
        name = origin[3] if origin is not None and origin[0] == "made" else None
        return name if isinstance(name, str) and name in _DRAWS else None

    def _made(self, maker: object, tensor: TensorId) -> Origin | None:
        """Returns the line and the operation that made a tensor, counted within its line."""
        if not isinstance(maker, Op) or tensor not in maker.outputs:
            return None
        frame = self._facts.graphs.frame(maker.site)
        if frame is None:
            return None
        return ("made", frame.path, frame.line, maker.name, maker.outputs.index(tensor))

    @cached_property
    def _batches(self) -> dict[TensorId, Origin]:
        found: dict[TensorId, Origin] = {}
        for event in self._facts.trace.events:
            if isinstance(event, BatchDraw):
                for place, tensor in enumerate(event.tensors):
                    found.setdefault(tensor, ("batch", place, len(event.tensors)))
        return found

    @cached_property
    def _results(self) -> dict[TensorId, tuple[ModuleCall, int]]:
        """The outermost module call that handed a tensor out, and the tensor's place in its result."""
        found: dict[TensorId, tuple[ModuleCall, int]] = {}
        for call in self._facts.model_calls.all:
            for place, tensor in enumerate(call.outputs):
                if tensor not in call.inputs:
                    known = found.get(tensor)
                    if known is None or call.serial < known[0].serial:
                        found[tensor] = (call, place)
        return found


class ArgumentOrder:
    """Finds the exchanges of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._calls = facts.model_calls
        self._origins = Origins(facts)

    def exchanges(self) -> Iterator[Exchange]:
        """Yields the exchanged calls, one for each pair of lines."""
        for calls in self._by_module.values():
            if len(calls) > 1:
                yield from self._between_training_and_evaluation(calls)
                yield from self._within_a_loss(calls)

    @cached_property
    def _by_module(self) -> dict[ModuleId, list[ModuleCall]]:
        """The calls of each module: of each line, some that train and some that don't."""
        kept: dict[tuple[ModuleId, Frame, bool], list[ModuleCall]] = {}
        for call in self._calls.all:
            frame = self._facts.graphs.frame(call.site)
            if frame is None or call.error is not None or len(set(call.arguments)) < _FEWEST:
                continue
            same = kept.setdefault((call.module, frame, self._backward(call) is not None), [])
            if len(same) < _MOST_CALLS and len(call.arguments) == len(call.inputs):
                same.append(call)
        found: dict[ModuleId, list[ModuleCall]] = {}
        for (module, _, _), calls in kept.items():
            found.setdefault(module, []).extend(calls)
        return found

    def _between_training_and_evaluation(self, calls: list[ModuleCall]) -> Iterator[Exchange]:
        trained = [call for call in calls if self._backward(call) is not None]
        rest = [call for call in calls if self._evaluates(call)]
        for one in trained:
            for other in rest:
                for first, second in self._exchanged(one, other):
                    mixed = any(self._exchanged(one, again, (first, second)) for again in trained)
                    both = any(self._agrees(one, again, first, second) for again in rest)
                    if not (mixed or both) and self._told_apart(one, first, second):
                        yield Exchange(one, other, first, second, apart=True)

    def _evaluates(self, call: ModuleCall) -> bool:
        """Tells whether a call builds nothing that is trained, and its values make no loss that is."""
        outer = self._calls.outer(call)
        if self._backward(call) is not None or self._calls.entered(outer):
            return False
        return (not call.grad_mode or not outer.training) and not self._calls.serves(outer)

    def _exchanged(
        self, one: ModuleCall, other: ModuleCall, only: tuple[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """Returns the pairs of parameters whose tensors change places from one call to another."""
        mine, theirs = self._given(one), self._given(other)
        shared = [name for name in mine if name in theirs]
        found = []
        for first, second in combinations(shared, 2):
            if only is not None and only != (first, second):
                continue
            if self._crosswise(one, other, first, second) and not self._alike(
                one, mine[first], one, mine[second]
            ):
                rest = (name for name in shared if name not in {first, second})
                if not any(self._contradicts(one, mine[name], other, theirs[name]) for name in rest):
                    found.append((first, second))
        return found

    def _crosswise(self, one: ModuleCall, other: ModuleCall, first: str, second: str) -> bool:
        """Tells whether two calls give the same two things in opposite order.

        One of them may be noise, which is drawn anew for each call: the other thing has changed places.
        """
        mine, theirs = self._given(one), self._given(other)
        pairs = ((mine[first], theirs[second]), (mine[second], theirs[first]))
        return all(self._alike(one, a, other, b) for a, b in pairs) and any(
            self._same(one, a, other, b) for a, b in pairs
        )

    def _alike(self, one: ModuleCall, mine: TensorId, other: ModuleCall, theirs: TensorId) -> bool:
        """Tells whether two calls were given the same thing, or each some noise of one kind and shape."""
        if self._same(one, mine, other, theirs):
            return True
        drawn = [self._origins.drawn(tensor, call) for tensor, call in ((mine, one), (theirs, other))]
        rows = [self._facts.trace.tensors.get(tensor) for tensor in (mine, theirs)]
        if drawn[0] is None or drawn[0] != drawn[1] or rows[0] is None or rows[1] is None:
            return False
        return rows[0].dtype == rows[1].dtype and rows[0].shape[1:] == rows[1].shape[1:]

    def _agrees(self, one: ModuleCall, other: ModuleCall, first: str, second: str) -> bool:
        """Tells whether another call has the same order."""
        mine, theirs = self._given(one), self._given(other)
        return all(
            name in theirs and self._alike(one, mine[name], other, theirs[name]) for name in (first, second)
        )

    def _given(self, call: ModuleCall) -> dict[str, TensorId]:
        """Returns the tensors of a call by their parameter, where that was given a single one."""
        counts: dict[str, int] = {}
        for name in call.arguments:
            counts[name] = counts.get(name, 0) + 1
        pairs = zip(call.arguments, call.inputs, strict=True)
        return {name: tensor for name, tensor in pairs if counts[name] == 1}

    def _same(self, one: ModuleCall, mine: TensorId, other: ModuleCall, theirs: TensorId) -> bool:
        """Tells whether two calls were given the same thing."""
        if mine == theirs or self._facts.values.same_memory(mine, theirs):
            return True
        origin = self._origins.origin(mine, one)
        return origin is not None and origin == self._origins.origin(theirs, other)

    def _contradicts(self, one: ModuleCall, mine: TensorId, other: ModuleCall, theirs: TensorId) -> bool:
        """Tells whether two calls were given things of different dtypes or numbers of dimensions."""
        rows = self._facts.trace.tensors.get(mine), self._facts.trace.tensors.get(theirs)
        if rows[0] is None or rows[1] is None or self._same(one, mine, other, theirs):
            return False
        return rows[0].dtype != rows[1].dtype or len(rows[0].shape) != len(rows[1].shape)

    def _within_a_loss(self, calls: list[ModuleCall]) -> Iterator[Exchange]:
        """Yields calls of a criterion of one loss where a constant and what is trained change places.

        The constant is the same in both, and what is trained is not: with the same two it would be a loss
        made symmetric.
        """
        module = calls[0].module
        if any(True for _ in self._facts.values.module_parameters(module)):
            return
        for one, other in combinations(calls, 2):
            backward = self._backward(one)
            if backward is None or backward != self._backward(other) or self._feeds(one, other):
                continue
            mine, theirs = self._given(one), self._given(other)
            shared = [name for name in mine if name in theirs]
            for first, second in combinations(shared, 2):
                for fixed, moving in ((first, second), (second, first)):
                    if (
                        self._is_constant(mine[fixed], one)
                        and self._is_trained(mine[moving], one)
                        and self._is_trained(theirs[fixed], other)
                        and self._is_constant(theirs[moving], other)
                        and self._one_storage(mine[fixed], theirs[moving])
                        and not self._one_storage(mine[moving], theirs[fixed])
                        and self._told_apart(one, first, second)
                        and self._told_apart(other, first, second)
                    ):
                        yield Exchange(one, other, first, second, apart=False)

    def _feeds(self, one: ModuleCall, other: ModuleCall) -> bool:
        """Tells whether one call computes with the result of the other."""
        return not self._calls.downstream(one).isdisjoint(other.inputs)

    def _one_storage(self, one: TensorId, other: TensorId) -> bool:
        storage = self._facts.values.storage(one)
        return storage is not None and storage == self._facts.values.storage(other)

    def _is_trained(self, tensor: TensorId, call: ModuleCall) -> bool:
        return self._facts.values.requires_grad(tensor, call.serial)

    def _is_constant(self, tensor: TensorId, call: ModuleCall) -> bool:
        """Tells whether a tensor has no gradient, and nothing that a model computed or holds went into it."""
        if self._is_trained(tensor, call):
            return False
        upstream = self._facts.values.flow(tensor, call.serial).tensors
        return not any(self._facts.names.places(source) for source in upstream)

    def _told_apart(self, call: ModuleCall, first: str, second: str) -> bool:
        """Tells whether the module's forward does other things with one argument than with the other."""
        given = self._given(call)
        return self._treatment(call, given[first]) != self._treatment(call, given[second])

    def _treatment(self, call: ModuleCall, tensor: TensorId) -> frozenset[tuple[str, int]]:
        """Returns the operations and modules that a forward itself gives a tensor to.

        In which place doesn't count, but for losses of which the record knows that it matters.
        """
        found: set[tuple[str, int]] = set()
        for event in self._facts.values.consumers(tensor):
            if isinstance(event, Op) and event.call == call.serial:
                place = [use.tensor for use in event.inputs].index(tensor)
                found.add((event.name, place if event.name in ASYMMETRIC else -1))
            elif isinstance(event, Transfer) and event.call == call.serial:
                found.add((event.method, -1))
        for inner in self._calls.inside(call):
            if inner.parent == call.serial and tensor in inner.inputs:
                found.add(("call", inner.module))
        return frozenset(found)

    def _backward(self, call: ModuleCall) -> Backward | None:
        """Returns the first backward that filled gradients through what a call built, inside of it too."""
        for inner in self._calls.inside(call):
            if inner.serial in self._filled:
                return self._filled[inner.serial]
        return self._calls.trained(call)

    @cached_property
    def _filled(self) -> dict[Serial, Backward]:
        """The first backward that fills gradients through each call, where its graph was stored by itself."""
        found: dict[Serial, Backward] = {}
        for backward in self._facts.graphs.backwards:
            graph = self._facts.graphs.of(backward)
            if graph is None or backward.same_shape or backward.call == "autograd.grad":
                continue
            calls = (graph.nodes[index].call for index in graph.executed)
            for call in calls:
                if call is not None:
                    found.setdefault(call, backward)
        return found


def distinct_exchanges(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Returns one exchange for each pair of parameters of a module."""
    kept: dict[tuple[ModuleId, str, str], Exchange] = {}
    for exchange in exchanges:
        kept.setdefault((exchange.one.module, exchange.first, exchange.second), exchange)
    return list(kept.values())
