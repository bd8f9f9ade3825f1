"""What a rule yields, and what a report holds; may import `record` only.

A rule yields one `Occurrence` for each time that it sees a fault. The runner folds occurrences of one cause
into one `Finding` with a count.
"""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]
"""error: it crashes or trains the wrong thing; warning: it wastes much or is hardly meant; info: a hint."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From the most severe to the least."""


class Label(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source line that matters, and why. `line` is 1-based; `path` is as the record has it (absolute)."""

    path: str
    line: int
    text: str


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One sighting of a fault.

    Attributes:
        message: a sentence of fact with the user's own names, then one of consequence where a label
            doesn't say it. Ends with a full stop.
        labels: the primary first: the line to look at. Then every other line that a person needs.
        fix: what to do in this script, worked out from the record. No leading "Fix:".
        step: 0-based training step; None before the first or outside every step.
        last_step: last step of a run of repeated steps that `step` stands for; None: just `step`.
        cause: what makes two occurrences the same fault; the labels' lines when empty. Names and line
            numbers only, never serials.
        severity: when it differs from the rule's own.
    """

    message: str
    labels: tuple[Label, ...]
    fix: str
    step: int | None = None
    last_step: int | None = None
    cause: tuple[str | int, ...] = ()
    severity: Severity | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault, once, however often it was seen.

    `path` and `line` are the primary label's. `count` is the number of sightings, which lie between the steps
    `first_step` and `last_step`. `fingerprint` stays the same when lines are inserted elsewhere.
    """

    code: str
    rule: str
    severity: Severity
    message: str
    path: str
    line: int
    labels: tuple[Label, ...]
    fix: str
    count: int
    first_step: int | None
    last_step: int | None
    fingerprint: str
