"""Says which backwards are worth a picture each: one per call site and graph shape. Imports `record` only."""

import re

import msgspec

from graphlint.record.events import Backward, Repeat, StepBoundary
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial, TensorId
from graphlint.record.trace import Trace
from graphlint.report.drawing.wording import Words

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
LONGEST_NAME = 60


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A backward to draw and the words that tell it from others. `stem` is its file's name."""

    backward: Backward
    graph: Graph
    title: str
    place: str
    when: str
    stem: str


def subjects(trace: Trace, words: Words) -> tuple[Subject, ...]:
    """Returns the distinct backwards of a trace in the order of their first calls."""
    parameters = frozenset(parameter.tensor for parameter in trace.parameters)
    alike: dict[object, list[tuple[int, Backward]]] = {}
    ordinals: dict[Serial, int] = {}
    counts: dict[int, int] = {}
    for step, backward in _by_step(trace):
        counts[step] = counts.get(step, 0) + 1
        ordinals[backward.serial] = counts[step]
        graph = trace.graphs.get(backward.graph) if backward.graph is not None else None
        if graph is not None and graph.nodes:
            alike.setdefault(_shape(backward, graph, parameters), []).append((step, backward))
    stems: set[str] = set()
    out: list[Subject] = []
    for members in alike.values():
        step, backward = next((each for each in members if not each[1].same_shape), members[0])
        assert backward.graph is not None
        call = _call(backward, words)
        frame = words.frame(backward.site)
        line = f"-L{frame.line}" if frame is not None else ""
        stem = _UNSAFE.sub("_", f"step{step}-{ordinals[backward.serial]}-{call}")[:LONGEST_NAME] + line
        stem = _unique(stem, stems)
        out.append(
            Subject(
                backward=backward,
                graph=trace.graphs[backward.graph],
                title=f"{call}()",
                place=words.place(frame) if frame is not None else words.path(trace.header.script),
                when=_when(sorted({each[0] for each in members})),
                stem=stem,
            )
        )
    return tuple(out)


def _by_step(trace: Trace) -> list[tuple[int, Backward]]:
    """Returns every backward with its 0-based step."""
    boundaries = sorted(
        (event for event in trace.events if isinstance(event, StepBoundary)), key=lambda event: event.after
    )
    repeats = [event for event in trace.events if isinstance(event, Repeat)]
    found: list[tuple[int, Backward]] = []
    for event in trace.events:
        if isinstance(event, Backward):
            begun = sum(boundary.after < event.serial for boundary in boundaries)
            skipped = sum(repeat.count for repeat in repeats if repeat.serial < event.serial)
            found.append((max(begun - 1, 0) + skipped, event))
    return found


def _shape(backward: Backward, graph: Graph, parameters: frozenset[TensorId]) -> object:
    """Returns what two backwards must share to be drawn once: call site, graph and fate."""
    nodes = tuple(
        (
            node.name,
            node.custom,
            node.site,
            node.module,
            node.device,
            node.leaf if node.leaf in parameters else None,
        )
        for node in graph.nodes
    )
    visits = tuple((visit.index, visit.freed) for visit in backward.visits)
    fate = (backward.error, backward.retain_graph, backward.executed, backward.call)
    return backward.site, nodes, graph.edges, graph.roots, visits, fate


def _call(backward: Backward, words: Words) -> str:
    """Returns the call in words: `discriminator_loss.backward`, `autograd.grad`."""
    if backward.call != "Tensor.backward":
        return backward.call
    frame = words.frame(backward.site)
    name = (
        words.tensor(backward.roots[0], frame.function if frame is not None else None)
        if backward.roots
        else ""
    )
    return f"{name or 'loss'}.backward"


def _when(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]} alike"
    return f"steps {', '.join(map(str, steps[:4]))}{' …' if len(steps) > 4 else ''} alike"  # noqa: PLR2004


def _unique(stem: str, taken: set[str]) -> str:
    number, name = 2, stem
    while name.lower() in taken:
        name, number = f"{stem}-{number}", number + 1
    taken.add(name.lower())
    return name
