"""Folds sightings into findings: one cause, one finding, with a count; may import `record` and `lint`.

What makes two sightings the same fault is the rule's `cause`, or else the lines it labels. The fingerprint is
that same key with each line number replaced by the statement there and each path by the file's name, so that
it survives edits elsewhere, renamed directories, and another working directory.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import msgspec

from graphlint.lint.finding import SEVERITIES, Finding, Label, Occurrence, Severity
from graphlint.lint.places import Places
from graphlint.lint.rule import Rule

_FINGERPRINT_DIGITS = 32


def fold(rule: Rule, occurrences: Sequence[Occurrence], places: Places) -> list[Finding]:
    """Returns one finding per cause, in the order in which the causes were first seen.

    Words and labels are those of the first sighting among the most severe of its cause.
    """
    groups: dict[tuple[str | int, ...], list[Occurrence]] = {}
    for occurrence in occurrences:
        groups.setdefault(_key(occurrence), []).append(occurrence)
    identical: Counter[str] = Counter()
    findings = []
    for group in groups.values():
        finding = _finding(rule, group, places)
        identical[finding.fingerprint] += 1
        ordinal = identical[finding.fingerprint]
        if ordinal > 1:
            fingerprint = _digest([finding.fingerprint, str(ordinal)])
            finding = msgspec.structs.replace(finding, fingerprint=fingerprint)
        findings.append(finding)
    return findings


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns the findings, the most severe first, then by place and code."""
    return tuple(
        sorted(
            findings, key=lambda found: (SEVERITIES.index(found.severity), found.path, found.line, found.code)
        )
    )


def _key(occurrence: Occurrence) -> tuple[str | int, ...]:
    if occurrence.cause:
        return ("cause", *occurrence.cause)
    return tuple(part for label in occurrence.labels for part in (label.path, label.line))


def _severity(rule: Rule, occurrence: Occurrence) -> Severity:
    return occurrence.severity or rule.severity


def _finding(rule: Rule, group: Sequence[Occurrence], places: Places) -> Finding:
    first = min(group, key=lambda seen: SEVERITIES.index(_severity(rule, seen)))
    labels = tuple(dict.fromkeys(first.labels))
    steps = [
        step
        for seen in group
        if seen.step is not None
        for step in (seen.step, seen.step if seen.last_step is None else seen.last_step)
    ]
    return Finding(
        code=rule.code,
        rule=rule.name,
        severity=_severity(rule, first),
        message=first.message,
        path=labels[0].path,
        line=labels[0].line,
        labels=labels,
        fix=first.fix,
        count=sum(map(_sightings, group)),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        fingerprint=_fingerprint(rule, first, labels, places),
    )


def _sightings(occurrence: Occurrence) -> int:
    if occurrence.step is None or occurrence.last_step is None:
        return 1
    return occurrence.last_step - occurrence.step + 1


def _fingerprint(rule: Rule, occurrence: Occurrence, labels: Sequence[Label], places: Places) -> str:
    parts = [rule.code]
    for label in labels[:1] if occurrence.cause else labels:
        place = places.place(label.path, label.line)
        parts += [place.file, place.function, place.statement]
    parts += [_lasting(part) for part in occurrence.cause if isinstance(part, str)]
    return _digest(parts)


def _lasting(part: str) -> str:
    """Returns a part of a cause without the directories of a path."""
    return PurePath(part).name if PurePath(part).is_absolute() else part


def _digest(parts: Sequence[str]) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:_FINGERPRINT_DIGITS]
