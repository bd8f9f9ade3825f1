"""Where a report goes: width and colour of streams and files."""

import io
from pathlib import Path

import pytest

from graphlint.cli.outputs import FILE_WIDTH, open_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")


def test_a_terminal_has_colour_and_its_own_width() -> None:
    with open_output(None, Terminal(), no_color=False) as destination:
        assert (destination.color, destination.width, destination.name) == (True, 77, None)


def test_colour_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_output(None, Terminal(), no_color=True) as destination:
        assert not destination.color
    monkeypatch.setenv("TERM", "dumb")
    with open_output(None, Terminal(), no_color=False) as destination:
        assert not destination.color
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with open_output(None, Terminal(), no_color=False) as destination:
        assert not destination.color


def test_a_pipe_and_a_file_have_neither(tmp_path: Path) -> None:
    with open_output(None, io.StringIO(), no_color=False) as destination:
        assert (destination.color, destination.width) == (False, FILE_WIDTH)
    path = tmp_path / "report.txt"
    with open_output(path, Terminal(), no_color=False) as destination:
        assert (destination.color, destination.width, destination.name) == (False, FILE_WIDTH, path)
        destination.write("ünïcode\n".encode())
    assert path.read_bytes() == "ünïcode\n".encode()


def test_a_report_on_a_terminal_is_coloured(graphlint, reuse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, coloured in (((), True), (("--no-color",), False)):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        graphlint("run", *options, "reuse.py")
        report = terminal.getvalue().partition("RuntimeError: Trying")[2]
        assert "freed-graph-reuse" in report
        assert ("\x1b[" in report) is coloured
