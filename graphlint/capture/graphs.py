"""Walks an autograd graph just before a backward, numbers its nodes, and knows which were freed.

May import `record` and torch. The walk is a loop, never a recursion; it reads edges and metadata only, and
holds the nodes no longer than it runs. Freed state is this module's own bookkeeping: a stamp in
`node.metadata`, which lives and dies with the node. Asking a node for its saved tensors would run unpack
hooks and the version check.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from graphlint.capture.recorder import Recorder
from graphlint.record.events import Visit
from graphlint.record.graph import Graph, Node
from graphlint.record.identity import GraphId, ModuleId, NodeId, Serial, SiteId, StorageId, TensorId

STAMP = "graphlint"
MAX_STORED_NODES = 20_000
_UNKNOWN_STORAGE = StorageId(-1)


class Stamp:
    """What graphlint knows of a node: its number, the last backward that walked it, and whether it freed it."""

    __slots__ = ("backward", "freed", "number")

    def __init__(self, number: NodeId) -> None:
        self.number = number
        self.backward: Serial | None = None
        self.freed = False


class SequenceLog:
    """Tells which call into torch built a node, by the sequence numbers that autograd had before and after it.

    Source: `Node::sequence_nr`, one counter per thread; see tests/torch_facts.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
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

    def find(self, number: int) -> tuple[Serial, SiteId | None, ModuleId | None, Serial | None] | None:
        """Returns the call (its serial, site, module and module call) that built node `number`."""
        index = bisect_right(self._starts, number) - 1
        if index < 0 or number >= self._entries[index][0]:
            return None
        return self._entries[index][1:]


class Walk:
    """One walk over a graph, breadth first; the nodes in it are alive as long as it is."""

    __slots__ = ("edges", "leaves", "names", "nodes", "roots", "truncated")

    def __init__(self, roots: Sequence[Any]) -> None:
        index: dict[Any, int] = {}
        self.nodes: list[Any] = []
        self.names: list[str] = []
        self.edges: list[tuple[int, int]] = []
        self.leaves: list[tuple[int, torch.Tensor]] = []
        for root in roots:
            if root not in index:
                index[root] = len(self.nodes)
                self.nodes.append(root)
        self.roots = tuple(range(len(self.nodes)))
        self.truncated = 0
        self._spread(index)

    def _spread(self, index: dict[Any, int]) -> None:
        nodes, names, edges = self.nodes, self.names, self.edges
        position = 0
        while position < len(nodes):
            node = nodes[position]
            following = node.next_functions
            names.append(type(node).__name__)
            if not following:
                variable = getattr(node, "variable", None)
                if variable is not None:
                    self.leaves.append((position, variable))
            for target, _ in following:
                if target is None:
                    continue
                found = index.get(target)
                if found is None:
                    found = index[target] = len(nodes)
                    nodes.append(target)
                edges.append((position, found))
            position += 1

    def shape(self, leaves: Sequence[TensorId]) -> Hashable:
        """Returns what two graphs have in common when they were built by the same code on the same leaves."""
        return (tuple(self.names), tuple(self.edges), self.roots, tuple(leaves))


class NodeStamps:
    """Numbers nodes and keeps who walked and who freed them."""

    def __init__(self) -> None:
        self._next = 0

    def of(self, node: Any) -> Stamp:
        """Returns the node's stamp, made now when it has none."""
        metadata = node.metadata
        stamp = metadata.get(STAMP)
        if stamp is None:
            stamp = metadata[STAMP] = Stamp(NodeId(self._next))
            self._next += 1
        return stamp  # type: ignore[no-any-return]

    def visits(self, walk: Walk) -> tuple[list[Stamp | None], tuple[Visit, ...]]:
        """Returns the stamp of every node but the leaves, and the nodes that an earlier backward walked."""
        leaf_indexes = {index for index, _ in walk.leaves}
        stamps: list[Stamp | None] = []
        visits: list[Visit] = []
        for index, node in enumerate(walk.nodes):
            if index in leaf_indexes:
                stamps.append(None)
                continue
            stamp = self.of(node)
            stamps.append(stamp)
            if stamp.backward is not None:
                visits.append(Visit(index, stamp.backward, stamp.freed, stamp.number))
        return stamps, tuple(visits)


def executed_indexes(walk: Walk, targets: Sequence[Any], leaves: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
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
        log: tells which call built a node.
    """

    def __init__(self, recorder: Recorder, log: SequenceLog) -> None:
        self._recorder = recorder
        self._log = log
        self._next = 0
        self._saved_names: dict[type, tuple[tuple[str, str], ...]] = {}

    def store(self, walk: Walk, stamps: Sequence[Stamp | None], leaves: Sequence[TensorId], *, full: bool) -> GraphId:
        """Emits the graph and returns its number; `full` looks into what the nodes saved."""
        leaf_at = {index: leaf for (index, _), leaf in zip(walk.leaves, leaves, strict=True)}
        limit = MAX_STORED_NODES
        nodes = []
        for index, node in enumerate(walk.nodes[:limit]):
            stamp = stamps[index]
            nodes.append(self._node(node, walk.names[index], stamp, leaf_at.get(index), full=full))
        edges = tuple(edge for edge in walk.edges if edge[0] < limit and edge[1] < limit)
        graph = Graph(
            id=GraphId(self._next),
            nodes=tuple(nodes),
            edges=edges,
            roots=walk.roots,
            truncated=max(0, len(walk.nodes) - limit),
        )
        self._next += 1
        self._recorder.emit_row(graph)
        return graph.id

    def _node(self, node: Any, name: str, stamp: Stamp | None, leaf: TensorId | None, *, full: bool) -> Node:
        shape, dtype, device = _output_facts(node)
        if leaf is not None or stamp is None:
            return Node(NodeId(-1), name, shape=shape, dtype=dtype, device=device, leaf=leaf)
        built = self._log.find(node._sequence_nr())
        op, site, module, call = built if built is not None else (None, None, None, None)
        saves, saved = self._saved(node) if full and not stamp.freed else ((), ())
        custom = name.removesuffix("Backward") if isinstance(node, BackwardCFunction) else None
        return Node(
            stamp.number, name, site, op, module, call, shape, dtype, device, None, saves, saved, custom
        )

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


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _wrapped_number(tensor: torch.Tensor) -> bool:
    """Tells a Python number that torch keeps as a 0-dim float64 or int64 tensor from a saved tensor."""
    return tensor.dim() == 0 and tensor.dtype in {torch.float64, torch.int64} and not tensor.requires_grad


def _output_facts(node: Any) -> tuple[tuple[int, ...], str, str]:
    metadata = node._input_metadata
    if not metadata:
        return (), "", ""
    first = metadata[0]
    try:
        return tuple(int(size) for size in first.shape), str(first.dtype), str(first.device)
    except (RuntimeError, TypeError, ValueError):
        return (), "", ""
