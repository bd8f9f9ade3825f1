"""Groups the nodes of one graph by module call and source line, in the order of the forward pass.

Every group is an interval of that order, so arrows between groups never run in a circle. Imports `record`
only.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from graphlint.record.events import ModuleCall
from graphlint.record.graph import Graph
from graphlint.record.identity import ModuleId, Serial

ACCUMULATE = "AccumulateGrad"


class Run(msgspec.Struct, frozen=True):
    """Nodes built one after another by one source line, outside any deeper module call."""

    nodes: tuple[int, ...]


class Group(msgspec.Struct, frozen=True):
    """A module call (`call`), or lines of one function or a stretch of lines where `call` is None.

    `label` names a group that is no module call.
    """

    items: tuple["Item", ...]
    call: ModuleCall | None = None
    label: str = ""


class Repeat(msgspec.Struct, frozen=True):
    """The same structure several times in a row; `chained` when each feeds the next."""

    bodies: tuple[tuple["Item", ...], ...]
    chained: bool


Item = Run | Group | Repeat


class Wiring(msgspec.Struct, frozen=True):
    """A graph's edges seen from the forward pass: `before[i]` feed node i, `after[i]` are fed by it.

    Leaves are kept apart: `leaves[i]` are the `AccumulateGrad` nodes that feed node i.
    """

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    leaves: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Graph) -> "Wiring":
        """Reads the edges of a graph, each once."""
        before: list[dict[int, None]] = [{} for _ in graph.nodes]
        after: list[dict[int, None]] = [{} for _ in graph.nodes]
        leaves: list[dict[int, None]] = [{} for _ in graph.nodes]
        for giver, receiver in graph.edges:
            if is_leaf(graph, receiver):
                leaves[giver][receiver] = None
            else:
                before[giver][receiver] = None
                after[receiver][giver] = None
        return cls(tuple(map(tuple, before)), tuple(map(tuple, after)), tuple(map(tuple, leaves)))


def is_leaf(graph: Graph, index: int) -> bool:
    """Whether a node only fills a leaf's `.grad`."""
    node = graph.nodes[index]
    return node.leaf is not None or node.name.endswith(ACCUMULATE)


def forward_order(graph: Graph, wiring: Wiring) -> tuple[int, ...]:
    """Returns the indexes of all nodes but leaves, each after what feeds it, as built in time."""
    inner = [index for index in range(len(graph.nodes)) if not is_leaf(graph, index)]
    keys: dict[int, int] = {}
    waiting = {index: len(wiring.before[index]) for index in inner}

    def key(index: int) -> tuple[int, int]:
        op = graph.nodes[index].op
        fed = max((keys[other] for other in wiring.before[index] if other in keys), default=-1)
        keys[index] = fed if op is None else max(int(op), fed)
        return keys[index], -index

    ready = [(*key(index), index) for index in inner if waiting[index] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        *_, index = heapq.heappop(ready)
        order.append(index)
        for other in wiring.after[index]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (*key(other), other))
    return tuple(order)


class _Draft:
    """A group under construction."""

    def __init__(self, call: ModuleCall | None) -> None:
        self.call = call
        self.parts: list[_Draft | list[int]] = []
        self.calls: dict[Serial, _Draft] = {}
        self.last: tuple[object, ...] | None = None

    def finish(self) -> Group:
        items: list[Item] = [
            part.finish() if isinstance(part, _Draft) else Run(tuple(part)) for part in self.parts
        ]
        return Group(tuple(items), self.call)


def by_call(
    graph: Graph,
    order: tuple[int, ...],
    calls: dict[Serial, ModuleCall],
    same: Callable[[int], tuple[object, ...]],
) -> Group:
    """Returns the tree of module calls over the nodes in `order`.

    Nodes that follow each other directly in one call form a run when `same` answers alike for them.
    """
    top = _Draft(None)
    for index in order:
        draft = top
        for call in _chain(graph.nodes[index].call, calls):
            inner = draft.calls.get(call.serial)
            if inner is None:
                inner = draft.calls[call.serial] = _Draft(call)
                draft.parts.append(inner)
            draft.last = None
            draft = inner
        key = same(index)
        last = draft.parts[-1] if draft.parts else None
        if draft.last == key and isinstance(last, list):
            last.append(index)
        else:
            draft.parts.append([index])
        draft.last = key
    return top.finish()


def _chain(call: Serial | None, calls: dict[Serial, ModuleCall]) -> list[ModuleCall]:
    """Returns the calls around a node, outermost first."""
    chain: list[ModuleCall] = []
    while call is not None and call in calls and len(chain) <= len(calls):
        chain.append(calls[call])
        call = calls[call].parent
    return chain[::-1]


def nodes_of(items: tuple[Item, ...]) -> Iterator[int]:
    """Yields the node indexes below some items, in order."""
    for item in items:
        match item:
            case Run():
                yield from item.nodes
            case Group():
                yield from nodes_of(item.items)
            case Repeat():
                for body in item.bodies:
                    yield from nodes_of(body)


def module_of(item: Item) -> ModuleId | None:
    """Returns the module whose call an item is, if it is one."""
    return item.call.module if isinstance(item, Group) and item.call is not None else None


def by_function(items: tuple[Item, ...], function: Callable[[int], str]) -> tuple[Item, ...]:
    """Gathers neighbouring runs of one function into groups; `function` names a node's function."""
    gathered: dict[int, list[Item]] = defaultdict(list)
    labels: list[str | None] = []
    for item in items:
        label = function(item.nodes[0]) if isinstance(item, Run) else None
        if label is None or not labels or labels[-1] != label:
            labels.append(label)
        gathered[len(labels) - 1].append(item)
    out: list[Item] = []
    for position, label in enumerate(labels):
        members = gathered[position]
        out.append(Group(tuple(members), None, label) if label and len(members) > 1 else members[0])
    return tuple(out)


def in_stretches(items: tuple[Item, ...], count: int) -> tuple[Item, ...]:
    """Cuts items into at most `count` groups of neighbours of about equal length."""
    length = -(-len(items) // count)
    chunks = [items[start : start + length] for start in range(0, len(items), length)]
    return tuple(chunk[0] if len(chunk) == 1 else Group(chunk, None, "") for chunk in chunks)
