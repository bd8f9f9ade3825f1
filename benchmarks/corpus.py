"""Judges a corpus of scripts through the command line, as a new user would, and prints a table by rule.

    python benchmarks/corpus.py [DIRECTORY] [--jobs N] [--only TEXT] [--markdown FILE]

Each folder of the corpus (fixtures/corpus unless another is named) holds `train.py`, mostly `fixed.py`, and a
`case.toml` with the right diagnosis. A faulty script must get its rule, once, with labels on the lines of the
cause, and nothing from rules that its case doesn't name; a corrected or clean one must get nothing at the
levels warning and error. Ends with 1 when any of it is not so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "fixtures" / "corpus"
BAR_FIRST_LINES = 0.95


@dataclass(frozen=True)
class Case:
    """A folder of the corpus: `rule` is empty for a clean script."""

    folder: Path
    rule: str
    also: frozenset[str]
    cause_lines: tuple[int, ...]
    simulate: bool

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class Judged:
    """What one script got: `said` are the findings, `trouble` what kept the tool from judging."""

    script: str
    said: tuple[dict[str, object], ...] = ()
    trouble: str = ""

    @property
    def alarms(self) -> list[str]:
        return [
            f"{finding['code']} {finding['rule']}, line {finding['line']}: {finding['message']}"
            for finding in self.said
            if finding["severity"] != "info"
        ]


@dataclass
class Row:
    """A line of the table."""

    faulty: int = 0
    found: int = 0
    first_lines: int = 0
    lines: int = 0
    lines_labelled: int = 0
    outside: int = 0
    repeated: int = 0
    correct: int = 0
    alarms: int = 0
    unjudged: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: "Row") -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def read_case(folder: Path) -> Case:
    case = tomllib.loads((folder / "case.toml").read_text("utf-8"))
    return Case(
        folder=folder,
        rule=case["rule"],
        also=frozenset(case.get("also", ())),
        cause_lines=tuple(case.get("cause_lines", ())),
        simulate=case["needs_device"],
    )


def audit(case: Case, script: str) -> Judged:
    """Runs `graphlint run` on one script of the case, in its folder."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "graphlint", "run", "--format", "json", "--output", str(output)]
        command += ["--simulate", "cuda"] if case.simulate else []
        result = subprocess.run(
            [*command, script],
            cwd=case.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if not output.exists():
            return Judged(script, trouble=result.stderr.strip()[-400:])
        report = json.loads(output.read_text("utf-8"))
    failed = [
        f"{rule['code']} {rule['outcome']}: {rule.get('reason')}"
        for rule in report["rules"]
        if rule["outcome"] == "failed"
    ]
    crashed_early = bool(report["run"].get("error")) and not report["run"]["steps"]
    unchecked = [rule["code"] for rule in report["rules"] if rule["outcome"] == "not-checked"]
    if unchecked and not crashed_early:
        failed.append(f"not checked: {', '.join(unchecked)}")
    return Judged(script, tuple(report["findings"]), "; ".join(failed))


def judge_faulty(case: Case, judged: Judged) -> Row:
    row = Row(faulty=1, lines=len(case.cause_lines))
    right = [finding for finding in judged.said if finding["rule"] == case.rule]
    labelled = {label["line"] for finding in right for label in finding["labels"]}
    row.found = bool(right)
    row.first_lines = case.cause_lines[0] in labelled
    row.lines_labelled = len(labelled & set(case.cause_lines))
    row.repeated = max(0, len(right) - 1)
    outside = [
        finding for finding in judged.said if finding["rule"] not in {case.rule, *case.also}
    ]  # hints count here too
    row.outside = len(outside)
    if not right:
        row.complaints.append(f"{case.name}: {case.rule} not found")
    elif missing := [line for line in case.cause_lines if line not in labelled]:
        row.complaints.append(f"{case.name}: no label on lines {missing} (labelled: {sorted(labelled)})")
    if row.repeated:
        row.complaints.append(f"{case.name}: {case.rule} reported {len(right)} times")
    row.complaints += [
        f"{case.name}: {finding['code']} {finding['rule']} ({finding['severity']}), line {finding['line']}: "
        f"{finding['message']}"
        for finding in outside
    ]
    return row


def judge_correct(case: Case, judged: Judged) -> Row:
    complaints = [f"{case.name}/{judged.script}: {alarm}" for alarm in judged.alarms]
    return Row(correct=1, alarms=len(complaints), complaints=complaints)


def judge_case(case: Case) -> Row:
    row = Row()
    scripts = [script for script in ("train.py", "fixed.py") if (case.folder / script).exists()]
    for script in scripts:
        judged = audit(case, script)
        faulty = script == "train.py" and case.rule
        row.add(judge_faulty(case, judged) if faulty else judge_correct(case, judged))
        if judged.trouble:
            row.unjudged += 1
            row.complaints.append(f"{case.name}/{script}: {judged.trouble}")
    return row


def table(rows: dict[str, Row]) -> str:
    """Returns the table as Markdown, which reads well in a terminal too."""
    total = Row()
    for row in rows.values():
        total.add(row)
    head = (
        "rule",
        "faulty",
        "found",
        "first cause line",
        "all cause lines",
        "other rules",
        "repeated",
        "correct",
        "alarms",
    )
    lines = [
        (
            name or "(clean scripts)",
            str(row.faulty),
            str(row.found),
            str(row.first_lines),
            f"{row.lines_labelled}/{row.lines}",
            str(row.outside),
            str(row.repeated),
            str(row.correct),
            str(row.alarms),
        )
        for name, row in [*sorted(rows.items(), key=lambda item: item[0] or "~"), ("all", total)]
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    ruled = (head, tuple("-" * width for width in widths), *lines)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in ruled
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=CORPUS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scripts that run at a time")
    parser.add_argument("--only", default="", help="cases with this text in their name or rule")
    parser.add_argument("--markdown", type=Path, help="write the table into this file too")
    options = parser.parse_args()
    cases = [read_case(path.parent) for path in sorted(options.directory.glob("*/case.toml"))]
    cases = [case for case in cases if options.only in case.name or options.only in case.rule]
    if not cases:
        parser.error(f"no cases in {options.directory}")
    rows: dict[str, Row] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for case, row in zip(cases, pool.map(judge_case, cases), strict=True):
            rows.setdefault(case.rule, Row()).add(row)
    shown = table(rows)
    print(shown)
    total = Row()
    for row in rows.values():
        total.add(row)
    print()
    print(*total.complaints, sep="\n")
    if options.markdown:
        options.markdown.write_text(shown + "\n", "utf-8")
    lines_reached = total.first_lines >= BAR_FIRST_LINES * total.faulty
    wrong = total.found < total.faulty or total.outside or total.repeated or total.alarms or total.unjudged
    return 1 if wrong or not lines_reached else 0


if __name__ == "__main__":
    sys.exit(main())
