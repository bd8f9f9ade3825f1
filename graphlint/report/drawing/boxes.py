"""Turns the shown groups of a graph into boxes and frames. Imports `titles` and `scene`, and their words."""

import msgspec

from graphlint.analysis.devices_wording import sized
from graphlint.record.events import ModuleCall
from graphlint.report.drawing.collapse import Path, children, unwrap
from graphlint.report.drawing.diagram import Box, Frame, Mark
from graphlint.report.drawing.scene import (
    Scene,
    crossing,
    devices,
    marks_of,
    said_of,
    shared_by,
    sites_of,
    source_lines,
    tooltip,
)
from graphlint.report.drawing.structure import Group, Item, Repeat, Run, nodes_of
from graphlint.report.drawing.titles import code_line, members, module_name, plain_lines, title
from graphlint.report.drawing.wording import plural


def node_box(scene: Scene, index: int, key: str) -> Box:
    """Returns the box of one node by itself, its leaves left to boxes of their own."""
    box = _box(scene, Run((index,)), key, "", "", frozenset())
    return box if box.kind == "transfer" else msgspec.structs.replace(box, lines=())


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
        name = module_name(self._scene, item) or module_name(self._scene, inner) or base
        says = said_of(self._scene, list(nodes_of((item,))))
        self._frame(key, frame, item, base, {line: says[line] for line in says if line not in said})
        if not isinstance(inner, Repeat):
            self.place(children(item), here, key, name, said | says.keys())
            return
        self._follow(inner, key)
        only = inner.bodies[0][0] if len(inner.bodies[0]) == 1 else None
        name = (module_name(self._scene, only) if only is not None else "") or name
        self.place(children(item), here, key, name, said | says.keys())
        first = list(nodes_of(inner.bodies[0]))
        for body in inner.bodies[1:]:
            for like, index in zip(first, nodes_of(body), strict=True):
                self.at[index] = self.at[like]

    def _follow(self, repeat: Repeat, key: str) -> None:
        for number, body in enumerate(repeat.bodies):
            for index in nodes_of(body):
                self.bodies.setdefault(index, {})[key] = number

    def _frame(self, key: str, parent: str, item: Item, base: str, says: dict[str, Mark]) -> None:
        scene = self._scene
        nodes = list(nodes_of((item,)))
        inner = unwrap(item)
        call = item.call if isinstance(item, Group) else None
        frames = scene.touches.innermost([call.site] if call is not None else sites_of(scene, nodes))
        label = [title(scene, item, base)]
        if isinstance(inner, Repeat):
            if inner is not item:
                label.append(title(scene, inner, base))
            around = module_name(scene, item) or base
            label.append(members(scene, inner, around))
        elif not parent:
            label.append(devices(scene, nodes))
        if call is not None and call.parent is None and frames:
            label.append(f"line {frames[0].line}")
        shared = {line: mark for line, mark in says.items() if shared_by(scene, nodes, mark)}
        tags = scene.touches.at(frames) if call is not None else ()
        self.frames.append(
            Frame(
                key=key,
                parent=parent,
                label=" · ".join(part for part in label if part),
                times=len(inner.bodies) if isinstance(inner, Repeat) else 1,
                marks=tuple(shared.values()),
                says=tuple(shared),
                tags=tuple(dict.fromkeys(finding.code for finding in tags)),
                tooltip=(plural(len(nodes), "node"), *source_lines(scene, frames)),
            )
        )

    def _close(self, item: Item, key: str, frame: str, base: str, said: frozenset[str]) -> None:
        for index in nodes_of((item,)):
            self.at[index] = key
        self.boxes.append(_box(self._scene, item, key, frame, base, said))


def _box(scene: Scene, item: Item, key: str, frame: str, base: str, said: frozenset[str]) -> Box:
    nodes = list(nodes_of((item,)))
    move = crossing(scene, nodes[0]) if len(nodes) == 1 else None
    lines = plain_lines(scene, item, base) if move is None else (sized(move.bytes),)
    # What a frame's line is called on touches the frame; a closed call has nowhere else to show it.
    closed = isinstance(item, Group) and (item.call is None or _outermost(item.call))
    frames = (scene.touches.chains if closed else scene.touches.innermost)(sites_of(scene, nodes))
    where = devices(scene, nodes)
    if "," in where:
        lines = (*lines, f"on {where}")
    return Box(
        key=key,
        kind="transfer" if move is not None else "ops" if isinstance(item, Run) else "call",
        title=title(scene, item, base) if move is None else f"{move.from_device} → {move.to_device}",
        lines=lines,
        says=tuple(line for line in said_of(scene, nodes) if line not in said),
        code=code_line(scene, item),
        device=where,
        nodes=len(nodes),
        frame=frame,
        marks=marks_of(scene, nodes),
        tags=tuple(dict.fromkeys(finding.code for finding in scene.touches.at(frames))),
        tooltip=tooltip(scene, nodes),
    )


def _outermost(call: ModuleCall) -> bool:
    return call.parent is None
