"""Reads and writes traces as JSON Lines, gzip by suffix; no pickle anywhere.

May import the rest of `record` only. Loading is strict: a wrong name, version or field is a `TraceError`
with the line number. A file that stops in the middle of a line, as a killed run leaves it, loads up to
the last whole line and gives a trace that says it is incomplete.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from graphlint.errors import TraceError
from graphlint.record.header import FORMAT_NAME, FORMAT_VERSION
from graphlint.record.trace import Record, Trace

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Identity(msgspec.Struct):
    """The part of a header that is checked before the rest is believed."""

    type: str = ""
    format: str = ""
    version: int = 0


def encode(record: Record) -> bytes:
    """Returns one record as a line of JSON, newline included."""
    return dump(record) + b"\n"


def dump(value: object) -> bytes:
    """Returns a value of msgspec's types as JSON; lone surrogates are written as backslash escapes.

    UTF-8 can't hold them, yet a path that isn't UTF-8 and a script's own error message may.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_without_surrogates(msgspec.to_builtins(value)))


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def decode(lines: Iterable[bytes], *, origin: str) -> Iterator[Record]:
    """Yields the record of each line; a last line without a newline that doesn't parse is left out.

    Raises:
        TraceError: a line is no record of this version; the text names `origin` and the line, from 1.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            _check_identity(line, origin)
        try:
            yield _DECODER.decode(line)
        except _UNREADABLE as error:
            if not line.endswith(b"\n") and number > 1:
                return
            raise TraceError(f"{origin}:{number}: not a trace record: {error}") from error


def _check_identity(line: bytes, origin: str) -> None:
    try:
        identity = msgspec.json.decode(line, type=_Identity)
    except _UNREADABLE as error:
        raise TraceError(f"{origin}:1: not a graphlint trace: {error}") from error
    if identity.format != FORMAT_NAME:
        raise TraceError(f"{origin}:1: not a graphlint trace: no header naming {FORMAT_NAME!r}")
    if identity.version != FORMAT_VERSION:
        raise TraceError(
            f"{origin}:1: trace version {identity.version}; this graphlint reads version {FORMAT_VERSION}"
        )


def load(path: Path) -> Trace:
    """Returns the trace saved at `path`.

    Raises:
        TraceError: it can't be opened or isn't a trace that this version reads.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return Trace.from_records(
                decode(_whole_lines(stream, origin=str(path)), origin=str(path)), origin=str(path)
            )
    except gzip.BadGzipFile as error:
        raise TraceError(f"{path}: not a gzip file: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror or error}") from error


def _whole_lines(stream: Iterable[bytes], *, origin: str) -> Iterator[bytes]:
    """Yields lines until the compressed stream breaks off, as a killed run leaves it.

    Raises:
        TraceError: it breaks off before the first line.
    """
    lines = iter(stream)
    first = True
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except (EOFError, zlib.error) as error:
            if first:
                raise TraceError(f"{origin}: not a graphlint trace: {error}") from error
            return
        first = False
        yield line


def save(records: Iterable[Record], path: Path) -> None:
    """Writes records to `path`, gzip-compressed when it ends in `.gz`."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as stream:
        stream.writelines(encode(record) for record in records)
