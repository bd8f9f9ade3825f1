"""What the interpreter prints at a script's end is printed, whatever the script made of its objects."""

import io
import sys

import pytest

from graphlint.capture.runner_display import show, show_exit


class Mute:
    def __str__(self) -> str:
        raise ValueError("not telling")


def test_an_exit_text_that_can_not_be_had_is_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_exit(SystemExit(Mute()))
    assert capsys.readouterr().err == "\n"


def test_an_exit_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_exit(SystemExit("out of data"))
    show_exit(SystemExit(3))
    assert capsys.readouterr().err == "out of data\n"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "none"])
def test_a_stderr_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch, *, closed: bool) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if closed else None)
    show_exit(SystemExit("out of data"))


def test_a_failing_hook_without_stderr_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(*_: object) -> None:
        raise ValueError("in the hook")

    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        monkeypatch.setattr(sys, name, None, raising=False)
    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setattr(sys, "stderr", None)
    assert show(TypeError("of the script")) is None
