"""Options that several sub-commands share; may import `record`, `lint`, `errors` and click."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from graphlint.lint.config import DEVICE

CONTEXT: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_Command = TypeVar("_Command", bound=Callable[..., Any])

FORMATS = ("text", "json")
FAIL_LEVELS = ("error", "warning", "info", "never")
STYLES = ("collapsed", "full")


def check_devices(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names as given; refuses one that can't be simulated."""
    for name in names:
        if not DEVICE.fullmatch(name):
            raise click.BadParameter(f"unknown device {name!r}; cuda and cuda:N can be simulated", ctx, param)
    return names


def check_trace_name(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Returns the path as given; refuses one whose suffix doesn't say how a trace is written."""
    if path is not None and not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise click.BadParameter(f"{path} names no trace; end it in .jsonl or .jsonl.gz", ctx, param)
    return path


def split(values: Iterable[str]) -> tuple[str, ...]:
    """Returns the entries of a repeatable option that also takes several at once, separated by commas."""
    return tuple(entry.strip() for value in values for entry in value.split(",") if entry.strip())


def _chain(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Returns one decorator that adds the options, in this order of the help text."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def selection_options() -> Callable[[_Command], _Command]:
    """Returns the options that choose rules and put findings aside."""
    return _chain(
        click.option(
            "--select",
            multiple=True,
            metavar="CODES",
            help="Check these rules only: codes, beginnings of codes or names; repeatable, comma-separated.",
        ),
        click.option(
            "--ignore", multiple=True, metavar="CODES", help="Leave these rules out; like --select."
        ),
        click.option(
            "--baseline",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Leave out the findings that stand in this baseline.",
        ),
        click.option(
            "--write-baseline",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Put up with what is found now: write it to FILE, for --baseline.",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Read [tool.graphlint] from this file. Default: the nearest pyproject.toml that has it.",
        ),
        click.option("--no-config", is_flag=True, help="Read no config file."),
    )


def report_options() -> Callable[[_Command], _Command]:
    """Returns the options that say how and where a report is written, and when it fails the run."""
    return _chain(
        click.option(
            "--format", "format_", type=click.Choice(FORMATS), default="text", help="Default: text."
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write the report to FILE.",
        ),
        click.option(
            "--fail-on",
            type=click.Choice(FAIL_LEVELS),
            help="Least severity of a finding that makes the exit code 1. Default: warning.",
        ),
        click.option("--no-color", is_flag=True, help="Never colour the report (NO_COLOR does the same)."),
        click.option("--quiet", is_flag=True, help="Print findings only, no summary; nothing when clean."),
        click.option("--show-info", is_flag=True, help="Print findings of severity info, too."),
    )


def graph_options(*, required: bool) -> Callable[[_Command], _Command]:
    """Returns the options of the drawings."""
    return _chain(
        click.option(
            "--graphs",
            type=click.Path(path_type=Path),
            metavar="DIR",
            required=required,
            help="Draw each distinct backward as an SVG in DIR.",
        ),
        click.option(
            "--graph-style",
            type=click.Choice(STYLES),
            default="collapsed",
            help="collapsed folds repeated structure; full draws every node. Default: collapsed.",
        ),
    )
