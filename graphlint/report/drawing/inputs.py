"""Finds the data that enters a graph without a gradient, and where a path was cut. Imports `record` only.

An operation whose inputs require a gradient and whose outputs don't is a cut: `detach`, `no_grad`, a cast.
"""

from collections import deque

import msgspec

from graphlint.record.events import ModuleCall, Op, Transfer
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial, SiteId, TensorId
from graphlint.record.trace import Trace

REACH = 200
"""How many operations back a cut is looked for."""


class Entry(msgspec.Struct, frozen=True):
    """A tensor that feeds some nodes and takes no gradient.

    `cut` is the operation at which the path ended, None for plain data; `cut_site` is its line, or the
    `no_grad` block's.
    """

    tensor: TensorId
    nodes: tuple[int, ...]
    cut: Op | None
    cut_site: SiteId | None


class Makers:
    """Which operation or transfer made each tensor first; built once per trace."""

    def __init__(self, trace: Trace) -> None:
        self.ops: dict[Serial, Op] = {}
        self.transfers: dict[Serial, Transfer] = {}
        self._of: dict[TensorId, Op | Transfer] = {}
        for event in trace.events:
            if isinstance(event, Op):
                self.ops[event.serial] = event
                for tensor in event.outputs:
                    if all(use.tensor != tensor for use in event.inputs):
                        self._of.setdefault(tensor, event)
            elif isinstance(event, Transfer) and not event.noop:
                self.transfers[event.serial] = event
                self._of.setdefault(event.result, event)

    def cut_behind(self, tensor: TensorId) -> Op | None:
        """Returns the nearest operation on the way back from a tensor that let no gradient through."""
        queue = deque([tensor])
        seen = {tensor}
        while queue and len(seen) < REACH:
            made = self._of.get(queue.popleft())
            match made:
                case None:
                    continue
                case Op():
                    if any(use.requires_grad for use in made.inputs) and not any(made.output_grads):
                        return made
                    sources = [use.tensor for use in made.inputs]
                case Transfer():
                    sources = [made.source.tensor]
            for source in sources:
                if source not in seen:
                    seen.add(source)
                    queue.append(source)
        return None


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
    found: list[Entry] = []
    for tensor, fed in feeding.items():
        cut = makers.cut_behind(tensor)
        site = None
        if cut is not None:
            site = cut.site if cut.grad_mode or cut.grad_site is None else cut.grad_site
        found.append(Entry(tensor, tuple(fed), cut, site))
    return tuple(found)


def _outermost(serial: Serial | None, calls: dict[Serial, ModuleCall]) -> ModuleCall | None:
    call = calls.get(serial) if serial is not None else None
    while call is not None and call.parent in calls:
        call = calls[call.parent]
    return call
