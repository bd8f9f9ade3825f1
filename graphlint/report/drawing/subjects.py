"""Says which backwards get a picture each: one per call site and graph. Imports `record`, `analysis`."""

import re
from collections import Counter

import msgspec

from graphlint.analysis.facts import Facts
from graphlint.record.events import Backward
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial, TensorId
from graphlint.report.drawing.wording import Words

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
LONGEST_NAME = 60
LISTED_SPANS = 4


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A backward to draw and the words that tell it from others. `stem` is its file's name."""

    backward: Backward
    graph: Graph
    title: str
    place: str
    when: str
    stem: str


def subjects(facts: Facts, words: Words) -> tuple[Subject, ...]:
    """Returns the distinct backwards of a trace in the order of their first calls."""
    trace = facts.trace
    parameters = frozenset(parameter.tensor for parameter in trace.parameters)
    alike: dict[object, list[tuple[Backward, Graph]]] = {}
    ordinals: dict[Serial, int] = {}
    counts: Counter[int] = Counter()
    for backward in trace.events:
        if isinstance(backward, Backward):
            step = facts.steps.step_of(backward.serial) or 0
            counts[step] += 1
            ordinals[backward.serial] = counts[step]
            graph = trace.graphs.get(backward.graph) if backward.graph is not None else None
            if graph is not None and graph.nodes:
                alike.setdefault(_shape(backward, graph, parameters), []).append((backward, graph))
    stems: set[str] = set()
    out: list[Subject] = []
    for members in alike.values():
        backward, graph = next((each for each in members if not each[0].same_shape), members[0])
        frame = words.frame(backward.site)
        name = words.loss(backward) + (".grad" if backward.call == "autograd.grad" else ".backward")
        step = facts.steps.step_of(backward.serial) or 0
        stem = _UNSAFE.sub("_", f"step{step}-{ordinals[backward.serial]}-{name}")[:LONGEST_NAME]
        out.append(
            Subject(
                backward=backward,
                graph=graph,
                title=words.backward(backward),
                place=words.place(frame) if frame is not None else words.path(trace.header.script),
                when=_when(facts, [each[0] for each in members]),
                stem=_unique(stem + (f"-L{frame.line}" if frame is not None else ""), stems),
            )
        )
    return tuple(out)


def _shape(backward: Backward, graph: Graph, parameters: frozenset[TensorId]) -> object:
    """Returns what two backwards must share to be drawn once: call site, graph and fate."""
    nodes = tuple(
        (
            node.name,
            node.custom,
            node.site,
            node.module,
            node.op is None and node.device,
            node.leaf if node.leaf in parameters else None,
        )
        for node in graph.nodes
    )
    visits = tuple((visit.index, visit.freed) for visit in backward.visits)
    fate = (backward.error, backward.retain_graph, backward.executed, backward.call)
    return backward.site, nodes, graph.edges, graph.roots, visits, fate


def _when(facts: Facts, members: list[Backward]) -> str:
    """Returns in which steps a backward was the same: `step 0`, `steps 0 to 2 and 40 alike`."""
    spans: list[list[int]] = []
    for backward in members:
        step = facts.steps.of(backward.serial)
        if step is None:
            continue
        if spans and step.number <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], step.last)
        else:
            spans.append([step.number, step.last])
    if not spans:
        return "outside the training steps"
    if spans == [[spans[0][0], spans[0][0]]]:
        return f"step {spans[0][0]}"
    words = [f"{first} to {last}" if last > first else f"{first}" for first, last in spans[:LISTED_SPANS]]
    return f"steps {', '.join(words)}{' …' if len(spans) > LISTED_SPANS else ''} alike"


def _unique(stem: str, taken: set[str]) -> str:
    number, name = 2, stem
    while name.lower() in taken:
        name, number = f"{stem}-{number}", number + 1
    taken.add(name.lower())
    return name
