"""Turns the examples of a rule into test cases; public, for whoever writes a rule.

    @pytest.mark.parametrize("case", cases(RULE), ids=str)
    def test_examples(case):
        case.check()

May import all of graphlint; torch comes in with the capture, when the first example runs. An example is run
under capture and judged by all rules, and what they flag must be exactly what its markers say: a rule that
also fires elsewhere, or twice, fails the test, and so does an example that proves nothing.
"""

import io
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from graphlint.capture.options import CaptureOptions
from graphlint.errors import RuleLoadError
from graphlint.lint.discovery import all_rules
from graphlint.lint.rule import Example, Report, Rule
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.header import Ending
from graphlint.record.trace import Trace
from graphlint.report.text import render

_ARROW = re.compile(r"#\s*<-(.*)$")
_CODES = re.compile(r"\s*GL\d{3}(?:\s+GL\d{3})*\s*")

Kind = Literal["bad", "good"]


class ExampleError(AssertionError):
    """An example was not judged as its markers say; the text holds both sides and the report."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """An example of a rule as a test case; `expected` are the (code, line) pairs to be flagged, sorted."""

    rule: Rule
    kind: Kind
    example: Example
    expected: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        words = re.findall(r"[a-z0-9]+", self.example.title.lower())
        return f"{self.rule.code}-{self.kind}-{'-'.join(words)}"

    def check(self, rules: Sequence[Rule] | None = None) -> None:
        """Runs the example and compares what all rules flag with the markers.

        Args:
            rules: the rules to judge by; None: all that graphlint ships.

        Raises:
            ExampleError: anything is flagged that isn't marked, or the reverse; the script did not end as
                the example says; a rule failed; or the example's own rule could not judge.
        """
        with tempfile.TemporaryDirectory(prefix="graphlint-example-") as folder:
            path = Path(folder) / "example.py"
            path.write_text(self.example.code, encoding="utf-8")
            trace, error = run_example(self.example, path)
        report = judge(trace, Selection(), rules)
        if problems := list(self._problems(report, path, error)):
            raise ExampleError(_failure(self, problems, report, trace, error))

    def _problems(self, report: Report, path: Path, error: Exception | None) -> Iterator[str]:
        yield from _ending_problems(self.example, error)
        found = sorted((finding.code, finding.line) for finding in report.findings)
        if found != list(self.expected):
            yield f"flagged {_spell(found)}; the markers say {_spell(self.expected)}"
        for finding in report.findings:
            if finding.path != str(path):
                yield f"{finding.code} points outside the example: {finding.path}"
        for outcome in report.outcomes:
            if outcome.outcome == "failed":
                yield f"{outcome.code} failed: {outcome.reason}"
            elif outcome.code == self.rule.code and outcome.outcome == "not-checked":
                yield f"{outcome.code} could not judge its own example: {outcome.reason}"


def cases(*rules: Rule) -> list[Case]:
    """Returns every example of the rules as a case (of all rules when none is given).

    Raises:
        RuleLoadError: an example's markers don't fit: none for its own rule in a bad one, any in a good one,
            a marker that can't be read, two examples alike.
    """
    return [case for rule in rules or all_rules() for case in _cases_of(rule)]


def check_example(code: str, example: Example) -> None:
    """Checks one example of the shipped rule with this code; see `Case.check`.

    Raises:
        ExampleError: it is not judged as its markers say.
        RuleLoadError: the rule has no such example, or its markers don't fit.
    """
    for case in cases():
        if case.rule.code == code and case.example == example:
            case.check()
            return
    raise RuleLoadError(f"{code} has no example {example.title!r}")


def run_example(example: Example, path: Path) -> tuple[Trace, Exception | None]:
    """Runs an example that stands in the file `path`; returns its record and the exception that ended it."""
    from graphlint.capture.session import Session

    code = compile(example.code, str(path), "exec", dont_inherit=True)
    options = CaptureOptions(level="auto", simulate=example.simulate, script=str(path))
    ending = _Ending()
    with Session(options) as session:
        with ending:
            exec(code, {"__name__": "__main__", "__file__": str(path)})  # noqa: S102 - that is its purpose
        if ending.error is not None:
            session.record_error(ending.error)
        session.close(ending.how, 0 if ending.error is None else 1)
    return session.trace(), ending.error


class _Ending:
    """Keeps the exception that ends an example, whichever it is; Ctrl-C passes through."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.how: Ending = "finished"

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trail: TracebackType | None
    ) -> bool:
        if isinstance(raised, Exception):
            self.error, self.how = raised, "error"
        return self.error is not None


def _cases_of(rule: Rule) -> Iterator[Case]:
    seen: set[str] = set()
    kinds: tuple[tuple[Kind, tuple[Example, ...]], ...] = (("bad", rule.bad), ("good", rule.good))
    for kind, examples in kinds:
        for example in examples:
            where = f"{rule.code}, {kind} example {example.title!r}"
            expected = _markers(example, where)
            if kind == "bad" and rule.code not in {code for code, _ in expected}:
                raise RuleLoadError(f"{where}: no line is marked with # <- {rule.code}")
            if kind == "good" and expected:
                raise RuleLoadError(f"{where}: a good example can't have a marker")
            case = Case(rule=rule, kind=kind, example=example, expected=expected)
            if example.code in seen or str(case) in seen:
                raise RuleLoadError(f"{where}: it is there twice")
            seen |= {example.code, str(case)}
            yield case


def _markers(example: Example, where: str) -> tuple[tuple[str, int], ...]:
    """Returns the (code, line) pairs that an example's markers ask for, sorted."""
    wanted: list[tuple[str, int]] = []
    for number, line in enumerate(example.code.split("\n"), start=1):
        arrow = _ARROW.search(line)
        if arrow is None:
            continue
        if not _CODES.fullmatch(arrow[1]):
            raise RuleLoadError(f"{where}: line {number}: a marker looks like # <- GL101 GL401")
        wanted += [(code, number) for code in arrow[1].split()]
    return tuple(sorted(wanted))


def _ending_problems(example: Example, error: Exception | None) -> Iterator[str]:
    if example.raises is None:
        if error is not None:
            yield f"it ended in {type(error).__name__}: {error}"
    elif error is None:
        yield f"it was to end in an error that says {example.raises!r}, and ended well"
    elif example.raises not in str(error):
        yield f"it was to end in an error that says {example.raises!r}, and ended in: {error}"


def _failure(
    case: Case, problems: Sequence[str], report: Report, trace: Trace, error: Exception | None
) -> str:
    """Returns the whole story of a failed case, the example with its line numbers included."""
    shown = io.StringIO()
    render(report, trace, shown)
    numbered = (f"{n:4} {line}" for n, line in enumerate(case.example.code.split("\n"), start=1))
    raised = "".join(traceback.format_exception(error)) if error is not None else ""
    parts = (str(case), *(f"- {problem}" for problem in problems), *numbered, shown.getvalue(), raised)
    return "\n".join(parts)


def _spell(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{code} in line {line}" for code, line in pairs) or "nothing"
