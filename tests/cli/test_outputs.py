"""Where a report goes: width and colour of streams and files."""

import io
import sys
from pathlib import Path

import pytest

from graphlint.cli.outputs import FILE_WIDTH, Notes, open_output
from graphlint.errors import UsageError


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


def test_a_standard_stream_that_the_script_closed_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as Python opens stderr
    monkeypatch.setattr(sys, "__stderr__", stream)
    with open_output(None, stream, no_color=True) as destination:
        stream.close()
        destination.write(b"the report\n")
    Notes(stream).write("a note")
    assert capfd.readouterr().err == "the report\ngraphlint: a note\n"


def test_any_other_closed_stream_takes_no_report() -> None:
    stream = io.StringIO()
    with open_output(None, stream, no_color=True) as destination:
        stream.close()
        with pytest.raises(UsageError, match="can't write the report"):
            destination.write(b"the report")


def test_without_a_stream_nothing_is_run(graphlint, reuse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    result = graphlint("run", "--format", "json", str(reuse))
    assert result.code == 2
    assert result.error_line == "the report has nowhere to go, its stream is closed; give --output FILE"


def test_without_stderr_a_file_gets_the_report(
    graphlint, reuse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert graphlint("run", "--output", "report.txt", str(reuse)).code == 1
    assert "GL101" in Path("report.txt").read_text()
    assert graphlint("run", str(reuse)).code == 2
