"""What keeps more and more graphs of earlier steps alive, told from what keeps a constant number of them.

May import `record` and the rest of `analysis`. A graph that a backward has freed serves nobody any more; one
that was not may still be meant for a later backward, so that more must be seen of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.identity import Serial, SiteId
from graphlint.record.live import Holding, LiveGraphs

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_LEAST = 4
_LEAST_WHEN_OPEN = 8
_LARGE_LIMIT = 64
_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a holding: the census, its serial, and how many steps had ended."""

    holding: Holding
    serial: Serial
    ended: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A holding that grew with every step.

    Attributes:
        first, last: the looks between which it grew.
        sites: where what it holds was made, as far as any look told.
        parts: how the tensors are spelled within an item of a collection.
        entered: whether each backward goes through the graphs of the earlier steps again.
        cleared: whether it was emptied later.
    """

    first: Seen
    last: Seen
    sites: tuple[SiteId, ...]
    parts: tuple[str, ...]
    entered: bool
    cleared: bool

    @property
    def holding(self) -> Holding:
        """The holding as it was at its largest."""
        return self.last.holding


class GrowingGraphs:
    """Finds what grows."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Growth, ...]:
        """The holdings that grew with every step over a stretch of the run."""
        return tuple(self._find())

    @cached_property
    def carried_sites(self) -> frozenset[SiteId]:
        """Where values were made that each backward goes back through, step by step, ever further."""
        return frozenset(s for growth in self.all if growth.entered for s in growth.sites)

    def _find(self) -> Iterator[Growth]:
        for series in self._series().values():
            limit = series[0].holding.limit
            if (limit is not None and limit <= _LARGE_LIMIT) or _levels_off(series):
                continue
            stretch = max(_stretches(series), key=len, default=[])
            if len(stretch) < _SAMPLES:
                stretch = _slow_stretch(series)
            if len(stretch) < _SAMPLES:
                continue
            growth = self._growth(series, stretch)
            if self._proved(growth):
                yield growth

    def _series(self) -> dict[tuple[str, int, str], list[Seen]]:
        """The looks at each holding, in time order; what differs by the frame's line alone is the same."""
        series: dict[tuple[str, int, str], list[Seen]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, LiveGraphs):
                for holding in event.holdings:
                    key = (holding.frame.path, holding.frame.first_line, holding.name)
                    series.setdefault(key, []).append(Seen(holding, event.serial, event.ended))
        return series

    def _growth(self, series: list[Seen], stretch: list[Seen]) -> Growth:
        goes_on = [seen for seen in series if seen.holding.carried and seen.holding.sites]
        later = [seen for seen in series if seen.ended > stretch[-1].ended]
        return Growth(
            first=stretch[0],
            last=stretch[-1],
            sites=tuple(dict.fromkeys(site for seen in goes_on or series for site in seen.holding.sites)),
            parts=tuple(dict.fromkeys(part for seen in series for part in seen.holding.parts)),
            entered=self._entered(stretch),
            cleared=any(seen.holding.steps < stretch[-1].holding.steps for seen in later),
        )

    def _proved(self, growth: Growth) -> bool:
        holding = growth.holding
        if growth.entered or 2 * holding.freed > holding.nodes:
            return holding.steps >= _LEAST
        return holding.steps >= _LEAST_WHEN_OPEN and not self._used_later(growth)

    def _entered(self, stretch: Sequence[Seen]) -> bool:
        """Tells whether backwards of this stretch went through nodes that those of earlier steps had run."""
        steps = self._facts.steps
        found = 0
        for backward in self._facts.graphs.backwards:
            if not stretch[0].serial < backward.serial <= stretch[-1].serial or not backward.visits:
                continue
            own = steps.of(backward.serial)
            found += own is not None and any(visit.backward < own.first for visit in backward.visits)
        return found >= _SAMPLES - 1

    def _used_later(self, growth: Growth) -> bool:
        """Tells whether a later backward ran over what was held, for the first time."""
        enough = growth.holding.nodes / 2
        return any(
            backward.serial > growth.first.serial and not backward.visits and backward.nodes >= enough
            for backward in self._facts.graphs.backwards
        )


def _levels_off(series: Sequence[Seen]) -> bool:
    """Tells whether a holding stayed at the most that it ever was, as one with room for so many does."""
    most = max(seen.holding.steps for seen in series)
    tail = [seen.holding.steps for seen in series]
    reached = tail.index(most)
    whole = all(seen.holding.whole for seen in series[reached:])
    return whole and len(tail) - reached > 1 and all(steps == most for steps in tail[reached:])


def _stretches(series: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Yields the runs of looks between which a holding gained something in every step."""
    run: list[Seen] = []
    for seen in series:
        if run and not _gained(run[-1], seen):
            yield run
            run = []
        run.append(seen)
    yield run


def _slow_stretch(series: Sequence[Seen]) -> list[Seen]:
    """Returns the last looks, each of which found more than the one before: what gains once an epoch, say."""
    stretch = [series[-1]]
    for seen in reversed(series[:-1]):
        after = stretch[0].holding
        goes_on = after.carried or after.made_in > seen.holding.made_in
        if not (after.whole and goes_on and after.steps > seen.holding.steps):
            break
        stretch.insert(0, seen)
    freed = 2 * series[-1].holding.freed > series[-1].holding.nodes
    return stretch if freed else []


def _gained(before: Seen, after: Seen) -> bool:
    steps = after.ended - before.ended
    gained = after.holding.steps - before.holding.steps
    if not after.holding.whole:
        return False
    goes_on = after.holding.carried or after.holding.made_in - before.holding.made_in >= steps
    return gained >= steps and goes_on
