"""Who may import whom, and the other promises that the source as a whole keeps; each check can fail."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "graphlint"

EVERYTHING = frozenset({"*"})
LAYERS = MappingProxyType(
    {
        "errors": frozenset(),
        "version": frozenset(),
        "record": frozenset({"errors"}),
        "analysis": frozenset({"record", "errors"}),
        "lint": frozenset({"analysis", "record", "errors"}),
        "rules": frozenset({"lint", "analysis", "record"}),
        "capture": frozenset({"record", "errors", "version"}),
        "report": frozenset({"lint", "analysis", "record", "errors", "version"}),
        "reference": frozenset({"errors", "version"}),
        "cli": EVERYTHING,
        "integrations": EVERYTHING,
        "testing": EVERYTHING,
        "__init__": EVERYTHING,
        "__main__": EVERYTHING,
    }
)
LIBRARIES = MappingProxyType(
    {
        "record": frozenset({"msgspec"}),
        "analysis": frozenset({"msgspec", "networkx"}),
        "lint": frozenset({"msgspec"}),
        "capture": frozenset({"msgspec", "torch"}),
        "report": frozenset({"msgspec", "rich", "graphviz", "networkx", "torchviz"}),
        "reference": frozenset({"msgspec", "rich", "torch", "sklearn", "numpy", "PIL"}),
        "cli": frozenset({"click", "msgspec", "rich"}),
        "integrations": frozenset({"msgspec"}),
        "testing": frozenset({"msgspec"}),
    }
)
REFERENCED_BY = frozenset({"cli", "reference"})
"""Only the command line knows the reference trainer: what audits it must not depend on it."""

WITHOUT_ANY = frozenset({"record", "analysis", "lint"})
BROAD_EXCEPTS = MappingProxyType({"graphlint.lint.runner": 1, "graphlint.capture.guard": 1})
"""A rule's crash must not hide what the others find; a tap's fault must not stop the training."""

MAX_LINES = 400
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "misc", "common"})
FORBIDDEN = (
    re.compile(r"(?<![\w.~])/(?:work|root|farm|tmp)/"),
    re.compile(r"pip\s+install\s+graphlint"),
    re.compile(r"pypi\.org|pythonhosted\.org"),
)
SEARCHED = frozenset({".py", ".md", ".toml", ".json", ".txt", ".cfg", ".yml", ".yaml", ".sh", "", ".typed"})


class Module(NamedTuple):
    """A module of the package: its dotted name and its source."""

    name: str
    text: str

    @property
    def layer(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def package_modules() -> list[Module]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [*path.relative_to(ROOT).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        found.append(Module(".".join(parts), path.read_text(encoding="utf-8")))
    return found


def imported_names(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*module.name.split(".")[: -node.level or None], node.module or ""])
            base = base if node.level else node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if base == "graphlint")


def layering(module: Module) -> Iterator[str]:
    """Yields imports of graphlint's own packages that the layer may not reach."""
    if module.layer not in LAYERS:
        yield f"{module.name} lies in no known layer"
        return
    allowed = LAYERS[module.layer] | {module.layer}
    for name in imported_names(module):
        parts = name.split(".")
        if parts[0] != "graphlint" or len(parts) == 1:
            continue
        known = "*" in allowed or parts[1] in allowed
        if not known or (parts[1] == "reference" and module.layer not in REFERENCED_BY):
            yield f"{module.name} imports {name}"
    if module.layer == "rules" and any(
        name.startswith("graphlint.rules.") for name in imported_names(module)
    ):
        yield f"{module.name} imports another rule"


def libraries(module: Module) -> Iterator[str]:
    """Yields imports of installed packages that the layer may not use."""
    allowed = LIBRARIES.get(module.layer, frozenset())
    for name in imported_names(module):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top != "graphlint" and top not in allowed:
            yield f"{module.name} imports {top}"


def long_parts(module: Module) -> Iterator[str]:
    """Yields files and functions that are too long to be read in one go."""
    lines = module.text.count("\n")
    if lines > MAX_LINES:
        yield f"{module.name} has {lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{module.name}.{node.name} has {length} lines"


def vague_names(module: Module) -> Iterator[str]:
    """Yields modules whose name says nothing."""
    if module.name.rsplit(".", maxsplit=1)[-1].strip("_") in VAGUE_NAMES:
        yield module.name


def broad_excepts(module: Module) -> Iterator[str]:
    """Yields handlers that swallow anything, beyond those allowed; one that re-raises swallows nothing."""
    broad = [
        node.lineno
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.ExceptHandler) and _names_any(node.type) and not _reraises(node))
        or (isinstance(node, ast.Call) and _is_suppress(node) and any(map(_names_any, node.args)))
    ]
    if len(broad) > BROAD_EXCEPTS.get(module.name, 0):
        yield f"{module.name} has broad excepts in lines {broad}"


def _names_any(caught: ast.expr | None) -> bool:
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    names = {"Exception", "BaseException"}
    return any(part is None or (isinstance(part, ast.Name) and part.id in names) for part in parts)


def _reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _is_suppress(call: ast.Call) -> bool:
    function = call.func
    return getattr(function, "id", None) == "suppress" or getattr(function, "attr", None) == "suppress"


def uses_of_any(module: Module) -> Iterator[str]:
    """Yields modules of the typed core that give up on types."""
    if module.layer in WITHOUT_ANY:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module == "typing":
                yield from (f"{module.name} uses Any" for alias in node.names if alias.name == "Any")


def mutable_globals(module: Module) -> Iterator[str]:
    """Yields names at the top of a module that are bound to a container that could be changed.

    One that is declared a `Mapping` can't be, as far as type checking goes.
    """
    makers = {"list", "dict", "set", "defaultdict", "deque", "Counter", "bytearray"}
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    for node in module.tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = getattr(target, "id", "")
        value = node.value
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Mapping["):
            continue
        made = isinstance(value, ast.Call) and getattr(value.func, "id", "") in makers
        if name != "__all__" and (made or isinstance(value, displays)):
            yield f"{module.name}.{name}"


def undocumented(module: Module) -> Iterator[str]:
    """Yields modules without a docstring."""
    if ast.get_docstring(module.tree) is None:
        yield module.name


CHECKS = (
    layering,
    libraries,
    long_parts,
    vague_names,
    broad_excepts,
    uses_of_any,
    mutable_globals,
    undocumented,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_package(check):
    assert [problem for module in package_modules() for problem in check(module)] == []


def test_every_module_is_read():
    names = {module.name for module in package_modules()}
    assert {"graphlint", "graphlint.record.codec", "graphlint.lint.runner"} <= names
    assert len(names) == len(list(PACKAGE.rglob("*.py")))


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (layering, "graphlint.record.x", "from graphlint.analysis.facts import Facts"),
        (layering, "graphlint.capture.taps.x", "def f():\n    import graphlint.lint.rule"),
        (layering, "graphlint.lint.x", "from graphlint.rules import gl101_x"),
        (layering, "graphlint.lint.x", "from graphlint import capture"),
        (layering, "graphlint.lint.x", "from ..capture import session"),
        (layering, "graphlint.report.x", "from ..capture.session import Session"),
        (layering, "graphlint.rules.x", "from graphlint.errors import GraphlintError"),
        (layering, "graphlint.rules.gl1", "from graphlint.rules.gl2 import check"),
        (layering, "graphlint.reference.x", "from graphlint.capture.session import Session"),
        (layering, "graphlint.reference.x", "from graphlint.lint.runner import judge"),
        (layering, "graphlint.integrations.x", "from graphlint.reference.trainer import StepLosses"),
        (layering, "graphlint.__init__", "from graphlint import reference"),
        (layering, "graphlint.novelty.x", ""),
        (libraries, "graphlint.lint.x", "def f():\n    import torch.nn"),
        (libraries, "graphlint.cli.x", "from torch import nn"),
        (libraries, "graphlint.rules.x", "import msgspec"),
        (libraries, "graphlint.errors", "import msgspec"),
        (long_parts, "graphlint.lint.x", "x = 1\n" * (MAX_LINES + 1)),
        (long_parts, "graphlint.lint.x", LONG_FUNCTION),
        (long_parts, "graphlint.lint.x", "class A:\n    async " + LONG_FUNCTION.replace("\n", "\n    ")),
        (vague_names, "graphlint.lint.utils", ""),
        (vague_names, "graphlint.lint._helpers", ""),
        (broad_excepts, "graphlint.lint.x", "try:\n    f()\nexcept Exception:\n    pass"),
        (broad_excepts, "graphlint.lint.x", "try:\n    f()\nexcept (OSError, BaseException):\n    g()"),
        (broad_excepts, "graphlint.lint.x", "try:\n    f()\nexcept:\n    pass"),
        (broad_excepts, "graphlint.lint.x", "with contextlib.suppress(Exception):\n    f()"),
        (broad_excepts, "graphlint.lint.runner", "try:\n    f()\nexcept Exception:\n    pass\n" * 2),
        (uses_of_any, "graphlint.record.x", "from typing import Any, Literal"),
        (mutable_globals, "graphlint.lint.x", "CACHE: dict[str, int] = {}"),
        (mutable_globals, "graphlint.lint.x", "CACHE = list()"),
        (undocumented, "graphlint.lint.x", "x = 1"),
    ],
)
def test_check_can_fail(check, name, text):
    assert list(check(Module(name, text)))


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (layering, "graphlint.rules.x", "from graphlint.lint.rule import Rule\nimport re"),
        (layering, "graphlint.cli.x", "from graphlint.capture.session import Session"),
        (layering, "graphlint.record.x", "from graphlint.record.header import End"),
        (layering, "graphlint.cli.x", "def f():\n    from graphlint.reference.trainer import StepLosses"),
        (layering, "graphlint.reference.x", "import torch\nfrom graphlint.errors import UsageError"),
        (libraries, "graphlint.capture.x", "import torch, os, msgspec"),
        (long_parts, "graphlint.lint.x", "x = 1\n" * MAX_LINES),
        (broad_excepts, "graphlint.lint.x", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
        (broad_excepts, "graphlint.lint.x", "try:\n    f()\nexcept ValueError:\n    pass"),
        (broad_excepts, "graphlint.lint.runner", "try:\n    f()\nexcept Exception:\n    pass"),
        (
            mutable_globals,
            "graphlint.lint.x",
            "__all__ = ['a']\nA = (1,)\nB = f({})\nC: Mapping[int, int] = {}",
        ),
    ],
)
def test_check_lets_what_is_right_pass(check, name, text):
    assert list(check(Module(name, text))) == []


def project_texts() -> Iterator[tuple[str, str]]:
    """Yields each text file of the project that is its own: no caches, no build output."""
    for top in sorted(ROOT.iterdir()):
        if (top.name.startswith(".") and top.name not in {".ci", ".gitignore"}) or top.name in {
            "build",
            "dist",
        }:
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and path.suffix in SEARCHED and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def forbidden_words(name: str, text: str) -> Iterator[str]:
    """Yields what ties a text to the machine that it was written on, or sends a reader the wrong way."""
    for pattern in FORBIDDEN:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match[0]}"


def test_project_texts_speak_of_the_project_alone():
    texts = list(project_texts())
    assert any(name == "pyproject.toml" for name, _ in texts)
    assert [problem for name, text in texts for problem in forbidden_words(name, text)] == []


@pytest.mark.parametrize(
    "words",
    [("", "work", "main"), ("open('", "tmp", "x')"), ("see ", "root", ".cache")],
)
def test_machine_paths_are_found(words):
    assert list(forbidden_words("x", "/".join(words)))
    assert not list(forbidden_words("x", "the network/root/tmpdir of /workers/ and ~/root/"))


def test_wrong_distribution_name_is_found():
    assert list(forbidden_words("x", "pip install {}".format("graphlint")))
    assert not list(forbidden_words("x", "pip install torch-graphlint"))
