"""Baselines: findings that a project has put up with, in a file, so that new ones stand out.

May import `analysis`, `record`, `errors` and the rest of `lint`. An entry is found again by its fingerprint,
which survives moved lines, and by its file; where that file is gone, its directory may have been renamed, and
any other file of its name will do.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

import msgspec

from graphlint.analysis.executed import Executed
from graphlint.analysis.sources import Sources
from graphlint.errors import UsageError
from graphlint.lint.finding import Finding
from graphlint.lint.places import Places
from graphlint.lint.rule import Report
from graphlint.lint.suppressed import BaselineEntry, BaselineUse, Suppressed, in_place
from graphlint.record.codec import dump
from graphlint.record.trace import Trace

FORMAT = "graphlint-baseline"
VERSION = 1


class _Identity(msgspec.Struct):
    """The part of the file that is checked before the rest is believed."""

    format: str = ""
    version: int = 0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    format: str
    version: int
    findings: tuple[BaselineEntry, ...]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a baseline file; `shown` is its path as the user gave it, `directory` where it lies."""

    shown: str
    directory: Path
    entries: tuple[BaselineEntry, ...]

    def use(self, report: Report, trace: Trace) -> Report:
        """Returns the report with the findings that stand in the baseline put aside."""
        places = Places(trace, Sources(trace))
        rest: list[Finding] = []
        found: list[Suppressed] = []
        left = list(self.entries)
        for finding in report.findings:
            entry = next((one for one in left if self._is(one, finding, places)), None)
            if entry is None:
                rest.append(finding)
            else:
                left.remove(entry)
                found.append(Suppressed(finding=finding, by="baseline"))
        return msgspec.structs.replace(
            report,
            findings=tuple(rest),
            suppressed=in_place([*report.suppressed, *found]),
            baseline=BaselineUse(
                path=self.shown,
                entries=len(self.entries),
                matched=len(found),
                gone=tuple(self._gone(left, report, trace, places)),
            ),
        )

    def _is(self, entry: BaselineEntry, finding: Finding, places: Places) -> bool:
        return entry.fingerprint == finding.fingerprint and (
            self._names(entry, finding.path, places) or not self._is_there(entry)
        )

    def _is_there(self, entry: BaselineEntry) -> bool:
        # Not Path.exists: it raises for a path that no file can have.
        return os.path.exists(self.directory / entry.path)  # noqa: PTH110

    def _names(self, entry: BaselineEntry, path: str, places: Places) -> bool:
        """Returns whether an entry is about the file at `path`; one of another machine is told by its end."""
        if (self.directory / entry.path) == Path(path):
            return True
        if PurePath(path).is_relative_to(self.directory):
            return False
        shown, kept = PurePath(places.shown(path)).parts, PurePath(entry.path).parts
        short = min(len(shown), len(kept))
        return shown[-short:] == kept[-short:]

    def _gone(
        self, entries: Iterable[BaselineEntry], report: Report, trace: Trace, places: Places
    ) -> Iterable[BaselineEntry]:
        """Yields the entries that are proved to be no longer found."""
        end = trace.end
        if end is None or not (end.how == "finished" or (end.how == "exit" and not end.exit_code)):
            return
        checked = {one.code for one in report.outcomes if one.outcome in {"findings", "clean"}}
        executed = Executed(trace, Sources(trace))
        ran = [path for path in trace.sources if executed.ran(path)]
        for entry in entries:
            if entry.code in checked and any(self._names(entry, path, places) for path in ran):
                yield entry


def load(path: Path) -> Baseline:
    """Returns the baseline in a file.

    Raises:
        UsageError: it can't be read, or isn't a baseline that this version reads.
    """
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"can't read the baseline {path}: {reason}") from error
    try:
        identity = msgspec.json.decode(text, type=_Identity)
        if identity.format != FORMAT:
            raise UsageError(f"{path} is not a graphlint baseline; write one with --write-baseline {path}")
        if identity.version != VERSION:
            raise UsageError(
                f"{path}: baseline version {identity.version}; this graphlint reads version {VERSION}"
            )
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a graphlint baseline: {error}") from error
    return Baseline(shown=str(path), directory=path.absolute().parent, entries=file.findings)


def of(report: Report, trace: Trace, path: Path) -> Baseline:
    """Returns a baseline, to be kept at `path`, of the findings of a report."""
    directory = path.absolute().parent
    places = Places(trace, Sources(trace))
    entries = [
        BaselineEntry(
            fingerprint=finding.fingerprint,
            code=finding.code,
            path=_relative(finding.path, directory, places),
            message=finding.message,
        )
        for finding in report.findings
    ]
    return Baseline(shown=str(path), directory=directory, entries=_sorted(entries))


def merged(new: Baseline, old: Baseline, use: BaselineUse | None) -> Baseline:
    """Returns the new baseline with the old one's entries of which this run could not tell."""
    known = {entry.fingerprint for entry in (*new.entries, *(use.gone if use is not None else ()))}
    kept = [entry for entry in old.entries if entry.fingerprint not in known]
    return msgspec.structs.replace(new, entries=_sorted([*new.entries, *kept]))


def _sorted(entries: Iterable[BaselineEntry]) -> tuple[BaselineEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.path, entry.code, entry.fingerprint)))


def _relative(path: str, directory: Path, places: Places) -> str:
    if PurePath(path).is_relative_to(directory):
        return PurePath(path).relative_to(directory).as_posix()
    return places.shown(path)


def save(baseline: Baseline, path: Path) -> None:
    """Writes a baseline, whole or not at all.

    Raises:
        UsageError: it can't be written; what was there before is still there.
    """
    file = _File(FORMAT, VERSION, baseline.entries)
    text = msgspec.json.format(dump(file), indent=2) + b"\n"
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            draft.write_bytes(text)
            draft.replace(target)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        raise UsageError(f"can't write the baseline to {path}: {error.strerror or error}") from error
