"""The losses of each step as JSON Lines; may import `errors` and msgspec."""

import math
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from graphlint.errors import UsageError

FILE = "metrics.jsonl"


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file: a step, counted from 1, and its epoch, counted from 0.

    JSON knows no NaN and no infinity: such a loss is written as null.
    """

    step: int
    epoch: int
    discriminator_loss: float
    generator_loss: float

    def problem(self) -> str | None:
        """Returns a sentence about a loss that is NaN or infinite; None where both are numbers."""
        for network, loss in (
            ("discriminator", self.discriminator_loss),
            ("generator", self.generator_loss),
        ):
            if not math.isfinite(loss):
                return f"the {network}'s loss became {loss} in step {self.step}, epoch {self.epoch}"
        return None


class _Line(msgspec.Struct, frozen=True):
    """What a line says of its place."""

    step: int


class MetricsFile:
    """A file of `StepMetrics`, one a line, in the order of the steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Iterable[StepMetrics]) -> None:
        """Adds the rows; they are on the disk when this returns.

        Raises:
            UsageError: the file can't be written.
        """
        self._write("ab", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def keep_until(self, step: int) -> None:
        """Drops what was written after a step, by a run that was killed before its next checkpoint.

        Raises:
            UsageError: the file can't be read or written.
        """
        try:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        except OSError as error:
            raise UsageError(f"can't read {self.path}: {error.strerror or error}") from error
        kept = [line for line in lines if _is_until(line, step)]
        if kept != lines:
            self._write("wb", b"".join(kept))

    def _write(self, mode: str, data: bytes) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"can't write {self.path}: {error.strerror or error}") from error


def _is_until(line: bytes, step: int) -> bool:
    """Whether the line is whole and of no later step."""
    try:
        return line.endswith(b"\n") and msgspec.json.decode(line, type=_Line).step <= step
    except msgspec.DecodeError:
        return False
