"""What a command judges by: the config file, and the options, which win; may import `lint` and `record`.

Shared by `run` and `check`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, cast

import msgspec

from graphlint.cli import options as shared
from graphlint.cli import outputs
from graphlint.errors import UsageError
from graphlint.lint import baseline as baselines
from graphlint.lint.config import Config, find, load
from graphlint.lint.discovery import all_rules
from graphlint.lint.policy import Policy, make_policy
from graphlint.lint.rule import Report
from graphlint.lint.verdict import FailOn, unchecked
from graphlint.record.trace import Trace


class Given(TypedDict):
    """The options of `run` and `check` that say how to judge, as click gives them."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    baseline: Path | None
    write_baseline: Path | None
    config: Path | None
    no_config: bool
    fail_on: str | None
    show_info: bool


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to judge by.

    `written` is the baseline to write, as an absolute path, and `written_shown` the same as the user gave it.
    """

    config: Config
    policy: Policy
    fail_on: FailOn
    show_info: bool
    written: Path | None
    written_shown: Path | None

    @property
    def files_written(self) -> list[Path]:
        """The files that judging writes."""
        return [] if self.written is None else [self.written]

    def judge(self, trace: Trace) -> tuple[Report, str | None]:
        """Returns the report on a trace, and what to say of the baseline that was written, if one was.

        Findings that have been written stand in the baseline from now on, and are put aside. Where no rule
        could judge, nothing is written: an empty baseline would take the place of a good one.

        Raises:
            UsageError: the baseline can't be written.
        """
        if self.written is None:
            return self.policy.judge(trace), None
        old = self.policy.baseline
        plain = msgspec.structs.replace(self.policy, baseline=None).judge(trace)
        if unchecked(plain, trace) is not None:
            return plain, None
        made = baselines.of(plain, trace, self.written)
        kept = made if old is None else baselines.merged(made, old, old.use(plain, trace).baseline)
        baselines.save(kept, self.written)
        count = len(kept.entries)
        words = f"baseline of {count} finding{'s' * (count != 1)} written to {self.written_shown}"
        return kept.use(plain, trace), words


def settle(given: Given, near: Iterable[Path]) -> Settings:
    """Returns what to judge by.

    Args:
        given: the options.
        near: the directories near which a config file is looked for.

    Raises:
        UsageError: the config file or the options ask for what isn't there.
    """
    rules = all_rules()
    file = given["config"]
    if file is not None and given["no_config"]:
        raise UsageError("--config and --no-config were both given; give one of them")
    config = Config() if given["no_config"] else find(near, rules) if file is None else load(file, rules)
    written = given["write_baseline"]
    baseline = given["baseline"] or config.baseline
    if baseline is not None and _is_first(written, baseline):
        baseline = None
    fail_on = cast("FailOn", given["fail_on"] or config.fail_on or "warning")
    return Settings(
        config=config,
        policy=make_policy(
            config,
            rules,
            select=shared.split(given["select"]),
            ignore=shared.split(given["ignore"]),
            baseline=baseline,
        ),
        fail_on=fail_on,
        show_info=given["show_info"] or config.show_info or fail_on == "info",  # what fails a run is shown
        written=None if written is None else outputs.check_baseline_file(written),
        written_shown=written,
    )


def _is_first(written: Path | None, read: Path) -> bool:
    """Whether the baseline to read is the one to write, and isn't there yet."""
    return written is not None and written.absolute() == read.absolute() and not read.exists()
