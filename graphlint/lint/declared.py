"""What the user declared as meant, in comments and in code: sorts findings by it, and says what was idle.

May import `analysis`, `record` and the rest of `lint`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from graphlint.analysis.executed import Executed
from graphlint.analysis.facts import Facts
from graphlint.lint.blocks import Block, Blocks
from graphlint.lint.comments import Comment, comments
from graphlint.lint.finding import Finding, Occurrence
from graphlint.lint.folding import fold
from graphlint.lint.needs import FULL_ONLY
from graphlint.lint.places import Places
from graphlint.lint.rule import Rule
from graphlint.lint.selection import entry_names, matching
from graphlint.lint.suppressed import Idle, Suppressed, Why


class Declared:
    """The declarations of one trace, and which of them were of use.

    Args:
        facts: what was recorded.
        places: words for its lines.
        rules: the rules that there are.
    """

    def __init__(self, facts: Facts, places: Places, rules: Sequence[Rule]) -> None:
        self._facts = facts
        self._places = places
        self._rules = tuple(rules)
        self._comments = comments(facts.trace.sources)
        self._blocks = Blocks(facts)
        self._used: set[tuple[int, int]] = set()  # the number of a comment, and of an entry in it
        self._repeats: dict[tuple[int, int], int] = {}
        self._beside: dict[tuple[int, int], str] = {}
        self._met: set[tuple[str, int, str]] = set()

    def sort(self, rule: Rule, occurrences: Sequence[Occurrence]) -> tuple[list[Finding], list[Suppressed]]:
        """Returns the findings of a rule, and those of them that were declared as meant."""
        blocks = [block for block in self._blocks.all if self._names(block.rules, rule)]
        plain: list[Occurrence] = []
        meant: dict[tuple[str, int, str], list[Occurrence]] = {}
        for occurrence in occurrences:
            holders = self._blocks.around(occurrence, blocks) if blocks else ()
            if not holders:
                plain.append(occurrence)
                continue
            first = holders[0]
            meant.setdefault((first.path, first.line, first.reason), []).append(occurrence)
            for block in holders:
                self._met |= {(block.path, block.line, entry) for entry in self._naming(block.rules, rule)}
        suppressed = []
        for (path, line, reason), group in meant.items():
            for finding in fold(rule, group, self._places):
                self._commented(finding)  # a comment beside it is of use as well
                suppressed.append(
                    Suppressed(finding=finding, by="expect", reason=reason, path=path, line=line)
                )
        findings = []
        for finding in fold(rule, plain, self._places):
            comment = self._commented(finding)
            if comment is None:
                findings.append(finding)
                self._note_beside(finding)
            else:
                suppressed.append(_by_comment(finding, comment))
        return findings, suppressed

    def _names(self, entries: Sequence[str], rule: Rule) -> bool:
        return bool(self._naming(entries, rule))

    def _naming(self, entries: Sequence[str], rule: Rule) -> list[str]:
        return [entry for entry in entries if matching(entry, [rule])]

    def _commented(self, finding: Finding) -> Comment | None:
        """Returns the first comment that suppresses a finding, and notes what each of them was good for."""
        first: Comment | None = None
        for number, comment in enumerate(self._comments):
            if not comment.covers(finding.path, finding.line):
                continue
            for place, entry in enumerate(comment.entries):
                if not entry_names(entry, finding):
                    continue
                if first is None:
                    first = comment
                    self._used.add((number, place))
                elif (number, place) not in self._used:
                    self._repeats[number, place] = first.line
        return first

    def _note_beside(self, finding: Finding) -> None:
        """Notes the comments that name a finding's rule at a line which it labels beside its own."""
        for number, comment in enumerate(self._comments):
            if any(comment.covers(label.path, label.line) for label in finding.labels[1:]):
                same = comment.path == finding.path
                where = (
                    f"line {finding.line}" if same else f"{self._places.shown(finding.path)}:{finding.line}"
                )
                for place, entry in enumerate(comment.entries):
                    if entry_names(entry, finding):
                        self._beside[number, place] = where

    # --- what was idle -----------------------------------------------------------------------------------

    def idle(self, checked: Mapping[str, bool], *, by: str) -> tuple[Idle, ...]:
        """Returns the declarations that suppressed nothing, as far as that is proved.

        Args:
            checked: by code, whether a rule was checked.
            by: the code of the rule that asks: an entry that names it is never idle, so that a comment which
                is of use elsewhere only can say so.
        """
        return (*self._idle_comments(checked, by), *self._idle_blocks(checked, by))

    def _idle_comments(self, checked: Mapping[str, bool], by: str) -> Iterator[Idle]:
        for number, comment in enumerate(self._comments):
            if comment.problem is not None:
                yield Idle(
                    by="comment",
                    path=comment.path,
                    line=comment.line,
                    why="unreadable",
                    detail=comment.problem,
                )
                continue
            groups: dict[tuple[Why, str], list[str]] = {}
            for place, entry in enumerate(comment.entries):
                why = self._why_idle((number, place), entry, checked, by)
                if why is not None:
                    groups.setdefault(why, []).append(entry)
            for (kind, detail), entries in groups.items():
                yield Idle(
                    by="comment",
                    path=comment.path,
                    line=comment.line,
                    entries=tuple(entries),
                    whole=len(entries) == len(comment.entries),
                    why=kind,
                    detail=detail,
                    ended=self._ended or kind != "unused",
                )

    def _why_idle(
        self, at: tuple[int, int], entry: str, checked: Mapping[str, bool], by: str
    ) -> "tuple[Why, str] | None":
        codes = matching(entry, self._rules)
        if not codes:
            return ("unknown", self._known)
        if by in codes or at in self._used:
            return None
        if at in self._repeats:
            return ("repeated", str(self._repeats[at]))
        if at in self._beside:
            return ("beside", self._beside[at])
        comment = self._comments[at[0]]
        if not self._proved or not all(checked.get(code, False) for code in codes):
            return None
        passed = comment.first_line == 0 or self._executed.passed(
            comment.path, comment.first_line, comment.last_line, in_full=self._full_only(codes)
        )
        return ("unused", "") if passed else None

    @property
    def _known(self) -> str:
        return ", ".join(rule.code for rule in self._rules)

    @cached_property
    def _executed(self) -> Executed:
        return Executed(self._facts.trace, self._facts.sources)

    def _full_only(self, codes: frozenset[str]) -> bool:
        return any(FULL_ONLY & set(rule.needs) for rule in self._rules if rule.code in codes)

    def _idle_blocks(self, checked: Mapping[str, bool], by: str) -> Iterator[Idle]:
        declared: dict[tuple[str, int], list[Block]] = {}
        for block in self._blocks.all:
            declared.setdefault((block.path, block.line), []).append(block)
        for (path, line), blocks in declared.items():
            entries = tuple(dict.fromkeys(entry for block in blocks for entry in block.rules))
            unknown = tuple(entry for entry in entries if not matching(entry, self._rules))
            unused = tuple(
                entry
                for entry in entries
                if entry not in unknown
                and (path, line, entry) not in self._met
                and self._nothing_there(entry, blocks, checked, by)
            )
            kinds: tuple[tuple[Why, tuple[str, ...]], ...] = (("unknown", unknown), ("unused", unused))
            for why, idle in kinds:
                if idle:
                    yield Idle(
                        by="expect",
                        path=path,
                        line=line,
                        entries=idle,
                        whole=len(idle) == len(entries),
                        why=why,
                        detail=self._known if why == "unknown" else "",
                        ended=self._ended or why != "unused",
                    )

    def _nothing_there(
        self, entry: str, blocks: Sequence[Block], checked: Mapping[str, bool], by: str
    ) -> bool:
        codes = matching(entry, self._rules)
        if by in codes or not self._proved or not all(checked.get(code, False) for code in codes):
            return False
        return not self._full_only(codes) or any(map(self._blocks.in_full, blocks))

    @property
    def _ended(self) -> bool:
        end = self._facts.trace.end
        return end is not None and (end.how == "finished" or (end.how == "exit" and not end.exit_code))

    @property
    def _proved(self) -> bool:
        """Whether finding nothing says anything: not in a run that an exception or a signal cut short."""
        end = self._facts.trace.end
        return end is not None and (self._ended or end.how == "steps")


def _by_comment(finding: Finding, comment: Comment) -> Suppressed:
    return Suppressed(
        finding=finding, by="comment", reason=comment.reason, path=comment.path, line=comment.line
    )
