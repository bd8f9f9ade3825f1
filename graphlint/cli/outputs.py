"""Places that a command writes to, all tried before anything runs so that no run is lost.

May import `errors` and the standard library.
"""

import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from graphlint.errors import UsageError

FILE_WIDTH = 100
"""Columns of a text report in a file or a pipe."""


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """An open text stream with the width and colour that suit it; `name` is the file's, None for a stream."""

    stream: TextIO
    width: int
    color: bool
    name: Path | None = None

    def write(self, data: bytes) -> None:
        """Writes UTF-8 bytes as they are, whatever the stream's own encoding.

        Raises:
            UsageError: the destination takes no more.
        """
        try:
            stream = reopened(self.stream)
            buffer = getattr(stream, "buffer", None)
            if buffer is None:
                stream.write(data.decode())
            else:
                stream.flush()
                buffer.write(data)
            stream.flush()
        except (OSError, ValueError) as error:
            raise UsageError(f"can't write the report: {_reason(error)}") from error


class Notes:
    """Lines about graphlint's own doings, on the stderr that the command started with."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        self._parted = True

    def part(self) -> None:
        """Puts a blank line before what comes next, to part it from the script's own output."""
        self._parted = False

    def parting(self) -> str:
        """Returns what comes before the next text in this stream: the blank line, if one is due."""
        due, self._parted = not self._parted, True
        return "\n" if due else ""

    def write(self, text: str, *, quiet: bool = False) -> None:
        """Prints one line, unless `quiet`."""
        if quiet or self.stream is None:
            return
        try:
            stream = reopened(self.stream)
            stream.write(f"{self.parting()}graphlint: {text}\n")
            stream.flush()
        except (OSError, ValueError) as error:
            raise UsageError(f"can't write to stderr: {_reason(error)}") from error


def reopened(stream: TextIO) -> TextIO:
    """Returns the stream; for a standard one that the script has closed, a new one on its descriptor.

    Python leaves the descriptors of the standard streams open when the streams are closed.

    Raises:
        OSError: the descriptor is closed as well.
    """
    for standard, descriptor in ((sys.__stdout__, 1), (sys.__stderr__, 2)):
        if stream is standard and stream.closed:
            return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    return stream


@contextmanager
def open_output(path: Path | None, fallback: TextIO | None, *, no_color: bool) -> Iterator[Destination]:
    """Gives the file, opened for writing, or the stream that stands in when no file was asked for.

    Raises:
        UsageError: the file can't be written, or there is no stream.
    """
    if path is None:
        if fallback is None:  # `>&-` in the shell
            raise UsageError("the report has nowhere to go, its stream is closed; give --output FILE")
        color = _colored(fallback, no_color=no_color)
        yield Destination(stream=fallback, width=_width(fallback), color=color)
        return
    try:
        stream = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"can't write the report to {path}: {_reason(error)}") from error
    try:
        yield Destination(stream=stream, width=FILE_WIDTH, color=False, name=path)
    finally:
        with suppress(OSError):  # it was told when the report was written
            stream.close()


def _width(stream: TextIO) -> int:
    """Returns the terminal's columns, `COLUMNS` first; of a pipe or a captured stream those of a file."""
    try:
        if not stream.isatty():
            return FILE_WIDTH
        wanted = os.environ.get("COLUMNS", "")
        return int(wanted) if wanted.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return FILE_WIDTH


def _colored(stream: TextIO, *, no_color: bool) -> bool:
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False


def check_directory(path: Path) -> Path:
    """Returns the directory as an absolute path, made if it was missing, after a file was written in it.

    Raises:
        UsageError: it can't be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path.absolute()
    except OSError as error:
        raise UsageError(f"can't write graphs to {path}: {_reason(error)}") from error


def check_trace_file(path: Path) -> Path:
    """Returns the trace's path as an absolute one, after opening it for writing.

    Until the run begins, a file that was there keeps its content, and one that wasn't is not left behind.

    Raises:
        UsageError: it can't be written.
    """
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"can't write the trace to {path}: {_reason(error)}") from error
    return path.absolute()


def check_baseline_file(path: Path) -> Path:
    """Returns the baseline's path as an absolute one, after a file was written beside it.

    Raises:
        UsageError: it can't be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            return path.absolute()
    except OSError as error:
        raise UsageError(f"can't write the baseline to {path}: {_reason(error)}") from error


def refuse_overwriting(kept: Iterable[Path], written: Iterable[Path]) -> None:
    """Refuses to write over a file that is read, or over the same file twice.

    Raises:
        UsageError: two of the paths are one file.
    """
    taken = [path.resolve() for path in kept]
    for path in written:
        if path.resolve() in taken:
            raise UsageError(f"{path} is used twice in this command; name another file to write to")
        if path.is_file() or not path.exists():  # devices and pipes may be shared
            taken.append(path.resolve())


def flush_stdout() -> None:
    """Sends what the script and graphlint printed on its way.

    A reader that has gone away is not an error of the run: the rest is dropped, and the interpreter is kept
    from complaining about it at its end.
    """
    stream = sys.stdout
    try:
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError, AttributeError):
        # A script may close or replace stdout; what it did with it is its own affair.
        return


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
