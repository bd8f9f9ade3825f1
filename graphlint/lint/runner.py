"""Judges a trace: runs the selected rules and says of every rule how it ended.

May import `analysis`, `record` and the rest of `lint`. A rule ends as exactly one of findings, clean, not
checked and failed; an unselected rule is not checked, so that no reader takes it for clean.
"""

import traceback
from collections.abc import Iterator, Sequence

from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted
from graphlint.lint.declared import Declared
from graphlint.lint.discovery import all_rules
from graphlint.lint.finding import Finding, Occurrence
from graphlint.lint.folding import in_order
from graphlint.lint.needs import CUT_SHORT, NO_STEP, lacking, trained
from graphlint.lint.places import Places
from graphlint.lint.rule import Report, Rule, RuleOutcome
from graphlint.lint.selection import Selection
from graphlint.lint.suppressed import Suppressed, in_place
from graphlint.record.trace import Trace

NOT_SELECTED = "not selected"
NONE_OTHER = "no other rule could judge"


def judge(trace: Trace, selection: Selection, rules: Sequence[Rule] | None = None) -> Report:
    """Returns what the selected rules find in a trace, and the outcome of every rule.

    Args:
        trace: the record to judge.
        selection: which of the rules to run.
        rules: the rules that there are; None: all that graphlint ships.

    Raises:
        UsageError: the selection names an unknown rule, or leaves none.
        RuleLoadError: a shipped rule doesn't load.
    """
    known = all_rules() if rules is None else tuple(rules)
    chosen = selection.codes(known)
    judgement = _Judgement(trace, known)
    for rule in sorted(known, key=lambda rule: rule.review is not None):  # reviews come last
        if rule.code in chosen:
            judgement.run(rule)
        else:
            judgement.not_checked(rule, NOT_SELECTED)
    return judgement.report()


class _Judgement:
    """Collects findings and outcomes while the rules run over one trace, with the facts derived once."""

    def __init__(self, trace: Trace, rules: Sequence[Rule]) -> None:
        self._trace = trace
        self._order = [rule.code for rule in rules]
        self._facts = Facts(trace)
        self._declared = Declared(self._facts, Places(trace, self._facts.sources), rules)
        self._silence_reason = self._why_silence_proves_nothing()
        self._findings: list[Finding] = []
        self._suppressed: list[Suppressed] = []
        self._outcomes: list[RuleOutcome] = []
        self._tracebacks: dict[str, str] = {}

    def run(self, rule: Rule) -> None:
        """Runs one rule and notes how it ended."""
        if reason := lacking(rule.needs, self._trace):
            self.not_checked(rule, reason)
            return
        try:
            # The generator is consumed and folded in here, so that no part of a rule runs outside the guard.
            found, suppressed = self._declared.sort(rule, list(self._sightings(rule)))
        except Exception as error:  # noqa: BLE001 - the fault of one rule must not hide what the others find
            self._tracebacks[rule.code] = traceback.format_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._outcomes.append(RuleOutcome(code=rule.code, outcome="failed", reason=reason))
            return
        self._findings += found
        self._suppressed += suppressed
        if found or suppressed:
            self._outcomes.append(RuleOutcome(code=rule.code, outcome="findings"))
        elif self._silence_reason is not None:
            self.not_checked(rule, self._silence_reason)
        elif rule.review is not None and not any(self._checked().values()):
            self.not_checked(rule, NONE_OTHER)
        else:
            self._outcomes.append(RuleOutcome(code=rule.code, outcome="clean"))

    def _sightings(self, rule: Rule) -> Iterator[Occurrence]:
        if rule.check is not None:
            yield from rule.check(self._facts)
        if rule.review is not None:
            yield from rule.review(self._facts, self._declared.idle(self._checked(), by=rule.code))

    def _checked(self) -> dict[str, bool]:
        """Returns, by code, whether the rules so far could judge."""
        return {outcome.code: outcome.outcome in {"findings", "clean"} for outcome in self._outcomes}

    def not_checked(self, rule: Rule, reason: str) -> None:
        """Notes that a rule could not judge, and why."""
        self._outcomes.append(RuleOutcome(code=rule.code, outcome="not-checked", reason=reason))

    def report(self) -> Report:
        """Returns everything noted so far."""
        return Report(
            findings=in_order(self._findings),
            outcomes=tuple(sorted(self._outcomes, key=lambda outcome: self._order.index(outcome.code))),
            tracebacks=self._tracebacks,
            suppressed=in_place(self._suppressed),
        )

    def _why_silence_proves_nothing(self) -> str | None:
        """A fault seen is a fact even in half a record, but its absence is not: then no rule is clean."""
        if not trained(self._trace):
            return NO_STEP
        if self._trace.complete:
            return None
        return f"found nothing in {counted(self._facts.steps.count, 'step')}, but {CUT_SHORT}"
