"""What the boxes of one backward are made from, and what is said of any set of its nodes.

Imports `record`, `lint` and the words and marks of drawing.
"""

from collections import Counter

import msgspec

from graphlint.record.events import Backward, Transfer
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial, SiteId
from graphlint.record.tables import Frame as SourceFrame
from graphlint.report.drawing.diagram import Mark
from graphlint.report.drawing.marks import NodeMarks
from graphlint.report.drawing.structure import Wiring
from graphlint.report.drawing.touch import Touches
from graphlint.report.drawing.wording import TIMES, Words, plural

TIP_LINES = 8
TIP_NAMES = 6


class Scene(msgspec.Struct, frozen=True):
    """What the boxes of one backward are made from.

    `order` is that of the forward pass. `backwards` are all backwards by serial. `node_devices` are the
    devices of the nodes as the script sees them, by index; empty where unknown. `call_numbers` tells which of
    how many calls of its module an outermost module call is, from 1.
    """

    graph: Graph
    wiring: Wiring
    order: tuple[int, ...]
    marks: NodeMarks
    words: Words
    touches: Touches
    transfers: dict[Serial, Transfer]
    backwards: dict[Serial, Backward]
    node_devices: tuple[str, ...]
    call_numbers: dict[Serial, tuple[int, int]]


def crossing(scene: Scene, index: int) -> Transfer | None:
    """Returns the transfer that a node is the gradient of, where it joins two devices."""
    op = scene.graph.nodes[index].op
    transfer = scene.transfers.get(op) if op is not None else None
    if transfer is None or transfer.noop or transfer.from_device == transfer.to_device:
        return None
    return transfer


def devices(scene: Scene, nodes: list[int]) -> str:
    """Returns the devices of some nodes, `cpu` or `cpu, cuda:0`."""
    return ", ".join(dict.fromkeys(d for index in nodes if (d := scene.node_devices[index])))


def sites_of(scene: Scene, nodes: list[int]) -> list[SiteId | None]:
    """Returns the sites of some nodes, in order."""
    return [scene.graph.nodes[index].site for index in nodes]


def node_names(scene: Scene, nodes: list[int], most: int) -> str:
    """Returns the names of some nodes, `TBackward0, ViewBackward0 x 2`, at most `most` different ones."""
    counts = Counter(scene.graph.nodes[index].custom or scene.graph.nodes[index].name for index in nodes)
    names = [name if count == 1 else f"{name} {TIMES} {count}" for name, count in counts.items()]
    more = sum(list(counts.values())[most:])
    return ", ".join(names[:most]) + (f" and {more} more" if more else "")


def marks_of(scene: Scene, nodes: list[int]) -> tuple[Mark, ...]:
    """Returns the marks that any of some nodes bears."""
    return tuple(dict.fromkeys(mark for index in nodes for mark in scene.marks.marks[index]))


def said_of(scene: Scene, nodes: list[int]) -> dict[str, Mark]:
    """Returns the sentences on the marks of some nodes, for a reader without a legend."""
    said: dict[str, Mark] = {}
    for mark, text in _SENTENCES:
        marked = [index for index in nodes if mark in scene.marks.marks[index]]
        if marked:
            others = [scene.marks.others.get(index, {}).get(mark) for index in marked]
            other = min((serial for serial in others if serial is not None), default=None)
            frame = scene.words.frame(scene.backwards[other].site) if other in scene.backwards else None
            words = text.format(other=f"line {frame.line}" if frame is not None else "another backward")
            share = "" if len(marked) == len(nodes) else f" ({len(marked)} of {len(nodes)} nodes)"
            said[words + share] = mark
    return said


def shared_by(scene: Scene, nodes: list[int], mark: Mark) -> bool:
    """Whether all of some nodes bear a mark."""
    return all(mark in scene.marks.marks[index] for index in nodes)


def source_lines(scene: Scene, frames: list[SourceFrame]) -> tuple[str, ...]:
    """Returns source lines and the findings that touch them, for a tooltip."""
    out = [scene.words.place(frame) for frame in frames[:TIP_LINES]]
    if len(frames) > TIP_LINES:
        out.append(f"and {len(frames) - TIP_LINES} more lines")
    found = scene.touches.at(frames)
    out.extend(f"{finding.code} {finding.rule}: {finding.message}" for finding in found)
    return tuple(out)


def tooltip(scene: Scene, nodes: list[int]) -> tuple[str, ...]:
    """Returns what pointing at a box of some nodes tells."""
    last = scene.graph.nodes[nodes[-1]]
    head = f"{plural(len(nodes), 'node')}: {node_names(scene, nodes, TIP_NAMES)}"
    where = scene.node_devices[nodes[-1]]
    shape = (
        f"gives {tuple(last.shape)} {last.dtype}" + (f" on {where}" if where else "") if last.dtype else ""
    )
    frames = scene.touches.chains(sites_of(scene, nodes))
    return tuple(line for line in (head, shape, *source_lines(scene, frames)) if line)


_SENTENCES: tuple[tuple[Mark, str], ...] = (
    ("reentered", "freed by {other}, entered again here"),
    ("freed-later", "freed here, entered again by {other}"),
    ("retained-again", "kept by {other}, entered again here"),
    ("discarded", "gradients thrown away"),
    ("not-executed", "not executed"),
)
