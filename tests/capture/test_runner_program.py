"""What is found, compiled and staged as `__main__`, without running a line of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphlint.capture.runner_program import (
    ModuleTarget,
    Program,
    ScriptTarget,
    load_module,
    load_script,
    stage_module,
    stage_script,
)
from graphlint.errors import UsageError


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_missing_script_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_script(ScriptTarget(str(tmp_path / "nope.py")))
    assert str(caught.value) == f"can't read the script {tmp_path}/nope.py: No such file or directory"


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory; name the script in it"):
        load_script(ScriptTarget(str(tmp_path)))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"x = 1\ndef f(:\n", ":2: not valid Python: invalid syntax"),
        (b"x = 1\0", "not valid Python: source code"),
        (b"# coding: nonsense\n", "not valid Python: "),
        (b"x = '\xff'\n", "not valid Python: "),
    ],
)
def test_script_that_is_not_python_is_one_line(tmp_path: Path, source: bytes, reason: str) -> None:
    script = tmp_path / "bad.py"
    script.write_bytes(source)
    with pytest.raises(UsageError) as caught:
        load_script(ScriptTarget(str(script)))
    assert str(caught.value).startswith(f"{script}")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_stage_script_sets_argv_path_and_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "train.py").write_text("from __future__ import annotations\nx: Missing = 1\n")
    link = tmp_path / "link.py"
    link.symlink_to(real / "train.py")
    monkeypatch.chdir(tmp_path)
    target = ScriptTarget("link.py")
    program = load_script(target)
    length = len(sys.path)
    stage_script(target, program, ("--lr", "1"))
    assert sys.argv == ["link.py", "--lr", "1"]
    assert sys.path[0] == str(real)
    assert len(sys.path) == length
    assert sys.modules["__main__"] is program.main
    assert program.main.__file__ == str(link)


def write_package(root: Path) -> None:
    package = root / "parcel_of_tests"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("from . import helper\n")
    (package / "helper.py").write_text("")
    (package / "broken.py").write_text("def f(:\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "__main__.py").write_text("")


def test_load_module_stages_it_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    stage_module(("a",))
    assert sys.argv == ["-m", "a"]
    program = load_module(ModuleTarget("parcel_of_tests.train"))
    assert isinstance(program, Program)
    origin = str(tmp_path / "parcel_of_tests" / "train.py")
    assert sys.argv == [origin, "a"]
    assert sys.path[0] == str(tmp_path)
    main = program.main
    assert (main.__name__, main.__package__, main.__file__) == ("__main__", "parcel_of_tests", origin)
    assert main.__spec__ is not None
    assert main.__spec__.name == "parcel_of_tests.train"


def test_package_is_run_by_its_main_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    stage_module(())
    program = load_module(ModuleTarget("parcel_of_tests.inner"))
    assert isinstance(program, Program)
    assert program.main.__spec__ is not None
    assert program.main.__spec__.name == "parcel_of_tests.inner.__main__"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("parcel_of_tests.nope", "no module named parcel_of_tests.nope"),
        ("nope_of_tests.train", "no module named nope_of_tests.train"),
        ("parcel_of_tests", "parcel_of_tests is a package without a __main__ module"),
        ("parcel_of_tests.train.deeper", "no module named parcel_of_tests.train.deeper"),
        ("parcel_of_tests.broken", "not valid Python"),
        (".train", "relative module names"),
        ("__main__", "no module named __main__"),
        ("_io", "not written in Python"),
    ],
)
def test_module_that_cannot_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    write_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "__main__")
    stage_module(())
    problem = load_module(ModuleTarget(name))
    assert isinstance(problem, UsageError)
    assert reason in str(problem)
    assert "\n" not in str(problem)


def test_error_in_a_parent_package_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path)
    (tmp_path / "parcel_of_tests" / "__init__.py").write_text("import missing_thing_of_tests\n")
    monkeypatch.chdir(tmp_path)
    stage_module(())
    with pytest.raises(ModuleNotFoundError, match="missing_thing_of_tests"):
        load_module(ModuleTarget("parcel_of_tests.train"))
