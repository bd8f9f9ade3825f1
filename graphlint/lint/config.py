"""What `[tool.graphlint]` in a pyproject.toml asks for, read strictly.

May import `record`, `errors` and the rest of `lint`. A slip in a config file must not pass for a wish: an
unknown key or rule, or a value of the wrong type, is an error that lists what would be right.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import msgspec

from graphlint.errors import UsageError
from graphlint.lint.rule import Rule
from graphlint.lint.selection import Selection, named
from graphlint.lint.verdict import FailOn
from graphlint.record.header import Level

FILE_NAME = "pyproject.toml"
TABLE = "[tool.graphlint]"
DEVICE = re.compile(r"cuda(:\d{1,2})?")
"""Devices that can be simulated."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a config file asks for; what it leaves out is None or empty.

    `file` is the file itself, None where there was none. `baseline` is relative to its directory, as are the
    patterns of `per_file_ignores`: pairs of a pattern and the rules to ignore in the files that it fits.
    """

    file: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fail_on: FailOn | None = None
    steps: int | None = None
    simulate: tuple[str, ...] = ()
    level: Level | None = None
    show_info: bool = False
    baseline: Path | None = None


def find(near: Iterable[Path], rules: Sequence[Rule]) -> Config:
    """Returns the config of the nearest pyproject.toml that has the table; an empty one where there is none.

    Args:
        near: directories in which, and above which, to look, one after the other.
        rules: the rules that there are.

    Raises:
        UsageError: the nearest file can't be read, or asks for what isn't there.
    """
    for start in near:
        for directory in (start, *start.parents):
            file = directory / FILE_NAME
            table = _table(file) if _is_there(file) else None
            if table is not None:
                return _config(file, table, rules)
    return Config()


def load(file: Path, rules: Sequence[Rule]) -> Config:
    """Returns the config in a file.

    Raises:
        UsageError: it can't be read, has no such table, or asks for what isn't there.
    """
    table = _table(file)
    if table is None:
        raise UsageError(f"{file} has no table {TABLE}")
    return _config(file.absolute(), table, rules)


def _is_there(file: Path) -> bool:
    """Returns whether a file is there; one in a directory that may not be looked into is not."""
    try:
        return file.is_file()
    except OSError:
        return False


def _table(file: Path) -> Mapping[str, object] | None:
    """Returns the table of a file; None where it has none."""
    try:
        document: Mapping[str, object] = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"can't read the config {_shown(file)}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{_shown(file)} is not valid TOML: {error}") from error
    tool = document.get("tool")
    table = tool.get("graphlint") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{_shown(file)}: {TABLE} is not a table")
    return table


def _config(file: Path, table: Mapping[str, object], rules: Sequence[Rule]) -> Config:
    values: dict[str, object] = {}
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is None:
            known = ", ".join(sorted(_READERS))
            raise UsageError(f"{_shown(file)}: {TABLE} has the unknown key {key!r}; known keys: {known}")
        try:
            values[key.replace("-", "_")] = reader(value)
        except _WrongError as wrong:
            raise UsageError(f"{_shown(file)}: {TABLE} {key}: {wrong}") from wrong
    config = msgspec.convert(values, Config)
    try:
        Selection(config.select, config.ignore).codes(rules)
        for _, entries in config.per_file_ignores:
            named(entries, rules)
    except UsageError as wrong:
        raise UsageError(f"{_shown(file)}: {TABLE}: {wrong}") from wrong
    baseline = None if config.baseline is None else file.parent / config.baseline
    return msgspec.structs.replace(config, file=file, baseline=baseline)


class _WrongError(Exception):
    """A value is not what its key takes; the text says what it takes."""


def _listed(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise _WrongError(f'{_spelled(value)} is not a list of names, as in ["GL101", "GL4"]')
    return tuple(str(item) for item in value)


def _per_file(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise _WrongError(f'{_spelled(value)} is not a table, as in {{ "tests/*" = ["GL103"] }}')
    return tuple((str(pattern), _listed(entries)) for pattern, entries in value.items())


def _steps(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _WrongError(f"{_spelled(value)} is not a whole number from 1")
    return value


def _devices(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise _WrongError(f'{_spelled(value)} is not a list of devices, as in ["cuda"]')
    for name in value:
        if not DEVICE.fullmatch(name):
            raise _WrongError(f"unknown device {name!r}; cuda and cuda:N can be simulated")
    return tuple(str(name) for name in value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongError(f"{_spelled(value)} is not true or false")
    return value


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise _WrongError(f"{_spelled(value)} is not the name of a file")
    return Path(value)


def _one_of(known: tuple[str, ...]) -> "_Reader":
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise _WrongError(f"{_spelled(value)} is not one of {', '.join(known)}")
        return value

    return read


_Reader = Callable[[object], object]

_READERS: Mapping[str, _Reader] = MappingProxyType(
    {
        "select": _listed,
        "ignore": _listed,
        "per-file-ignores": _per_file,
        "fail-on": _one_of(get_args(FailOn)),
        "steps": _steps,
        "simulate": _devices,
        "level": _one_of(get_args(Level)),
        "show-info": _flag,
        "baseline": _path,
    }
)

KEYS = tuple(_READERS)
"""The keys that there are."""


def _spelled(value: object) -> str:
    """Returns a value about as the file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _shown(file: Path) -> str:
    """Returns a path as short as the working directory allows."""
    absolute = file.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(file)
