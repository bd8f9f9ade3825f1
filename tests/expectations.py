"""What a script must give, as the file beside it says, and the comparison with a report; both ways.

The file says which devices are simulated, how the script ends, part of torch's message, and the findings:
code, primary line and all labelled lines. A script without such a file must end well and give nothing.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec


class ExpectedFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finding as the expectation names it; `labels` are the labelled lines, sorted."""

    code: str
    line: int
    labels: tuple[int, ...]


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fixture must give, and nothing else."""

    simulate: tuple[str, ...] = ()
    ends: str = "finished"
    error: str = ""
    finding: tuple[ExpectedFinding, ...] = ()


def read_expectation(path: Path) -> Expectation:
    """Returns what the file holds; without a file, that nothing is expected."""
    if not path.exists():
        return Expectation()
    return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Expectation)


def differences(expected: Expectation, report: dict[str, Any]) -> list[str]:
    """Says in words what a report has too much, lacks, or has otherwise; empty when it is as expected."""
    wanted = {(finding.code, finding.line): finding for finding in expected.finding}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    said = []
    for finding in report["findings"]:
        key = (finding["code"], finding["line"])
        if key in found:
            said.append(f"{key} is reported twice")
        found[key] = finding
    said += [f"{key} is missing" for key in wanted.keys() - found.keys()]
    said += [
        f"{key} is not expected: {found[key]['message']}" for key in sorted(found.keys() - wanted.keys())
    ]
    for key in wanted.keys() & found.keys():
        lines = tuple(sorted({label["line"] for label in found[key]["labels"]}))
        if lines != tuple(sorted(wanted[key].labels)):
            said.append(f"{key} labels lines {lines}, expected {wanted[key].labels}")
    said += _differences_of_ending(expected, report["run"])
    said += [
        f"{rule['code']} ended as {rule['outcome']}: {rule.get('reason')}"
        for rule in report["rules"]
        if rule["outcome"] not in {"clean", "findings"}
    ]
    return said


def _differences_of_ending(expected: Expectation, run: dict[str, Any]) -> list[str]:
    said = []
    if run["ended"] != expected.ends:
        said.append(f"the run ended as {run['ended']}, expected {expected.ends}")
    message = (run.get("error") or {}).get("message", "")
    if expected.error not in message or bool(expected.error) != bool(message):
        said.append(f"the error is {message!r}, expected {expected.error!r}")
    return said
