"""By what a trace is judged: the rules chosen, the files in which some are ignored, the baseline.

May import `record`, `errors` and the rest of `lint`. Made from a config file and from what the caller asks,
which wins.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import msgspec

from graphlint.analysis.sources import Sources
from graphlint.lint import baseline as baselines
from graphlint.lint.baseline import Baseline
from graphlint.lint.config import Config
from graphlint.lint.finding import Finding
from graphlint.lint.places import Places
from graphlint.lint.rule import Report, Rule
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection, entry_names
from graphlint.lint.suppressed import Suppressed, in_place
from graphlint.record.trace import Trace


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to judge a trace by.

    `per_file` are pairs of a pattern and entries that name rules, relative to `directory`.
    """

    selection: Selection = Selection()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    directory: Path | None = None
    baseline: Baseline | None = None

    def judge(self, trace: Trace) -> Report:
        """Returns the report on a trace."""
        report = self._by_file(judge(trace, self.selection), trace)
        return report if self.baseline is None else self.baseline.use(report, trace)

    def _by_file(self, report: Report, trace: Trace) -> Report:
        if not self.per_file:
            return report
        places = Places(trace, Sources(trace))
        aside = [one for one in report.findings if self._ignored(one, places)]
        return msgspec.structs.replace(
            report,
            findings=tuple(one for one in report.findings if one not in aside),
            suppressed=in_place(
                [*report.suppressed, *(Suppressed(finding=one, by="per-file-ignores") for one in aside)]
            ),
        )

    def _ignored(self, finding: Finding, places: Places) -> bool:
        path = _relative(finding.path, self.directory, places)
        return any(
            fits(pattern, path) or fits(pattern, finding.path)
            for pattern, entries in self.per_file
            if any(entry_names(entry, finding) for entry in entries)
        )


def fits(pattern: str, path: str) -> bool:
    """Returns whether a pattern fits a path with `/`.

    `*` stands for anything, `/` too. A pattern without a `/` fits a file's name in any directory, and one
    that names a directory everything below it.
    """
    pattern = pattern.removeprefix("./")
    whole = pattern.rstrip("/")
    if fnmatchcase(path, whole) or fnmatchcase(path, f"{whole}/*"):
        return True
    if whole.startswith("**/") and fits(whole.removeprefix("**/"), path):
        return True
    return "/" not in pattern and fnmatchcase(PurePath(path).name, pattern)


def _relative(path: str, directory: Path | None, places: Places) -> str:
    if directory is not None and PurePath(path).is_relative_to(directory):
        return PurePath(path).relative_to(directory).as_posix()
    return places.shown(path)


def make_policy(
    config: Config,
    rules: Sequence[Rule],
    *,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    baseline: Path | None = None,
) -> Policy:
    """Returns the policy of a config file and of what the caller asks for beside it.

    A `select` of the caller's stands in place of the file's choice of rules; an `ignore` is added to it.
    `baseline` is the file to read, whoever named it.

    Raises:
        UsageError: an unknown rule, no rule left, or a baseline that can't be read.
    """
    chosen, dropped = (select, ignore) if select else (config.select, (*config.ignore, *ignore))
    selection = Selection(chosen, dropped)
    selection.codes(rules)
    return Policy(
        selection=selection,
        per_file=config.per_file_ignores,
        directory=None if config.file is None else config.file.parent,
        baseline=None if baseline is None else baselines.load(baseline),
    )
