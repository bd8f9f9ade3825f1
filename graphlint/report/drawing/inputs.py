"""Finds the data that enters a graph without a gradient, and where a path was cut. Imports `record` only.

A cut is drawn where values provably went on without their gradient: the result lies in the same memory as
what wanted a gradient (`detach`, `.data`), it was computed under `no_grad`, it went through Python and came
back, or a finding touches the line.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from graphlint.record.events import HostRead, ModuleCall, Op, Transfer
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial, SiteId, TensorId
from graphlint.record.trace import Trace
from graphlint.report.drawing.structure import is_leaf

REACH = 200
"""How many tensors back a cut is looked for."""


class Cut(msgspec.Struct, frozen=True):
    """Where a path ended: the line, what was called there (or `no_grad`), the tensor that went in."""

    site: SiteId | None
    how: str
    source: TensorId


class Entry(msgspec.Struct, frozen=True):
    """A tensor that enters a graph at some nodes; `cut` is where its own path ended, None for plain data.

    `leaf` tells a leaf of the graph, whose gradient ends there by nature.
    """

    tensor: TensorId
    nodes: tuple[int, ...]
    cut: Cut | None
    leaf: bool = False


class Makers:
    """Which operation or transfer made each tensor first; built once per trace.

    `touched` tells whether a finding touches the line of a site.
    """

    def __init__(self, trace: Trace, touched: Callable[[SiteId | None], bool]) -> None:
        self.ops: dict[Serial, Op] = {}
        self.transfers: dict[Serial, Transfer] = {}
        self._reads: dict[Serial, HostRead] = {}
        self._of: dict[TensorId, Op | Transfer] = {}
        self._tensors = trace.tensors
        self._touched = touched
        for event in trace.events:
            match event:
                case Op():
                    self.ops[event.serial] = event
                    for tensor in event.outputs:
                        if all(use.tensor != tensor for use in event.inputs):
                            self._of.setdefault(tensor, event)
                case Transfer() if not event.noop:
                    self.transfers[event.serial] = event
                    self._of.setdefault(event.result, event)
                case HostRead():
                    self._reads[event.serial] = event
                case _:
                    pass

    def cut_behind(self, tensor: TensorId) -> Cut | None:
        """Returns the nearest cut on the way back from a tensor that takes no gradient."""
        queue = deque([tensor])
        seen = {tensor}
        while queue and len(seen) < REACH:
            current = queue.popleft()
            made = self._of.get(current)
            if isinstance(made, Op):
                cut = self._cut(made, current)
                if cut is not None:
                    return cut
                ended = _makes_values_of_its_own(made) or any(use.requires_grad for use in made.inputs)
                sources = [] if ended else [use.tensor for use in made.inputs]
            else:
                sources = [made.source.tensor] if made is not None else []
            fresh = [source for source in sources if source not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        return None

    def _cut(self, made: Op, result: TensorId) -> Cut | None:
        for serial in made.host_inputs:
            read = self._reads.get(serial)
            if read is not None and read.tensor.requires_grad:
                return Cut(read.site, read.method, read.tensor.tensor)
        source = next((use.tensor for use in made.inputs if use.requires_grad), None)
        if source is None or any(made.output_grads) or _makes_values_of_its_own(made):
            return None
        if not made.grad_mode:
            return Cut(made.grad_site if made.grad_site is not None else made.site, "no_grad", source)
        name = made.name.removesuffix(".__get__").rpartition(".")[2]
        if self._same_memory(source, result) or self._touched(made.site):
            return Cut(made.site, name, source)
        return None

    def _same_memory(self, one: TensorId, other: TensorId) -> bool:
        first, second = self._tensors.get(one), self._tensors.get(other)
        return first is not None and second is not None and first.storage == second.storage


def _makes_values_of_its_own(op: Op) -> bool:
    """Whether one of torch's factories took only shape, dtype and device from its input."""
    name = op.name.rpartition(".")[2]
    return name.endswith("_like") or name.startswith("new_")


def entries(
    trace: Trace,
    graph: Graph,
    order: tuple[int, ...],
    makers: Makers,
    calls: dict[Serial, ModuleCall],
) -> tuple[Entry, ...]:
    """Returns the data and the cuts that feed a graph; `order` is that of the forward pass."""
    feeding: dict[TensorId, dict[int, None]] = {}
    outer: dict[Serial, list[int]] = {}
    for index in order:
        node = graph.nodes[index]
        op = makers.ops.get(node.op) if node.op is not None else None
        for use in op.inputs if op is not None else ():
            if not use.requires_grad:
                feeding.setdefault(use.tensor, {})[index] = None
        call = _outermost(node.call, calls)
        if call is not None:
            outer.setdefault(call.serial, []).append(index)
    for serial, nodes in outer.items():
        for tensor in calls[serial].inputs:
            row = trace.tensors.get(tensor)
            if row is not None and not row.requires_grad and feeding.get(tensor, {}).keys().isdisjoint(nodes):
                feeding.setdefault(tensor, {})[nodes[0]] = None
    leaves = {
        node.leaf: index
        for index, node in enumerate(graph.nodes)
        if node.leaf is not None and is_leaf(graph, index)
    }
    found = [
        Entry(tensor, tuple(fed), makers.cut_behind(tensor))
        for tensor, fed in feeding.items()
        if tensor not in leaves
    ]
    found.extend(
        Entry(tensor, (index,), makers.cut_behind(tensor), leaf=True) for tensor, index in leaves.items()
    )
    return tuple(found)


def _outermost(serial: Serial | None, calls: dict[Serial, ModuleCall]) -> ModuleCall | None:
    call = calls.get(serial) if serial is not None else None
    while call is not None and call.parent in calls:
        call = calls[call.parent]
    return call
