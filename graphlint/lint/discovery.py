"""Finds the rules: a strict walk of `graphlint/rules`, where a file that doesn't load is fatal.

A rule that vanishes makes a clean report that checked less than it says, so nothing here is skipped: each
file must be named after its rule, document it and declare it, and every file must have become one rule.
May import `record`, `errors` and the rest of `lint`; rule modules are imported by name, never listed by hand.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from graphlint.errors import RuleLoadError
from graphlint.lint.finding import SEVERITIES
from graphlint.lint.rule import Example, Rule
from graphlint.record.header import CAPABILITIES

RULES_PACKAGE = "graphlint.rules"
SECTIONS = ("What it does", "Why it matters", "Example", "Use instead", "Known limits")
"""The headings of a rule's page, in this order, each on a line of its own after `## `."""

_FILE = re.compile(r"(gl\d{3})_([a-z0-9]+(?:_[a-z0-9]+)*)\.py")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_LOAD_ERRORS = (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError)


class RuleFile(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, the file that declares it, and its page: the module's docstring, cleaned of indentation."""

    rule: Rule
    path: Path
    page: str


def all_rules() -> tuple[Rule, ...]:
    """Returns every rule, in the order of the codes.

    Raises:
        RuleLoadError: a file under `graphlint/rules` is not a sound rule.
    """
    return tuple(file.rule for file in rule_files())


def rule_files(package: str = RULES_PACKAGE) -> tuple[RuleFile, ...]:
    """Returns every rule of `package` with its file and page, in the order of the codes.

    Raises:
        RuleLoadError: a file there is not a sound rule, two rules share a code or a name, or there are none.
    """
    paths = _python_files(package)
    files = tuple(_load(package, path) for path in paths)
    if not files:
        raise RuleLoadError(f"{package} holds no rules: the installation is damaged")
    for attribute in ("code", "name"):
        values = [getattr(file.rule, attribute) for file in files]
        for value in values:
            if values.count(value) > 1:
                raise RuleLoadError(f"{package}: two rules have the {attribute} {value}")
    return files


def _python_files(package: str) -> list[Path]:
    """Returns every Python file of the package, by name, its own `__init__` excepted."""
    found = importlib.import_module(package)
    folders = [Path(folder) for folder in found.__path__]
    paths = [path for folder in folders for path in folder.iterdir() if path.suffix == ".py"]
    return sorted((path for path in paths if path.name != "__init__.py"), key=lambda path: path.name)


def _load(package: str, path: Path) -> RuleFile:
    if not _FILE.fullmatch(path.name):
        raise RuleLoadError(f"{path}: a rule file is named like gl101_freed_graph_reuse.py")
    try:
        module = importlib.import_module(f"{package}.{path.stem}")
    except _LOAD_ERRORS as error:
        raise RuleLoadError(f"{path}: doesn't load: {type(error).__name__}: {error}") from error
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        raise RuleLoadError(f"{path}: declares no RULE of type Rule")
    for problem in _problems(module, rule, path):
        raise RuleLoadError(f"{path}: {problem}")
    return RuleFile(rule=rule, path=path, page=inspect.getdoc(module) or "")


def _problems(module: ModuleType, rule: Rule, path: Path) -> Iterator[str]:
    """Yields what is wrong with a rule, in words."""
    code, _, rest = path.stem.partition("_")
    if rule.code != code.upper():
        yield f"the file is named for {code.upper()}, the rule says {rule.code}"
    if rule.name != rest.replace("_", "-"):
        yield f"the file is named for {rest.replace('_', '-')}, the rule says {rule.name}"
    if rule.severity not in SEVERITIES:
        yield f"severity is {rule.severity!r}, not one of {', '.join(SEVERITIES)}"
    if not _VERSION.fullmatch(rule.since):
        yield f"since is {rule.since!r}, not a version"
    known = CAPABILITIES
    for need in rule.needs:
        if need not in known:
            yield f"needs {need!r}, not one of {', '.join(known)}"
    if (rule.check is None) == (rule.review is None):
        yield "a rule has either a check or a review"
    elif not inspect.isgeneratorfunction(rule.check or rule.review):
        yield f"{'review' if rule.check is None else 'check'} is not a generator function"
    yield from _page_problems(inspect.getdoc(module) or "")
    yield from _example_problems(rule)


def _page_problems(page: str) -> Iterator[str]:
    lines = page.splitlines()
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    if headings != list(SECTIONS):
        yield f"the docstring must have the sections ## {', ## '.join(SECTIONS)}, in this order and no others"
    if not lines or not lines[0].endswith("."):
        yield "the docstring's first line must be a sentence that says what the rule proves"


def _example_problems(rule: Rule) -> Iterator[str]:
    if not rule.bad or not rule.good:
        yield "a rule has at least one bad and one good example"
    examples: tuple[Example, ...] = (*rule.bad, *rule.good)
    titles = [example.title for example in examples]
    codes = [example.code for example in examples]
    for title in titles:
        if titles.count(title) > 1:
            yield f"two examples are titled {title!r}"
    for example in examples:
        if codes.count(example.code) > 1:
            yield f"the example {example.title!r} is there twice"
