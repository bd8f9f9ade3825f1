"""Works out, from the record alone, what befell each node of one backward's graph. Imports `record`, `lint`.

A mark is a fact of the record. Only "discarded" waits for a finding: a gradient that is thrown away is no
fault by itself, and the rule that judges it knows the excuses.
"""

from collections import defaultdict

import msgspec

from graphlint.lint.finding import Finding
from graphlint.record.events import Backward, OptimizerStep, ZeroGrad
from graphlint.record.graph import Graph
from graphlint.record.identity import NodeId, Serial, TensorId
from graphlint.record.trace import Trace
from graphlint.report.drawing.diagram import Mark
from graphlint.report.drawing.structure import Wiring, is_leaf

DISCARDED = "GL305"


class NodeMarks(msgspec.Struct, frozen=True):
    """Marks of each node by index, and the other backward that each lifetime mark speaks of."""

    marks: tuple[tuple[Mark, ...], ...]
    others: dict[int, dict[Mark, Serial]]


def node_marks(
    trace: Trace, backward: Backward, graph: Graph, wiring: Wiring, findings: tuple[Finding, ...]
) -> NodeMarks:
    """Returns the marks of one backward's nodes; `findings` are those that touch its line."""
    marks: list[list[Mark]] = [[] for _ in graph.nodes]
    others: dict[int, dict[Mark, Serial]] = defaultdict(dict)
    inner = [index for index in range(len(graph.nodes)) if not is_leaf(graph, index)]
    for visit in backward.visits:
        if visit.index < len(graph.nodes) and not is_leaf(graph, visit.index):
            mark: Mark = "reentered" if visit.freed else "retained-again"
            marks[visit.index].append(mark)
            others[visit.index][mark] = visit.backward
    for index, later in _entered_later(trace, backward, graph).items():
        if not is_leaf(graph, index):
            marks[index].append("freed-later")
            others[index]["freed-later"] = later
    if any(finding.code == DISCARDED for finding in findings):
        for index in _discarded(trace, backward, graph, wiring):
            marks[index].append("discarded")
    executed = None if backward.executed is None else set(backward.executed)
    for index in inner:
        if executed is not None and index not in executed:
            marks[index].append("not-executed")
        elif backward.error is None:
            marks[index].append("kept" if backward.retain_graph else "freed")
    return NodeMarks(tuple(map(tuple, marks)), dict(others))


def _entered_later(trace: Trace, backward: Backward, graph: Graph) -> dict[int, Serial]:
    """Returns the nodes that this backward freed and a later one entered, with the first such backward."""
    own: dict[NodeId, int] = {node.id: index for index, node in enumerate(graph.nodes)}
    found: dict[int, Serial] = {}
    for event in trace.events:
        if isinstance(event, Backward) and event.serial > backward.serial:
            for visit in event.visits:
                if visit.backward == backward.serial and visit.freed and visit.node in own:
                    found.setdefault(own[visit.node], event.serial)
    return found


def _discarded(trace: Trace, backward: Backward, graph: Graph, wiring: Wiring) -> list[int]:
    """Returns the nodes below which every leaf's gradient is zeroed before a step uses it."""
    wasted = _zeroed_unused(trace, backward)
    if not wasted:
        return []
    leaves = {index for index in range(len(graph.nodes)) if is_leaf(graph, index)}
    useful: set[int] = set()
    spread = [
        index
        for index in range(len(graph.nodes))
        if index not in leaves and any(graph.nodes[leaf].leaf not in wasted for leaf in wiring.leaves[index])
    ]
    while spread:
        index = spread.pop()
        if index not in useful:
            useful.add(index)
            spread.extend(wiring.after[index])
    serving = _fed(wiring, [index for index in range(len(graph.nodes)) if wiring.leaves[index]])
    return [index for index in range(len(graph.nodes)) if index in serving and index not in useful]


def _fed(wiring: Wiring, start: list[int]) -> set[int]:
    """Returns the nodes that lie after any of `start`, themselves included."""
    seen: set[int] = set()
    spread = list(start)
    while spread:
        index = spread.pop()
        if index not in seen:
            seen.add(index)
            spread.extend(wiring.after[index])
    return seen


def _zeroed_unused(trace: Trace, backward: Backward) -> set[TensorId]:
    """Returns the leaves that this backward reached and that were zeroed before an optimizer used them."""
    open_leaves = set(backward.reached)
    wasted: set[TensorId] = set()
    for event in trace.events:
        if event.serial <= backward.end or not open_leaves:
            continue
        if isinstance(event, ZeroGrad):
            wasted |= open_leaves & set(event.cleared)
            open_leaves -= set(event.cleared)
        elif isinstance(event, OptimizerStep):
            open_leaves -= {change.tensor for change in event.changed} | set(event.unchanged)
    return wasted
