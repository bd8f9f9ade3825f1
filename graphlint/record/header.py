"""The first and the last line of a record: what was captured, and what was not.

May import `record.tables` only.
"""

from typing import Literal, get_args

import msgspec

from graphlint.record.tables import Row

FORMAT_NAME = "graphlint-trace"
FORMAT_VERSION = 1

Level = Literal["auto", "full", "watch"]

Capability = Literal[
    "operations",
    "modules",
    "backward",
    "optimizer",
    "zero-grad",
    "batches",
    "cleanup",
    "custom-functions",
    "clipping",
    "schedulers",
    "scalers",
    "modes",
    "gradient-values",
    "live-graphs",
    "expectations",
]
"""A kind of fact that a tap delivers; a rule names those it needs."""

CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
"""All of them."""

Ending = Literal["finished", "steps", "error", "exit", "interrupt", "terminated"]
"""How a run ended: by itself, after `--steps`, by an exception, by `sys.exit`, by Ctrl-C, by SIGTERM."""


class Header(Row, frozen=True, kw_only=True, omit_defaults=False, tag="header"):
    """The first line of a trace.

    `script` is what was run (a path, or `-m` and a module name), `argv` its arguments; both are empty for
    the decorator. `directory` is the working directory. `simulated` lists simulated devices. `real_devices`
    lists accelerators that torch reported. `steps_wanted` is `--steps`.
    """

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    graphlint: str
    torch: str
    python: str
    script: str = ""
    argv: tuple[str, ...] = ()
    directory: str = ""
    level: Level = "auto"
    simulated: tuple[str, ...] = ()
    real_devices: tuple[str, ...] = ()
    steps_wanted: int | None = None


class TapReport(msgspec.Struct, frozen=True):
    """What became of one tap: whether it was `armed` at some time, and the `fault` that disarmed it."""

    capability: Capability
    armed: bool
    fault: str | None = None


class End(Row, frozen=True, kw_only=True, tag="end"):
    """The last line of a complete trace.

    `steps` counts training steps (see `analysis.steps`), `full_steps` those at the full level. `unseen`
    says in words what was not recorded: other threads, compiled regions, limits that were hit.
    """

    how: Ending
    exit_code: int | None = None
    steps: int = 0
    full_steps: int = 0
    taps: tuple[TapReport, ...] = ()
    unseen: tuple[str, ...] = ()
