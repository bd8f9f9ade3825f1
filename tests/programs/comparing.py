"""Runs a program under capture, judges it by all rules, and compares the findings with the model's faults."""

from pathlib import Path

from programs.faults import Faults, Told
from programs.language import Backward, Program, Step

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.testing import run_example


def told(program: Program, path: Path) -> tuple[Told, ...]:
    """Returns what graphlint says of a program, which is written to `path`."""
    path.write_text(program.source, "utf-8")
    trace, _ = run_example(Example(title="program", code=program.source), path)
    report = judge(trace, Selection())
    trains = any(isinstance(statement, Backward | Step) for statement in program.body)
    unwanted = {"failed", "not-checked"} if trains else {"failed"}
    assert not [outcome for outcome in report.outcomes if outcome.outcome in unwanted]
    return tuple(
        Told(finding.code, finding.line, frozenset(label.line for label in finding.labels))
        for finding in report.findings
        if finding.severity != "info"
    )


def disagreements(program: Program, findings: tuple[Told, ...]) -> list[str]:
    """Says in words where the findings and the model's account differ; empty where they agree."""
    faults = Faults(program)
    said = [f"{found} is not justified" for found in findings if not faults.justified(found)]
    said += [
        f"not told: line {owed.line} {owed.why} {sorted(owed.codes)}"
        for owed in faults.owed()
        if not any(owed.told_by(found) for found in findings)
    ]
    return said
