"""Finds structure that repeats among the items of one module call: the 12 layers of a transformer.

Two parts are the same when their nodes, modules' classes, leaves, devices and marks agree in order, and
they are wired alike: each feeds the next, or all hang side by side on the same neighbours. Imports
`record` and `structure` only.
"""

from collections.abc import Callable

from graphlint.report.drawing.structure import Group, Item, Repeat, Run, Wiring, nodes_of

LONGEST_PERIOD = 40
"""A loop body of more items than this isn't looked for."""

WORTH = 6
"""Folding must spare at least this many nodes' boxes, or the parts are drawn as they are."""

Signature = tuple[object, ...]
Look = Callable[[int], tuple[object, ...]]
"""What two nodes must have in common to be taken for the same: name, leaves, device, marks."""

Kind = Callable[[Group], str]
"""What two groups must have in common besides their items: the module's class."""


def fold(group: Group, wiring: Wiring, look: Look, kind: Kind, line: Look) -> Group:
    """Returns the group with its repeats folded, at every depth.

    `line` answers for the source line of a node; it tells the direct lines of a group apart, so that a loop
    begins at its first line.
    """
    items: tuple[Item, ...] = tuple(
        fold(item, wiring, look, kind, line) if isinstance(item, Group) else item for item in group.items
    )
    signatures = [_direct(item, look, kind, line) for item in items]
    numbers: dict[Signature, int] = {}
    names = [numbers.setdefault(signature, len(numbers)) for signature in signatures]
    out: list[Item] = []
    position = 0
    while position < len(items):
        repeat = _longest(items, names, position, wiring)
        if repeat is None:
            out.append(items[position])
            position += 1
        else:
            out.append(repeat)
            position += sum(len(body) for body in repeat.bodies)
    return Group(tuple(out), group.call, group.label)


def _direct(item: Item, look: Look, kind: Kind, line: Look) -> Signature:
    own = _signature(item, look, kind)
    return (*own, line(item.nodes[0])) if isinstance(item, Run) else own


def _signature(item: Item, look: Look, kind: Kind) -> Signature:
    match item:
        case Run():
            return ("run", *(look(index) for index in item.nodes))
        case Group():
            return ("group", kind(item), *(_signature(inner, look, kind) for inner in item.items))
        case Repeat():
            bodies = tuple(_signature(inner, look, kind) for inner in item.bodies[0])
            return ("repeat", len(item.bodies), bodies)


def _longest(items: tuple[Item, ...], names: list[int], start: int, wiring: Wiring) -> Repeat | None:
    """Returns the repeat that begins at `start` and covers most items, the shortest body first."""
    found: list[tuple[int, int]] = []
    for period in range(1, min(LONGEST_PERIOD, (len(items) - start) // 2) + 1):
        times = 1
        body = names[start : start + period]
        while names[start + times * period : start + (times + 1) * period] == body:
            times += 1
        if times > 1:
            found.append((times, period))
    for times, period in sorted(found, key=lambda each: (-each[0] * each[1], each[1])):
        bodies = [items[start + n * period : start + (n + 1) * period] for n in range(times)]
        boxes = _boxes(bodies[0])
        if (times - 1) * boxes >= WORTH:
            repeat = _alike(bodies, wiring)
            if repeat is not None:
                return repeat
    return None


def _boxes(items: tuple[Item, ...]) -> int:
    """Returns how many boxes items take when everything in them is shown."""
    count = 0
    for item in items:
        match item:
            case Run():
                count += 1
            case Group():
                count += _boxes(item.items)
            case Repeat():
                count += _boxes(item.bodies[0])
    return count


def _alike(bodies: list[tuple[Item, ...]], wiring: Wiring) -> Repeat | None:
    """Returns the longest front part of the bodies that is wired alike, two at least, or None."""
    places: dict[int, tuple[int, int]] = {}
    for number, body in enumerate(bodies):
        for place, index in enumerate(nodes_of(body)):
            places[index] = (number, place)
    patterns = [_Pattern(number, places, wiring, body) for number, body in enumerate(bodies)]
    times = 1
    while times < len(bodies) and patterns[0].matches(patterns[times], patterns[1]):
        times += 1
    if times < len(bodies):
        return _alike(bodies[:times], wiring) if times > 1 else None
    common = patterns[0].out
    if any(each.out != common for each in patterns[:-1]) or not common <= patterns[-1].out:
        return None
    if (times - 1) * _boxes(bodies[0]) < WORTH:
        return None
    return Repeat(tuple(bodies), chained=bool(patterns[1].previous))


class _Pattern:
    """How one body is wired: within itself, to the one before it, to nodes of neither."""

    def __init__(
        self, number: int, places: dict[int, tuple[int, int]], wiring: Wiring, body: tuple[Item, ...]
    ) -> None:
        self.inner: set[tuple[int, int]] = set()
        self.previous: set[tuple[int, int]] = set()
        self.far = False
        self.outer: set[tuple[int, int]] = set()
        self.out: set[tuple[int, int]] = set()
        for index in nodes_of(body):
            place = places[index][1]
            for source in wiring.before[index]:
                self._file(number, place, source, places.get(source))
            for target in wiring.after[index]:
                if target not in places:
                    self.out.add((place, target))

    def _file(self, number: int, place: int, source: int, at: tuple[int, int] | None) -> None:
        if at is None:
            self.outer.add((place, source))
        elif at[0] == number:
            self.inner.add((place, at[1]))
        elif at[0] == number - 1:
            self.previous.add((place, at[1]))
        else:
            self.far = True

    def matches(self, other: "_Pattern", second: "_Pattern") -> bool:
        """Whether `other` is wired as this first body is; `second` shows how one hangs on the one before."""
        if other.far or self.inner != other.inner or other.previous != second.previous:
            return False
        if second.previous:
            return other.outer == second.outer <= self.outer
        return other.outer == self.outer
