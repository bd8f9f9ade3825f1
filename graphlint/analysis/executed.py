"""Which statements of the user's sources a run is known to have come by.

May import `record` and the rest of `analysis`. The record holds the lines that called torch; that a line
without such a call ran is worked out from its neighbours, and where nothing proves it the answer is no.
"""

from functools import cached_property

from graphlint.analysis.sources import Sources
from graphlint.analysis.steps import Steps
from graphlint.record.identity import SiteId
from graphlint.record.trace import Trace


class Executed:
    """Answers for one trace, of a run that came to its end.

    Args:
        trace: the record.
        sources: its statements.
    """

    def __init__(self, trace: Trace, sources: Sources) -> None:
        self._trace = trace
        self._sources = sources

    def passed(self, path: str, first_line: int, last_line: int, *, in_full: bool) -> bool:
        """Returns whether the run came by a statement; with `in_full`, in a step recorded in full.

        It did when a line of it called torch, or a later one of its block did; or an earlier one, and nothing
        in between leaves the block. At the top of a file that was run it did anyway.
        """
        seen = (self._in_full if in_full else self._ever).get(path, frozenset())
        if any(first_line <= line <= last_line for line in seen):
            return True
        block = self._sources.block(path, first_line)
        if block is None:
            return False
        if block.outermost:
            return path in self._ever
        return any(
            block.first_line <= line <= block.last_line and (line > last_line or not block.left_before)
            for line in seen
        )

    def ran(self, path: str) -> bool:
        """Returns whether any line of a file called torch."""
        return path in self._ever

    @cached_property
    def _ever(self) -> dict[str, frozenset[int]]:
        return self._lines({event.site for event in self._trace.events if event.site is not None})

    @cached_property
    def _in_full(self) -> dict[str, frozenset[int]]:
        steps = Steps(self._trace)
        before = steps.all[0].first if steps.all else None
        sites = {
            event.site
            for event in self._trace.events
            if event.site is not None and (before is None or event.serial < before)
        }
        for step in steps.all:
            if step.level == "full":
                sites |= {event.site for event in step.events if event.site is not None}
        return self._lines(sites)

    def _lines(self, sites: set[SiteId]) -> dict[str, frozenset[int]]:
        lines: dict[str, set[int]] = {}
        for site in sites:
            for frame in self._trace.sites[site].frames if site in self._trace.sites else ():
                lines.setdefault(frame.path, set()).add(frame.line)
        return {path: frozenset(found) for path, found in lines.items()}
