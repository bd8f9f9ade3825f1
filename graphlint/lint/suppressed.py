"""What a report says of findings that somebody declared as meant; may import `record` and `lint.finding`.

A suppressed finding is put aside, never dropped: it is counted and listed, with who put it there and why.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from graphlint.lint.finding import Finding

Means = Literal["comment", "expect", "per-file-ignores", "baseline"]
"""How a finding was suppressed: a comment on its line, `graphlint.expect`, the config file, a baseline."""


Why = Literal["unused", "repeated", "beside", "unknown", "unreadable"]
"""Why a declaration is of no use."""


class Suppressed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding that somebody declared as meant.

    `reason` is the one given, or empty. `path` and `line` are where it was declared: the comment, or the
    `with`; null for the config file and a baseline.
    """

    finding: Finding
    by: Means
    reason: str = ""
    path: str | None = None
    line: int | None = None


def in_place(suppressed: Iterable[Suppressed]) -> tuple[Suppressed, ...]:
    """Returns them by path, line and code of what they suppress."""
    return tuple(sorted(suppressed, key=lambda one: (one.finding.path, one.finding.line, one.finding.code)))


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration that suppressed nothing, or the part of one that did not.

    Attributes:
        by: a comment or a `graphlint.expect`.
        path: its file.
        line: its line, 1-based.
        entries: the idle entries as they were written; empty for a comment that can't be read.
        whole: whether nothing else in the declaration was of use.
        why: `unused`: the rules named were checked and found nothing there; `repeated`: an earlier
            declaration of the same statement does it; `beside`: they are reported at another line, which its
            line only adds to; `unknown`: the entries name no rule; `unreadable`.
        detail: what is wrong with an unreadable one; the line that says the same for a repeated one; the
            place that is reported for one beside it; the rules that there are for an unknown one.
        ended: whether the run came to its end, so that nothing more could have been found.
    """

    by: Literal["comment", "expect"]
    path: str
    line: int
    entries: tuple[str, ...] = ()
    whole: bool = True
    why: Why
    detail: str = ""
    ended: bool = True


class BaselineEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding as a baseline file holds it.

    `fingerprint` and `path` identify it; the path is relative to the file's directory where it lies below it.
    The rest is for people who read the file.
    """

    fingerprint: str
    code: str
    path: str
    message: str = ""


class BaselineUse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a baseline's entries in a run.

    `matched` were found again. `gone` are those whose rule was checked and whose file was run, in a run that
    came to its end, and that were not found.
    """

    path: str
    entries: int
    matched: int
    gone: tuple[BaselineEntry, ...]
