"""Turns the shown groups of a graph into boxes and frames, with their words. Imports `record`, `lint`."""

from collections import Counter

import msgspec

from graphlint.record.events import Backward, ModuleCall, Transfer
from graphlint.record.graph import Graph
from graphlint.record.identity import Serial
from graphlint.record.tables import Frame as SourceFrame
from graphlint.report.drawing.collapse import Path, children, unwrap
from graphlint.report.drawing.diagram import Box, Frame, Mark
from graphlint.report.drawing.marks import NodeMarks
from graphlint.report.drawing.structure import Group, Item, Repeat, Run, Wiring, nodes_of
from graphlint.report.drawing.touch import Touches
from graphlint.report.drawing.wording import Words, clip, plural, size

CODE_WIDTH = 46
TIP_LINES = 8
NAMED_LEAVES = 4


class Scene(msgspec.Struct, frozen=True):
    """What the boxes of one backward are made from. `backwards` are all backwards by serial."""

    graph: Graph
    wiring: Wiring
    marks: NodeMarks
    words: Words
    touches: Touches
    transfers: dict[Serial, Transfer]
    backwards: dict[Serial, Backward]
    call_numbers: dict[Serial, tuple[int, int]]
    """Which of how many calls of its module an outermost module call is, from 1."""


def crossing(scene: Scene, index: int) -> Transfer | None:
    """Returns the transfer that a node is the gradient of, where it joins two devices."""
    op = scene.graph.nodes[index].op
    transfer = scene.transfers.get(op) if op is not None else None
    if transfer is None or transfer.noop or transfer.from_device == transfer.to_device:
        return None
    return transfer


class Stage:
    """Collects boxes and frames; `at` maps each node to the key of its box.

    `bodies` tells for a node in which body of which opened repeats it lies; only the first is drawn.
    """

    def __init__(self, scene: Scene, opened: frozenset[Path]) -> None:
        self.boxes: list[Box] = []
        self.frames: list[Frame] = []
        self.at: dict[int, str] = {}
        self.bodies: dict[int, dict[str, int]] = {}
        self._scene = scene
        self._opened = opened

    def place(
        self,
        items: tuple[Item, ...],
        path: Path = (),
        frame: str = "",
        base: str = "",
        said: frozenset[str] = frozenset(),
    ) -> None:
        """Places items side by side in a frame.

        `base` is the dotted name of the module around them, `said` what a frame around them says of all.
        """
        for position, item in enumerate(items):
            here = (*path, position)
            if here in self._opened:
                self._open(item, here, frame, base, said)
            else:
                self._close(item, "b" + "_".join(map(str, here)), frame, base, said)

    def _open(self, item: Item, here: Path, frame: str, base: str, said: frozenset[str]) -> None:
        key = "f" + "_".join(map(str, here))
        inner = unwrap(item)
        name = _module_name(self._scene, item) or _module_name(self._scene, inner) or base
        if isinstance(inner, Repeat):
            self._follow(inner, key)
            label = _repeat_label(self._scene, inner, base)
            if name != base:
                label = f"{_title(self._scene, item, base)}: {label}"
            says = self._frame(key, frame, label, item, len(inner.bodies), said)
            only = inner.bodies[0][0] if len(inner.bodies[0]) == 1 else None
            name = (_module_name(self._scene, only) if only is not None else "") or name
        else:
            says = self._frame(key, frame, _title(self._scene, item, base), item, 1, said)
        self.place(children(item), here, key, name, said | says)
        if isinstance(inner, Repeat):
            first = list(nodes_of(inner.bodies[0]))
            for body in inner.bodies[1:]:
                for like, index in zip(first, nodes_of(body), strict=True):
                    self.at[index] = self.at[like]

    def _follow(self, repeat: Repeat, key: str) -> None:
        for number, body in enumerate(repeat.bodies):
            for index in nodes_of(body):
                self.bodies.setdefault(index, {})[key] = number

    def _frame(
        self, key: str, parent: str, label: str, item: Item, times: int, said: frozenset[str]
    ) -> frozenset[str]:
        """Adds a frame and returns what it says of all that is in it."""
        scene = self._scene
        nodes = list(nodes_of((item,)))
        says = frozenset(line for line in _mark_lines(scene, nodes) if not line.endswith(" nodes)"))
        call = item.call if isinstance(item, Group) else None
        sites = [call.site] if call is not None else [scene.graph.nodes[index].site for index in nodes]
        frames = scene.touches.innermost(sites)
        tags = scene.touches.at(frames) if call is not None else ()
        device = _devices(scene, nodes)
        line = f" · line {frames[0].line}" if call is not None and frames and call.parent is None else ""
        extra = f" · {device}" if device and not parent else ""
        self.frames.append(
            Frame(
                key=key,
                parent=parent,
                label=label + extra + line,
                times=times,
                marks=_shared_marks(scene, nodes),
                says=tuple(sorted(says - said)),
                tags=tuple(finding.code for finding in tags),
                tooltip=(label, plural(len(nodes), "node"), *_lines(scene, frames)),
            )
        )
        return says

    def _close(self, item: Item, key: str, frame: str, base: str, said: frozenset[str]) -> None:
        scene = self._scene
        nodes = list(nodes_of((item,)))
        for index in nodes:
            self.at[index] = key
        sites = [scene.graph.nodes[index].site for index in nodes]
        inner = scene.touches.innermost(sites)
        whole = not isinstance(item, Run)
        own = scene.touches.chains(sites) if whole else inner
        if isinstance(item, Group) and item.call is not None and item.call.parent is not None:
            own = inner
        move = crossing(scene, nodes[0]) if len(nodes) == 1 else None
        lines, code = _body(scene, item, nodes, inner)
        if move is not None:
            lines, code = (size(move.bytes),), code
        self.boxes.append(
            Box(
                key=key,
                kind="transfer" if move is not None else "ops" if isinstance(item, Run) else "call",
                title=_title(scene, item, base) if move is None else f"{move.from_device} → {move.to_device}",
                lines=(*lines, *_leaf_lines(scene, nodes, base, item)),
                says=tuple(line for line in _mark_lines(scene, nodes) if line not in said),
                code=code,
                device=_devices(scene, nodes),
                nodes=len(nodes),
                frame=frame,
                marks=_marks(scene, nodes),
                tags=tuple(dict.fromkeys(finding.code for finding in scene.touches.at(own))),
                tooltip=_tooltip(scene, nodes, sites),
            )
        )


def _devices(scene: Scene, nodes: list[int]) -> str:
    return ", ".join(dict.fromkeys(d for index in nodes if (d := scene.graph.nodes[index].device)))


def _module_name(scene: Scene, item: Item) -> str:
    if isinstance(item, Group) and item.call is not None:
        return scene.words.module(item.call.module)
    return ""


def _below(name: str, base: str) -> str:
    """Returns a dotted name without the part that the frame around it says already."""
    return name[len(base) + 1 :] if base and name.startswith(base + ".") else name


def _title(scene: Scene, item: Item, base: str) -> str:
    if isinstance(item, Repeat):
        return _repeat_label(scene, item, base)
    if isinstance(item, Run):
        return _node_names(scene, list(item.nodes), 2)
    if item.call is None:
        return item.label or _stretch(scene, item)
    return _call_title(scene, item.call, base)


def _call_title(scene: Scene, call: ModuleCall, base: str) -> str:
    name = _below(scene.words.module(call.module), base)
    kind = scene.words.module_type(call.module)
    which = scene.call_numbers.get(call.serial, (1, 1))
    extra = f" · call {which[0]} of {which[1]}" if which[1] > 1 else ""
    return (f"{name} · {kind}" if name != kind else kind) + extra


def _stretch(scene: Scene, item: Group) -> str:
    frames = scene.touches.innermost(scene.graph.nodes[index].site for index in nodes_of((item,)))
    lines = sorted(frame.line for frame in frames)
    if not lines:
        return "unseen lines"
    return f"lines {lines[0]} to {lines[-1]}" if len(lines) > 1 else f"line {lines[0]}"


def _repeat_label(scene: Scene, repeat: Repeat, base: str) -> str:
    times = len(repeat.bodies)
    how = "each feeds the next" if repeat.chained else "side by side"
    first, last = (_below(_common_name(scene, body), base) for body in (repeat.bodies[0], repeat.bodies[-1]))
    only = repeat.bodies[0][0]
    if len(repeat.bodies[0]) == 1 and isinstance(only, Group) and only.call is not None:
        what = scene.words.module_type(only.call.module)
    else:
        what = "the same lines" if not first else "the same calls"
    names = f"{first} … {last}" if first != last else first
    return f"{what} × {times}" + (f" · {names}" if names and names != base else "") + f" · {how}"


def _common_name(scene: Scene, items: tuple[Item, ...]) -> str:
    """Returns the dotted name that the module calls among some items have in common."""
    names = [name.split(".") for item in items if (name := _module_name(scene, item))]
    common: list[str] = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def _node_names(scene: Scene, nodes: list[int], most: int) -> str:
    counts = Counter(scene.graph.nodes[index].custom or scene.graph.nodes[index].name for index in nodes)
    names = [name if count == 1 else f"{name} × {count}" for name, count in counts.items()]
    return ", ".join(names[:most]) + (
        f" and {plural(sum(list(counts.values())[most:]), 'more')}" if len(names) > most else ""
    )


def _body(
    scene: Scene, item: Item, nodes: list[int], frames: list[SourceFrame]
) -> tuple[tuple[str, ...], str]:
    """Returns the plain lines and the line of code of a box."""
    if isinstance(item, Run):
        return (), _code(scene, frames[0]) if frames else ""
    text = _parts(scene, item) or _node_names(scene, nodes, 3)
    if len(text) > CODE_WIDTH:
        text = plural(len(nodes), "node")
    elif len(nodes) > 1:
        text += f": {plural(len(nodes), 'node')}"
    outer = isinstance(item, Group) and item.call is not None and item.call.parent is None
    if outer and isinstance(item, Group) and item.call is not None:
        frames = scene.touches.innermost([item.call.site])
        return (text,), _code(scene, frames[0]) if frames else ""
    return (text,), ""


def _parts(scene: Scene, item: Item) -> str:
    """Returns the classes of the module calls in a group, in order: `Linear, ReLU × 2`."""
    group = unwrap(item)
    members = group.items if isinstance(group, Group) else (group,)
    kinds: list[list[object]] = []
    for part in members:
        times = 1
        if isinstance(part, Repeat) and len(part.bodies[0]) == 1:
            times, part = len(part.bodies), part.bodies[0][0]
        if not isinstance(part, Group) or part.call is None:
            continue
        kind = scene.words.module_type(part.call.module)
        if kinds and kinds[-1][0] == kind:
            kinds[-1][1] = int(str(kinds[-1][1])) + times
        else:
            kinds.append([kind, times])
    return ", ".join(str(kind) if times == 1 else f"{kind} × {times}" for kind, times in kinds)


def _code(scene: Scene, frame: SourceFrame) -> str:
    return clip(f"{frame.line} | {scene.words.code(frame)}", CODE_WIDTH)


def _leaf_lines(scene: Scene, nodes: list[int], base: str, item: Item) -> tuple[str, ...]:
    """Returns the parameters that a box's nodes hang on: `weight, bias: 2 leaves`."""
    leaves = dict.fromkeys(leaf for index in nodes for leaf in scene.wiring.leaves[index])
    names: list[str] = []
    for leaf in leaves:
        tensor = scene.graph.nodes[leaf].leaf
        if tensor is not None and scene.words.parameter(tensor) is not None:
            around = _module_name(scene, unwrap(item)) or _module_name(scene, item) or base
            names.append(_below(_below(scene.words.tensor(tensor), around), base))
    if not names:
        return ()
    count = plural(len(names), "leaf")
    text = ", ".join(names)
    return (f"{text}: {count}",) if len(names) <= NAMED_LEAVES and len(text) < CODE_WIDTH else (count,)


_MARK_WORDS: dict[Mark, str] = {
    "reentered": "freed by {other}, entered again here",
    "freed-later": "freed here, entered again by {other}",
    "retained-again": "kept by {other}, entered again here",
    "discarded": "gradients thrown away",
    "not-executed": "not executed",
}


def _mark_lines(scene: Scene, nodes: list[int]) -> tuple[str, ...]:
    """Returns a line for each mark of a box that the reader must see without a legend."""
    lines: list[str] = []
    for mark, text in _MARK_WORDS.items():
        marked = [index for index in nodes if mark in scene.marks.marks[index]]
        if not marked:
            continue
        others = {scene.marks.others.get(index, {}).get(mark) for index in marked}
        other = next((o for o in sorted(o for o in others if o is not None)), None)
        frame = scene.words.frame(scene.backwards[other].site) if other in scene.backwards else None
        words = text.format(other=f"line {frame.line}" if frame is not None else "another backward")
        share = "" if len(marked) == len(nodes) else f" ({len(marked)} of {len(nodes)} nodes)"
        lines.append(words + share)
    return tuple(lines)


def _marks(scene: Scene, nodes: list[int]) -> tuple[Mark, ...]:
    return tuple(dict.fromkeys(mark for index in nodes for mark in scene.marks.marks[index]))


def _shared_marks(scene: Scene, nodes: list[int]) -> tuple[Mark, ...]:
    first = scene.marks.marks[nodes[0]]
    return tuple(mark for mark in first if all(mark in scene.marks.marks[index] for index in nodes))


def _lines(scene: Scene, frames: list[SourceFrame]) -> list[str]:
    """Returns the tooltip's lines for source lines and the findings on them."""
    out = [scene.words.place(frame) for frame in frames[:TIP_LINES]]
    if len(frames) > TIP_LINES:
        out.append(f"and {len(frames) - TIP_LINES} more lines")
    out.extend(f"{f.code} {f.rule}: {f.message}" for f in scene.touches.at(frames))
    return out


def _tooltip(scene: Scene, nodes: list[int], sites: list[int | None]) -> tuple[str, ...]:
    node = scene.graph.nodes[nodes[-1]]
    head = f"{plural(len(nodes), 'node')}: {_node_names(scene, nodes, 6)}"
    shape = f"gives {tuple(node.shape)} {node.dtype} on {node.device}" if node.device and node.dtype else ""
    return tuple(line for line in (head, shape, *_lines(scene, scene.touches.chains(sites))) if line)  # type: ignore[arg-type]
