"""Where a source line lies, said so that it outlasts edits elsewhere; may import `analysis` and `record`.

A fingerprint must survive that lines are inserted above, and a report shows paths as the user types them:
both are answered here from what the trace carries, never from the disk.
"""

import re
from pathlib import PurePath

import msgspec

from graphlint.analysis.sources import Sources
from graphlint.record.events import ScriptError
from graphlint.record.tables import Frame
from graphlint.record.trace import Trace


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its number: the file's name, the function around it, its statement on one line."""

    file: str
    function: str
    statement: str


class Places:
    """Answers about the lines of one trace."""

    def __init__(self, trace: Trace, sources: Sources) -> None:
        self._directory = PurePath(trace.header.directory) if trace.header.directory else None
        self._texts = {path: _lines(text) for path, text in trace.sources.items()}
        self._sources = sources
        self._functions = {(frame.path, frame.line): frame.function for frame in _frames(trace)}

    def shown(self, path: str) -> str:
        """Returns `path` relative to the run's working directory where it lies below it, with `/`."""
        if self._directory is not None and PurePath(path).is_relative_to(self._directory):
            return PurePath(path).relative_to(self._directory).as_posix()
        return path

    def text(self, path: str, line: int) -> str | None:
        """Returns the text of a line (from 1) with its indentation; None when the trace doesn't hold it."""
        lines = self._texts.get(path, [])
        return lines[line - 1] if 1 <= line <= len(lines) else None

    def place(self, path: str, line: int) -> Place:
        """Returns what identifies a line apart from its number.

        A file is told by its name: its directory may be renamed, and differs between machines.
        """
        statement = self._sources.statement(path, line)
        text = statement.text if statement is not None else self.text(path, line) or ""
        return Place(
            file=PurePath(path).name,
            function=self._functions.get((path, line), ""),
            statement=" ".join(text.split()),
        )


def _frames(trace: Trace) -> list[Frame]:
    """Returns every frame that the trace names."""
    errors = (event for event in trace.events if isinstance(event, ScriptError))
    chains = [site.frames for site in trace.sites.values()] + [error.frames for error in errors]
    return [frame for chain in chains for frame in chain]


def _lines(text: str) -> list[str]:
    """Returns the lines as Python numbers them; `str.splitlines` also breaks at form feeds and the like."""
    return re.split(r"\r\n|\r|\n", text)
