"""The moment at which the awaited module has been imported; a module of this test stands in for torch."""

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphlint.capture import runner_arrival
from graphlint.capture.runner_arrival import Arrival
from graphlint.capture.runner_display import cut_frames

NAME = "awaited_module_of_tests"


@pytest.fixture(autouse=True)
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(runner_arrival, "_AWAITED", NAME)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 1\n")
    importlib.invalidate_caches()
    yield path
    sys.modules.pop(NAME, None)


def test_called_once_right_after_the_module_ran() -> None:
    seen: list[int] = []
    finders = list(sys.meta_path)
    with Arrival(lambda: seen.append(sys.modules[NAME].value)):
        assert seen == []
        module = importlib.import_module(NAME)
        assert seen == [1]
        importlib.reload(module)
    assert seen == [1]
    assert sys.meta_path == finders
    assert "exec_module" not in vars(module.__loader__)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_called_at_once_when_the_module_is_there() -> None:
    importlib.import_module(NAME)
    seen: list[bool] = []
    with Arrival(lambda: seen.append(True)):
        assert seen == [True]


def test_never_called_when_the_script_imports_something_else() -> None:
    finders = list(sys.meta_path)
    with Arrival(lambda: pytest.fail("called")):
        importlib.import_module("graphlint.errors")
    assert sys.meta_path == finders


def test_import_in_another_thread_is_missed() -> None:
    with Arrival(lambda: pytest.fail("called")) as arrival:
        thread = threading.Thread(target=importlib.import_module, args=(NAME,))
        thread.start()
        thread.join()
    assert NAME in sys.modules
    assert arrival.missed


def test_a_failed_import_is_told_and_the_next_one_is_seen(awaited: Path) -> None:
    good = awaited.read_text()
    awaited.write_text("raise RuntimeError('broken')")
    importlib.invalidate_caches()
    seen: list[int] = []
    finders = list(sys.meta_path)
    with Arrival(lambda: seen.append(sys.modules[NAME].value)) as arrival:
        with pytest.raises(RuntimeError, match="broken"):
            importlib.import_module(NAME)
        assert (seen, arrival.failed) == ([], True)
        awaited.write_text(good + "# of another length, for the cached bytecode\n")
        importlib.invalidate_caches()
        importlib.import_module(NAME)
        assert (seen, arrival.failed) == ([1], False)
    assert sys.meta_path == finders


def test_missing_module_raises_as_ever(awaited: Path) -> None:
    awaited.unlink()
    importlib.invalidate_caches()
    with Arrival(lambda: pytest.fail("called")), pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)


def test_traceback_through_the_import_equals_plain_python(
    awaited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    awaited.write_text("def fail():\n    raise ValueError('while importing')\nfail()\n")
    source = f"import {NAME}\n"
    expected = subprocess.run(
        [sys.executable, "-c", source], check=False, capture_output=True, text=True, cwd=awaited.parent
    ).stderr
    with Arrival(lambda: pytest.fail("called")), pytest.raises(ValueError, match="while") as caught:
        exec(compile(source, "<string>", "exec"), {})  # noqa: S102 - the traceback of a script is the subject
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # this test's own frame
    cut_frames(error)
    sys.__excepthook__(type(error), error, error.__traceback__)
    assert capsys.readouterr().err == expected
