"""What every report in words says of the findings that were put aside; may import `lint`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from graphlint.lint.rule import Report
from graphlint.lint.suppressed import BaselineUse, Means

_MEANS: Mapping[Means, str] = MappingProxyType(
    {
        "comment": "by comment",
        "expect": "by graphlint.expect",
        "per-file-ignores": "by per-file-ignores",
        "baseline": "by the baseline",
    }
)
_LISTED = 5


def put_aside(report: Report) -> Iterator[tuple[str, str]]:
    """Yields rows of a summary: how many findings were suppressed by what, and a baseline's idle entries."""
    for means, words in _MEANS.items():
        found = [one.finding.code for one in report.suppressed if one.by == means]
        if found:
            yield "suppressed", f"{len(found)} {words}: {codes(found)}"
    if report.baseline is not None and report.baseline.gone:
        yield "baseline", gone(report.baseline)


def codes(found: Sequence[str]) -> str:
    """Returns "GL101, GL301 (3)": each code once, with how often it is there."""
    counts = sorted(Counter(found).items())
    return ", ".join(code if number == 1 else f"{code} ({number})" for code, number in counts)


def gone(baseline: BaselineUse) -> str:
    """Returns which entries of a baseline are no longer found."""
    shown = [f"{entry.code} in {entry.path}" for entry in baseline.gone[:_LISTED]]
    if len(baseline.gone) > _LISTED:
        shown.append(f"{len(baseline.gone) - _LISTED} more")
    return (
        f"{len(baseline.gone)} of {baseline.entries} entries in {baseline.path} no longer found: "
        f"{', '.join(shown)}"
    )
