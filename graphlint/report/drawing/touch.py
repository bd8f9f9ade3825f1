"""Which findings touch which source lines. Imports `record` and `lint`."""

from collections import defaultdict
from collections.abc import Iterable

from graphlint.lint.finding import Finding
from graphlint.record.identity import SiteId
from graphlint.record.tables import Frame
from graphlint.record.trace import Trace


class Touches:
    """The findings of a report by the lines of their labels."""

    def __init__(self, trace: Trace, findings: tuple[Finding, ...]) -> None:
        self._trace = trace
        self._lines: dict[tuple[str, int], list[Finding]] = defaultdict(list)
        for finding in findings:
            for line in dict.fromkeys((label.path, label.line) for label in finding.labels):
                self._lines[line].append(finding)

    def at(self, frames: Iterable[Frame]) -> tuple[Finding, ...]:
        """Returns the findings that touch any of some lines, each once."""
        found: dict[str, Finding] = {}
        for frame in frames:
            for finding in self._lines.get((frame.path, frame.line), ()):
                found.setdefault(finding.fingerprint, finding)
        return tuple(found.values())

    def innermost(self, sites: Iterable[SiteId | None]) -> list[Frame]:
        """Returns the distinct innermost frames of some sites, in order."""
        return self._frames(sites, 1)

    def chains(self, sites: Iterable[SiteId | None]) -> list[Frame]:
        """Returns all distinct frames of some sites, in order."""
        return self._frames(sites, None)

    def _frames(self, sites: Iterable[SiteId | None], count: int | None) -> list[Frame]:
        frames: dict[tuple[str, int], Frame] = {}
        for site in dict.fromkeys(sites):
            found = self._trace.sites.get(site) if site is not None else None
            for frame in found.frames[:count] if found is not None else ():
                frames.setdefault((frame.path, frame.line), frame)
        return list(frames.values())
