"""What a rule is, and how it says how its run ended; may import `analysis`, `record` and `lint.finding`."""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from graphlint.analysis.facts import Facts
from graphlint.lint.finding import Finding, Occurrence, Severity
from graphlint.lint.suppressed import BaselineUse, Idle, Suppressed
from graphlint.record.header import Capability

Check = Callable[[Facts], Iterator[Occurrence]]
Review = Callable[[Facts, tuple[Idle, ...]], Iterator[Occurrence]]


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A small runnable training script that shows a rule, or a look-alike that must stay silent.

    `code` is complete Python that uses torch; each line that must be flagged ends in `# <- GLnnn` (several
    codes separated by blanks). A line without a marker must not be flagged, by any rule. `simulate` names
    simulated devices. `raises` is part of torch's message where the script ends in an error.
    """

    title: str
    code: str
    simulate: tuple[str, ...] = ()
    raises: str | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as its file declares it in `RULE`.

    `needs` are the kinds of fact without which it can't judge: when one was not captured, the rule ends
    as not-checked. `since` is the graphlint version that brought it. `good` examples must stay silent.
    A rule has either a `check`, which judges the run, or a `review`, which is called when all others have
    judged, and judges what the user declared as meant.
    """

    code: str
    name: str
    severity: Severity
    since: str
    needs: tuple[Capability, ...]
    check: Check | None = None
    review: Review | None = None
    bad: tuple[Example, ...]
    good: tuple[Example, ...]


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a rule's run ended; `reason` says why it was not checked or how it failed.

    A rule whose findings were all suppressed ends as `findings`: only `clean` means that it found nothing.
    """

    code: str
    outcome: Literal["findings", "clean", "not-checked", "failed"]
    reason: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of a run, errors first then by place, and what became of every selected rule.

    `tracebacks` holds the traceback of each rule that failed, by code. `suppressed` are the findings that
    somebody declared as meant: they are in no other count. `baseline` says what became of a baseline's
    entries, where there was one.
    """

    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    tracebacks: dict[str, str]
    suppressed: tuple[Suppressed, ...] = ()
    baseline: BaselineUse | None = None
