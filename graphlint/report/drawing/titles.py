"""How groups and runs of nodes are called in boxes and frames. Imports `record` and `scene`."""

from itertools import groupby

from graphlint.record.events import ModuleCall
from graphlint.report.drawing.collapse import unwrap
from graphlint.report.drawing.scene import Scene, node_names, sites_of
from graphlint.report.drawing.structure import Group, Item, Repeat, Run, nodes_of
from graphlint.report.drawing.wording import CODE_WIDTH, TIMES, plural

NAMED_NODES = 3
NAMED_LEAVES = 4


def module_name(scene: Scene, item: Item) -> str:
    """Returns the dotted name of the module whose call an item is; empty where it is none."""
    if isinstance(item, Group) and item.call is not None:
        return scene.words.module(item.call.module)
    return ""


def _below(name: str, base: str) -> str:
    """Returns a dotted name without the part that the frame around it says already."""
    return name[len(base) + 1 :] if base and name.startswith(base + ".") else name


def title(scene: Scene, item: Item, base: str) -> str:
    """Returns the first line of a box or frame; `base` is the dotted name of the module around it."""
    if isinstance(item, Repeat):
        return f"{_repeated(scene, item)} {TIMES} {len(item.bodies)}"
    if isinstance(item, Run):
        return node_names(scene, list(item.nodes), 2)
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
    frames = scene.touches.innermost(sites_of(scene, list(nodes_of((item,)))))
    lines = sorted(frame.line for frame in frames)
    if not lines:
        return "unseen lines"
    return f"lines {lines[0]} to {lines[-1]}" if len(lines) > 1 else f"line {lines[0]}"


def _repeated(scene: Scene, repeat: Repeat) -> str:
    only = repeat.bodies[0][0]
    if len(repeat.bodies[0]) == 1 and isinstance(only, Group) and only.call is not None:
        return scene.words.module_type(only.call.module)
    return "the same calls" if _common_name(scene, repeat.bodies[0]) else "the same lines"


def members(scene: Scene, repeat: Repeat, base: str) -> str:
    """Returns which parts a repeat stands for: `layers.0 … layers.11, each feeds the next`."""
    how = "each feeds the next" if repeat.chained else "side by side"
    first, last = (_below(_common_name(scene, body), base) for body in (repeat.bodies[0], repeat.bodies[-1]))
    if not first or first == base:
        return how
    return f"{first} … {last}, {how}" if first != last else f"{first}, {how}"


def _common_name(scene: Scene, items: tuple[Item, ...]) -> str:
    """Returns the dotted name that the module calls among some items have in common."""
    names = [name.split(".") for item in items if (name := module_name(scene, item))]
    common: list[str] = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def plain_lines(scene: Scene, item: Item, base: str) -> tuple[str, ...]:
    """Returns the lines below a box's title that tell what is in it."""
    nodes = list(nodes_of((item,)))
    if isinstance(item, Run):
        return leaf_lines(scene, nodes, base, item)
    count = plural(len(nodes), "node")
    if isinstance(item, Repeat):
        return members(scene, item, base), count, *leaf_lines(scene, nodes, base, item)
    text = _parts(scene, item) or node_names(scene, nodes, NAMED_NODES)
    if len(text) > CODE_WIDTH:
        text = count
    elif len(nodes) > 1:
        text += f": {count}"
    return text, *leaf_lines(scene, nodes, base, item)


def code_line(scene: Scene, item: Item) -> str:
    """Returns the line of source that a box shows: its nodes', or that of the call in the user's loop."""
    if isinstance(item, Run):
        frames = scene.touches.innermost(sites_of(scene, list(item.nodes)))
    elif isinstance(item, Group) and item.call is not None and item.call.parent is None:
        frames = scene.touches.innermost([item.call.site])
    else:
        frames = []
    return scene.words.code(frames[0]) if frames else ""


def _parts(scene: Scene, item: Item) -> str:
    """Returns the classes of the module calls in a group, in order: `Linear, ReLU x 2`."""
    group = unwrap(item)
    kinds: list[str] = []
    for part in group.items if isinstance(group, Group) else (group,):
        times, inner = 1, part
        if isinstance(part, Repeat) and len(part.bodies[0]) == 1:
            times, inner = len(part.bodies), part.bodies[0][0]
        if isinstance(inner, Group) and inner.call is not None:
            kinds.extend([scene.words.module_type(inner.call.module)] * times)
    lengths = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return ", ".join(kind if times == 1 else f"{kind} {TIMES} {times}" for kind, times in lengths)


def leaf_lines(scene: Scene, nodes: list[int], base: str, item: Item) -> tuple[str, ...]:
    """Returns the parameters that some nodes hang on: `weight, bias: 2 leaves`."""
    around = module_name(scene, unwrap(item)) or module_name(scene, item) or base
    names: list[str] = []
    for leaf in dict.fromkeys(leaf for index in nodes for leaf in scene.wiring.leaves[index]):
        tensor = scene.graph.nodes[leaf].leaf
        if tensor is not None and scene.words.parameter(tensor) is not None:
            names.append(_below(_below(scene.words.owned(tensor, around), around), base))
    if not names:
        return ()
    count = plural(len(names), "leaf")
    text = ", ".join(names)
    return (f"{text}: {count}",) if len(names) <= NAMED_LEAVES and len(text) < CODE_WIDTH else (count,)
