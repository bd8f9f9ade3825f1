"""Where a source line lies, said so that it outlasts edits elsewhere; may import `record` only.

A fingerprint must survive that lines are inserted above, and a report shows paths as the user types them:
both are answered here from the sources that the trace carries, never from the disk.
"""

import ast
import re
from pathlib import PurePath

import msgspec

from graphlint.record.trace import Trace


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its number.

    `path` is the path as shown, `function` the dotted name of what is around the line (empty at the top of a
    module), `statement` its text with blanks collapsed (of a compound statement the header only).
    """

    path: str
    function: str
    statement: str


class Places:
    """Reads the sources of one trace; each file is parsed once."""

    def __init__(self, trace: Trace) -> None:
        self._directory = PurePath(trace.header.directory) if trace.header.directory else None
        self._sources = trace.sources
        self._statements: dict[str, list[ast.stmt]] = {}

    def shown(self, path: str) -> str:
        """Returns `path` relative to the run's working directory where it lies below it, with `/`."""
        if self._directory is not None and PurePath(path).is_relative_to(self._directory):
            return PurePath(path).relative_to(self._directory).as_posix()
        return path

    def text(self, path: str, line: int) -> str | None:
        """Returns the text of a line (from 1) without its end; None when the trace doesn't hold it."""
        lines = _lines(self._sources.get(path, ""))
        return lines[line - 1] if 1 <= line <= len(lines) else None

    def place(self, path: str, line: int) -> Place:
        """Returns what identifies a line apart from its number.

        A path outside the working directory is told by the file's name: the rest differs between machines.
        """
        shown = self.shown(path)
        around = [found for found in self._parsed(path) if found.lineno <= line <= (found.end_lineno or 0)]
        names = [
            found.name
            for found in around
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        return Place(
            path=PurePath(shown).name if PurePath(shown).is_absolute() else shown,
            function=".".join(names),
            statement=self._statement(path, line, around[-1] if around else None),
        )

    def _statement(self, path: str, line: int, innermost: ast.stmt | None) -> str:
        if innermost is None:
            return " ".join((self.text(path, line) or "").split())
        source = self._sources[path]
        body: list[ast.stmt] = getattr(innermost, "body", [])
        if not body:
            return " ".join((ast.get_source_segment(source, innermost) or "").split())
        last = max(innermost.lineno, body[0].lineno - 1)
        return " ".join(" ".join(_lines(source)[innermost.lineno - 1 : last]).split())

    def _parsed(self, path: str) -> list[ast.stmt]:
        """Returns every statement of a file, the enclosing before the enclosed; none if it doesn't parse."""
        if path not in self._statements:
            try:
                tree = ast.parse(self._sources.get(path, ""))
            except (SyntaxError, ValueError):
                tree = ast.Module(body=[], type_ignores=[])
            self._statements[path] = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        return self._statements[path]


def _lines(text: str) -> list[str]:
    """Returns the lines as Python numbers them; `str.splitlines` also breaks at form feeds and the like."""
    return re.split(r"\r\n|\r|\n", text)
