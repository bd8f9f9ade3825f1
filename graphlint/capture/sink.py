"""Where the rows of a record go: memory always, a file as well when one was asked for.

May import `record`. The file is written at each step boundary, so that a killed run still leaves a
readable trace. A forked child drops what it inherited without writing it.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path

from graphlint.errors import UsageError
from graphlint.record.codec import encode
from graphlint.record.trace import Record


class Sink:
    """Keeps every row, and appends each to the trace file when there is one.

    `failure` says why writing stopped, when the disk refused.

    Args:
        path: the trace file, or None.

    Raises:
        UsageError: the file can't be written; known before the script runs.
    """

    def __init__(self, path: Path | None) -> None:
        self.records: list[Record] = []
        self.failure: str | None = None
        self._written = 0
        self._file: int | None = None
        self._compressor: zlib._Compress | None = None
        self._owner = os.getpid()
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            except OSError as error:
                raise UsageError(f"can't write the trace {path}: {error.strerror}") from error
            if path.suffix == ".gz":
                self._compressor = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def add(self, record: Record) -> None:
        """Takes one row."""
        self.records.append(record)

    def flush(self) -> None:
        """Writes the rows that came since the last flush; a process that didn't open the file writes none."""
        if self._file is None or os.getpid() != self._owner:
            return
        data = b"".join(encode(record) for record in self.records[self._written :])
        self._written = len(self.records)
        if self._compressor is not None:
            data = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write(data)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        if self._file is None or os.getpid() != self._owner:
            return
        self.flush()
        if self._compressor is not None:
            self._write(self._compressor.flush())
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and self._file is not None:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self.failure = f"the trace file stops early: {error.strerror}"
            refused, self._file = self._file, None
            if refused is not None:
                with suppress(OSError):
                    os.close(refused)
