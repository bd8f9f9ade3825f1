"""Decides which groups of a graph are opened and which are one box, so that a picture fits a screen.

Nothing is dropped: what isn't opened is a box that says how many nodes it holds. Imports `structure` only.
"""

import heapq
from collections.abc import Callable

from graphlint.report.drawing.structure import Group, Item, Repeat, Run, by_function, in_stretches

Path = tuple[int, ...]
"""Where an item is: its position among the shown items at each depth."""

BOXES = (48, 40, 32, 27, 23, 19, 16, 13, 10, 4)
"""About how many boxes a picture is tried with, from detailed to coarse."""

MOST_NEIGHBORS = 60
"""How many neighbours on one level may be shown apart before they are gathered by function or stretch."""


def unwrap(item: Item) -> Item:
    """Returns the innermost group of a chain of groups that hold nothing else."""
    while isinstance(item, Group) and len(item.items) == 1 and not isinstance(item.items[0], Run):
        item = item.items[0]
    return item


def children(item: Item) -> tuple[Item, ...]:
    """Returns what is shown in place of an item when it is opened; empty where it can't be."""
    item = unwrap(item)
    match item:
        case Run():
            return ()
        case Group():
            return item.items if len(item.items) > 1 else ()
        case Repeat():
            body = item.bodies[0]
            return (children(body[0]) or body) if len(body) == 1 else body


def tame(items: tuple[Item, ...], function: Callable[[int], str], most: int) -> tuple[Item, ...]:
    """Returns at most `most` items: neighbours of one function gathered first, then equal stretches."""
    if len(items) <= most:
        return items
    items = by_function(items, function)
    return in_stretches(items, most) if len(items) > most else items


def tamed(group: Group, function: Callable[[int], str], most: int) -> Group:
    """Returns a group in which no level has more than `most` items."""

    def inner(item: Item) -> Item:
        match item:
            case Run():
                return item
            case Group():
                return tamed(item, function, most)
            case Repeat():
                bodies = tuple(
                    tuple(inner(part) for part in tame(body, function, most)) for body in item.bodies
                )
                return Repeat(bodies, item.chained)

    items = tuple(inner(item) for item in tame(group.items, function, most))
    return Group(items, group.call, group.label)


def _drawn(item: Item) -> int:
    """Returns how many nodes an item shows when it is fully opened: one part of each repeat."""
    match item:
        case Run():
            return len(item.nodes)
        case Group():
            return sum(_drawn(part) for part in item.items)
        case Repeat():
            return sum(_drawn(part) for part in item.bodies[0])


def opened(items: tuple[Item, ...], boxes: int, urgent: Callable[[Item], bool]) -> frozenset[Path]:
    """Returns the places of the items to open so that about `boxes` boxes are shown.

    Large groups are opened first, `urgent` ones (marked in part) before all.
    """
    shown = len(items)
    chosen: set[Path] = set()
    queue: list[tuple[bool, int, Path]] = []  # urgent, largest, first
    found: dict[Path, tuple[Item, ...]] = {}

    def look_at(parts: tuple[Item, ...], path: Path) -> None:
        for position, item in enumerate(parts):
            inner = children(item)
            if inner:
                place = (*path, position)
                found[place] = inner
                heapq.heappush(queue, (not urgent(item), -_drawn(item), place))

    look_at(items, ())
    while queue:
        *_, place = heapq.heappop(queue)
        inner = found[place]
        if shown + len(inner) - 1 <= boxes:
            shown += len(inner) - 1
            chosen.add(place)
            look_at(inner, place)
    return frozenset(chosen)
