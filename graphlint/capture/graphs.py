"""Walks an autograd graph just before a backward, numbers its nodes, and knows which were freed.

May import `record` and torch. The walk is a loop, never a recursion; it reads edges and metadata only, and
holds the nodes no longer than it runs. Freed state is this module's own bookkeeping: a stamp in
`node.metadata`, which lives and dies with the node. Asking a node for its saved tensors would run unpack
hooks and the version check.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from graphlint.capture.recorder import Recorder, plain_sizes
from graphlint.capture.unasked import is_parameter
from graphlint.record.events import Visit
from graphlint.record.graph import Graph, Node
from graphlint.record.identity import GraphId, ModuleId, NodeId, Serial, SiteId, StorageId, TensorId

AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
STAMP = "graphlint"
NUMBER = "graphlint_number"
CALLS = "graphlint_calls"
UNNUMBERED = NodeId(-1)
MAX_STORED_NODES = 20_000
_UNKNOWN_STORAGE = StorageId(-1)
_NEXT_NODE = -1
_NumberOf = Callable[[torch.Tensor], int | None]


class Stamp:
    """What a backward leaves on the nodes that it runs: its serial, and whether it freed them.

    One object serves all the nodes of a backward, so that what becomes of it is noted once.
    """

    __slots__ = ("backward", "calls", "freed")

    def __init__(self, backward: Serial) -> None:
        self.backward = backward
        self.calls: tuple[Serial, ...] = ()
        self.freed = False


class SequenceLog:
    """Tells which call into torch built a node, by autograd's sequence numbers before and after the call.

    Source: `Node::sequence_nr`, one counter per thread; see tests/torch_facts.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._devices: dict[Serial, str] = {}
        self._entries: list[tuple[int, Serial, SiteId | None, ModuleId | None, Serial | None]] = []

    def add(
        self,
        start: int,
        end: int,
        op: Serial,
        site: SiteId | None,
        module: tuple[ModuleId, Serial] | None,
    ) -> None:
        """Notes that the nodes `start` to `end` - 1 were built by one call."""
        self._starts.append(start)
        self._entries.append((end, op, site, *(module or (None, None))))

    def add_span(self, start: int, end: int, backward: Serial, site: SiteId | None) -> None:
        """Notes that the nodes `start` to `end` - 1 were built by a backward that built a graph itself.

        Left out where calls in the meantime, by hooks or custom functions, were noted one by one.
        """
        if end > start and (not self._starts or self._starts[-1] < start):
            self.add(start, end, backward, site, None)

    def add_device(self, op: Serial, device: str) -> None:
        """Notes the device of what a call made, where it isn't what the node itself would say."""
        self._devices[op] = device

    def device(self, op: Serial) -> str | None:
        """Returns the device that was noted for a call."""
        return self._devices.get(op)

    def find(self, number: int) -> tuple[Serial, SiteId | None, ModuleId | None, Serial | None] | None:
        """Returns the call (its serial, site, module and module call) that built node `number`."""
        index = bisect_right(self._starts, number) - 1
        if index < 0 or number >= self._entries[index][0]:
            return None
        return self._entries[index][1:]


class Walk:
    """One walk over a graph, breadth first; the nodes in it are alive as long as it is.

    `nodes` come in the order of the walk, `leaves` are pairs of an index and the tensor that an
    `AccumulateGrad` node fills. Edges are kept flat, as the walk met them: it runs before every backward.
    """

    __slots__ = ("_targets", "kinds", "leaves", "nodes", "roots")

    def __init__(self, roots: Sequence[Any]) -> None:
        index: dict[Any, int] = {}
        for root in roots:
            index.setdefault(root, len(index))
        nodes = list(index)
        self.roots = tuple(range(len(nodes)))
        find = index.get
        targets: list[int] = []
        leaves: list[tuple[int, torch.Tensor]] = []
        for position, node in enumerate(nodes):
            following = node.next_functions
            targets.append(_NEXT_NODE)
            if not following:
                variable = getattr(node, "variable", None)
                if variable is not None:
                    leaves.append((position, variable))
            for target, _ in following:
                if target is not None:
                    found = find(target)
                    if found is None:
                        found = index[target] = len(nodes)
                        nodes.append(target)
                    targets.append(found)
        self.nodes = nodes
        self.leaves = leaves
        self.kinds = tuple(map(type, nodes))
        self._targets = tuple(targets)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges as pairs of indexes."""
        edges: list[tuple[int, int]] = []
        source = -1
        for target in self._targets:
            if target == _NEXT_NODE:
                source += 1
            else:
                edges.append((source, target))
        return edges

    def shape(self, find: _NumberOf) -> "Shape":
        """Returns what makes another graph the same as this one, whatever nodes it is made of."""
        tests = [_leaf_test(leaf, find) for _, leaf in self.leaves]
        return Shape(self.kinds, self._targets, self.roots, tests)

    def has(self, shape: "Shape") -> bool:
        """Tells whether the same code built this graph on the same leaves."""
        return (
            len(shape.kinds) == len(self.kinds)
            and shape.kinds == self.kinds
            and shape.targets == self._targets
            and shape.roots == self.roots
            and all(test(leaf) for test, (_, leaf) in zip(shape.leaves, self.leaves, strict=True))
        )


class Shape(NamedTuple):
    """The structure of a graph, and a test for each of its leaves. Holds neither nodes nor tensors."""

    kinds: tuple[type, ...]
    targets: tuple[int, ...]
    roots: tuple[int, ...]
    leaves: list[Callable[[torch.Tensor], bool]]


def _leaf_test(leaf: torch.Tensor, number_of: _NumberOf) -> Callable[[torch.Tensor], bool]:
    """Returns a test for the same leaf: a parameter is one object, an input is made anew in each step."""
    if is_parameter(leaf):
        number = number_of(leaf)
        return lambda other: number is not None and number_of(other) == number
    size, dtype = leaf.shape, leaf.dtype
    return lambda other: other.shape == size and other.dtype == dtype


class NodeStamps:
    """Numbers nodes, and reads and writes the stamps on them."""

    def __init__(self) -> None:
        self._next = 0

    def number(self, node: Any) -> NodeId:
        """Returns the node's number, given now when it has none."""
        metadata = node.metadata
        number = metadata.get(NUMBER)
        if number is None:
            number = metadata[NUMBER] = NodeId(self._next)
            self._next += 1
        return number  # type: ignore[no-any-return]

    def leave(self, walk: Walk, stamp: Stamp, executed: Container[int] | None) -> tuple[Visit, ...]:
        """Stamps the nodes that a backward is about to run; returns those that an earlier one had run.

        A node that was freed keeps the stamp of the backward that freed it. Leaves are left alone: they
        belong to every graph. The module calls whose results it enters are noted on the stamp.
        """
        visits: list[Visit] = []
        leaf = AccumulateGrad
        for index, (node, kind) in enumerate(zip(walk.nodes, walk.kinds, strict=True)):
            if kind is leaf or (executed is not None and index not in executed):
                continue
            metadata = node.metadata
            if not metadata:
                metadata[STAMP] = stamp
                continue
            stamp.calls += metadata.get(CALLS, ())
            earlier = metadata.get(STAMP)
            if earlier is not None:
                visits.append(Visit(index, earlier.backward, earlier.freed, metadata.get(NUMBER, UNNUMBERED)))
                if earlier.freed:
                    continue
            metadata[STAMP] = stamp
        return tuple(visits)

    def leave_freed(self, walk: Walk, stamp: Stamp) -> None:
        """Stamps as freed the nodes that a backward had surely run when it raised; `stamp` is what it left.

        A node runs after all those before it: with one that has lost what it saved, they have run too.
        """
        incoming: dict[int, list[int]] = {}
        for source, target in walk.edges:
            incoming.setdefault(target, []).append(source)
        freed = Stamp(stamp.backward)
        freed.freed = True
        own = {index for index, node in enumerate(walk.nodes) if node.metadata.get(STAMP) is stamp}
        waiting = [index for index in own if _has_lost_what_it_saved(walk.nodes[index])]
        while waiting:
            index = waiting.pop()
            if index in own:
                own.remove(index)
                walk.nodes[index].metadata[STAMP] = freed
                waiting.extend(incoming.get(index, ()))


def executed_indexes(
    walk: Walk, targets: Sequence[Any], leaves: Sequence[torch.Tensor]
) -> tuple[int, ...] | None:
    """Returns the nodes that the engine would run to reach the targets alone; None when that is all.

    Args:
        walk: the graph.
        targets: the `grad_fn` of each target that has one. The engine stops before running it.
        leaves: the targets that are leaves.
    """
    if not targets and not leaves:
        return None
    wanted = {id(leaf) for leaf in leaves}
    ends = {index for index, variable in walk.leaves if id(variable) in wanted}
    captured = {index for index, node in enumerate(walk.nodes) if any(node is target for target in targets)}
    incoming: dict[int, list[int]] = {}
    for source, target in walk.edges:
        incoming.setdefault(target, []).append(source)
    needed: set[int] = set(ends)
    waiting = list(ends | captured)
    seen = set(waiting)
    while waiting:
        for source in incoming.get(waiting.pop(), ()):
            needed.add(source)
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return tuple(sorted(needed))


class GraphStore:
    """Stores each graph shape once, with the source line of every node.

    Args:
        recorder: numbers leaves and storages, takes the rows.
        stamps: numbers nodes.
        log: tells which call built a node.
    """

    def __init__(self, recorder: Recorder, stamps: NodeStamps, log: SequenceLog) -> None:
        self._recorder = recorder
        self._stamps = stamps
        self._log = log
        self._next = 0
        self._saved_names: dict[type, tuple[tuple[str, str], ...]] = {}

    def store(self, walk: Walk, leaves: Sequence[TensorId], *, full: bool) -> GraphId:
        """Emits the graph and returns its number; `full` looks into what the nodes saved."""
        leaf_at = {index: leaf for (index, _), leaf in zip(walk.leaves, leaves, strict=True)}
        limit = MAX_STORED_NODES
        nodes = [
            self._leaf_node(node, leaf_at[index]) if index in leaf_at else self._node(node, full=full)
            for index, node in enumerate(walk.nodes[:limit])
        ]
        graph = Graph(
            id=GraphId(self._next),
            nodes=tuple(nodes),
            edges=tuple(edge for edge in walk.edges if edge[0] < limit and edge[1] < limit),
            roots=walk.roots,
            truncated=max(0, len(walk.nodes) - limit),
        )
        self._next += 1
        self._recorder.emit_row(graph)
        return graph.id

    def _leaf_node(self, node: Any, leaf: TensorId) -> Node:
        shape, dtype, _ = _output_facts(node)
        device = self._recorder.device(node.variable)
        return Node(UNNUMBERED, type(node).__name__, shape=shape, dtype=dtype, device=device, leaf=leaf)

    def _node(self, node: Any, *, full: bool) -> Node:
        name = type(node).__name__
        shape, dtype, device = _output_facts(node)
        built = self._log.find(node._sequence_nr())
        op, site, module, call = built if built is not None else (None, None, None, None)
        stamp = node.metadata.get(STAMP)
        freed = stamp is not None and stamp.freed
        saves, saved = self._saved(node) if full and not freed else ((), ())
        custom = name.removesuffix("Backward") if isinstance(node, BackwardCFunction) else None
        number = self._stamps.number(node)
        if op is not None:
            device = self._log.device(op) or device
        return Node(number, name, site, op, module, call, shape, dtype, device, None, saves, saved, custom)

    def _saved(self, node: Any) -> tuple[tuple[str, ...], tuple[StorageId, ...]]:
        """Returns what a node that was not freed holds, without unpacking it."""
        if isinstance(node, BackwardCFunction):
            return self._saved_by_custom(node)
        kind = type(node)
        names = self._saved_names.get(kind)
        if names is None:
            names = tuple(
                (attribute, attribute.removeprefix("_raw_saved_"))
                for attribute in dir(kind)
                if attribute.startswith("_raw_saved_")
            )
            self._saved_names[kind] = names
        saves: list[str] = []
        saved: list[StorageId] = []
        for attribute, short in names:
            for raw in _as_list(getattr(node, attribute)):
                data = raw.data
                if raw.unpack_hook is not None:
                    saves.append(short)
                    saved.append(_UNKNOWN_STORAGE)
                elif isinstance(data, torch.Tensor) and not _wrapped_number(data):
                    saves.append(short)
                    saved.append(StorageId(self._recorder.storage(data)))
        return tuple(saves), tuple(saved)

    def _saved_by_custom(self, node: Any) -> tuple[tuple[str, ...], tuple[StorageId, ...]]:
        try:
            raw_tensors = getattr(node, "_raw_saved_tensors", ())
        except RuntimeError:
            return (), ()
        saved = tuple(
            StorageId(self._recorder.storage(raw.data))
            if raw.unpack_hook is None and isinstance(raw.data, torch.Tensor)
            else _UNKNOWN_STORAGE
            for raw in raw_tensors
        )
        return tuple(f"saved_tensors[{index}]" for index in range(len(saved))), saved


def _has_lost_what_it_saved(node: Any) -> bool:
    """Tells whether a node was freed, where it had saved something; unpacks nothing that is still there."""
    if isinstance(node, BackwardCFunction):
        try:
            _ = node._raw_saved_tensors
        except RuntimeError:
            return True
        return False
    for attribute in dir(type(node)):
        if attribute.startswith("_raw_saved_") and _is_gone(node, attribute):
            return True
    return False


def _is_gone(node: Any, attribute: str) -> bool:
    """Tells whether a saved tensor of a node was freed; a list of saved tensors refuses to be read then."""
    try:
        saved = _as_list(getattr(node, attribute))
        if any(raw.unpack_hook is None and raw.data is None for raw in saved):
            getattr(node, attribute.replace("_raw", "", 1))
    except RuntimeError:
        return True
    return False


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _wrapped_number(tensor: torch.Tensor) -> bool:
    """Tells a Python number that torch keeps as a 0-dim float64 or int64 tensor from a saved tensor."""
    return tensor.dim() == 0 and tensor.dtype in {torch.float64, torch.int64} and not tensor.requires_grad


def _output_facts(node: Any) -> tuple[tuple[int, ...], str, str]:
    try:
        first = node._input_metadata[0]
        return plain_sizes(first.shape), str(first.dtype), str(first.device)
    except (LookupError, RuntimeError, TypeError, ValueError):
        return (), "", ""
