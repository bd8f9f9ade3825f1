"""What a capture is asked to do; imports `record` only: the command line builds it without torch."""

from pathlib import Path

import msgspec

from graphlint.record.header import Level

FULL_STEPS = 3
"""Training steps that the automatic level records in full before it turns to watching."""


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one capture.

    `steps` ends the run after so many training steps (None: to its end). `simulate` names simulated
    devices. `trace` is a file that the record is also written to while the run goes on. `script` and `argv`
    are what is run, for the header; both empty for the decorator.
    """

    level: Level = "auto"
    steps: int | None = None
    simulate: tuple[str, ...] = ()
    trace: Path | None = None
    script: str = ""
    argv: tuple[str, ...] = ()
