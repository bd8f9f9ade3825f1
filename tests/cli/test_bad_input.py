"""Every mistake of the user's is one line on stderr and exit code 2, before anything runs."""

import json
import os
import stat
from pathlib import Path

import pytest

SCRIPT = "import pathlib\npathlib.Path('was_run').touch()\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\nif x\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing command"),
        (("bogus",), "No such command 'bogus'"),
        (("run",), "no script given"),
        (("run", "--nonsense", "script.py"), "No such option"),
        (("run", "missing.py"), "can't read the script missing.py: No such file"),
        (("run", "."), ". is a directory"),
        (("run", "broken.py"), "broken.py:2: not valid Python: expected ':'"),
        (("run", "-m", "no_such_module_of_tests"), "no module named no_such_module_of_tests"),
        (("run", "-m"), "requires an argument"),
        (("run", "--steps", "0", "script.py"), "0 is not in the range"),
        (("run", "--steps", "x", "script.py"), "'x' is not a valid integer"),
        (("run", "--format", "xml", "script.py"), "'xml' is not one of 'text', 'json'"),
        (("run", "--level", "high", "script.py"), "'high' is not one of 'auto', 'full', 'watch'"),
        (("run", "--fail-on", "all", "script.py"), "'all' is not one of 'error', 'warning', 'info', 'never'"),
        (("run", "--simulate", "tpu", "script.py"), "unknown device 'tpu'; cuda and cuda:N can be simulated"),
        (("run", "--select", "GL999", "script.py"), "unknown rule 'GL999'; known rules: GL101"),
        (("run", "--ignore", "GL", "script.py"), "no rule is left"),
        (("run", "--trace", "t.txt", "script.py"), "t.txt names no trace; end it in .jsonl or .jsonl.gz"),
        (("run", "--trace", "no/t.jsonl", "script.py"), "can't write the trace to no/t.jsonl: No such file"),
        (("run", "--output", "no/r.txt", "script.py"), "can't write the report to no/r.txt: No such file"),
        (("run", "--output", ".", "script.py"), "can't write the report to .: Is a directory"),
        (("run", "--graphs", "file", "script.py"), "can't write graphs to file: File exists"),
        (("run", "--graphs", "file/in", "script.py"), "can't write graphs to file/in: Not a directory"),
        (("run", "--output", "script.py", "script.py"), "script.py is used twice"),
        (("run", "--output", "a.jsonl", "--trace", "./a.jsonl", "script.py"), "a.jsonl is used twice"),
        (("check",), "Missing argument 'TRACE'"),
        (("check", "missing.jsonl"), "missing.jsonl: can't be read: No such file"),
        (("check", "script.py"), "script.py:1: not a graphlint trace"),
        (("check", "file"), "file: empty: not a graphlint trace"),
        (("draw", "file", "--graphs", "x"), "file: empty: not a graphlint trace"),
        (("draw", "file"), "Missing option '--graphs'"),
        (("explain", "GL999"), "unknown rule 'GL999'; known rules: GL101"),
        (("rules", "--format", "yaml"), "'yaml' is not one of"),
    ],
)
def test_one_line_and_2(graphlint, script: Path, arguments: tuple[str, ...], words: str) -> None:
    result = graphlint(*arguments)
    assert result.code == 2
    assert words in result.error_line
    assert result.out == ""
    assert not Path("was_run").exists()
    assert not list(Path.cwd().glob("*.jsonl"))
    assert script.read_text() == SCRIPT


@pytest.mark.parametrize(
    "arguments", [(), ("missing.py",), (".",), ("broken.py",), ("-m", "no_such_module_of_tests"), ("-x",)]
)
def test_a_wrong_script_ends_like_any_wrong_argument(graphlint, script: Path, arguments) -> None:
    result = graphlint("run", *arguments)
    assert result.code == 2
    assert result.error_line.endswith(" (see graphlint run --help)")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_script(graphlint, script: Path) -> None:
    script.chmod(0)
    assert "Permission denied" in graphlint("run", "script.py").error_line
    script.chmod(stat.S_IRUSR)


def test_truncated_trace_is_judged_as_far_as_it_goes(graphlint, reuse: Path) -> None:
    graphlint("run", "--trace", "whole.jsonl", "reuse.py")
    whole = Path("whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("cut.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    result = graphlint("check", "cut.jsonl")
    assert result.code == 1
    assert "GL101" in result.out
    assert "graphlint: 1 error in 2 steps (all at full level); " in result.out
    assert "the place where the trace breaks off" in " ".join(result.out.split())


def test_truncated_trace_without_findings_is_not_clean(graphlint, clean: Path) -> None:
    graphlint("run", "--trace", "whole.jsonl", "clean.py")
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("cut.jsonl").write_bytes(b"".join(lines[:-1]))
    result = graphlint("check", "cut.jsonl")
    assert (result.code, result.out) == (2, "")
    assert result.error_line == (
        "nothing was found in the 4 steps that the trace holds, but it breaks off before the run ended"
    )
    document = json.loads(graphlint("check", "--format", "json", "cut.jsonl").out)
    assert document["run"]["steps"] == 4
    assert {rule["outcome"] for rule in document["rules"]} == {"not-checked"}
    assert document["rules"][0]["reason"].startswith("found nothing in 4 steps, but the trace breaks off")


def test_truncated_trace_without_a_step_was_not_checked(graphlint, clean: Path) -> None:
    graphlint("run", "--trace", "whole.jsonl", "clean.py")
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("cut.jsonl").write_bytes(lines[0])
    result = graphlint("check", "cut.jsonl")
    assert (result.code, result.out) == (2, "")
    assert result.error_line == (
        "nothing was checked: the trace breaks off before the first backward or optimizer step"
    )


def test_rules_that_lack_their_data_are_not_clean(graphlint, clean: Path) -> None:
    result = graphlint("run", "--level", "watch", "--select", "GL401", "clean.py")
    assert result.code == 2
    assert result.error_line.startswith("nothing was checked: ")
    assert "full level" in result.error_line


def test_corrupt_trace_names_its_line(graphlint, reuse: Path) -> None:
    graphlint("run", "--trace", "whole.jsonl", "reuse.py")
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("bad.jsonl").write_bytes(b"".join([*lines[:3], b"{}\n", *lines[4:]]))
    result = graphlint("check", "bad.jsonl")
    assert result.code == 2
    assert result.error_line.startswith("bad.jsonl:4: not a trace record")


def test_another_traces_version_is_named(graphlint, script: Path) -> None:
    Path("new.jsonl").write_text('{"record":"header","format":"graphlint-trace","version":99}\n')
    result = graphlint("check", "new.jsonl")
    assert result.error_line == "new.jsonl:1: trace version 99; this graphlint reads version 1"


def test_a_reader_that_went_away_is_one_line(graphlint, reuse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphlint("run", "--trace", "whole.jsonl", "reuse.py")
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        result = graphlint("check", "whole.jsonl")
    assert result.code == 2
    assert result.error_line == "can't write the report: Broken pipe"


def test_a_full_disk_is_one_line(graphlint, reuse: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    result = graphlint("run", "--output", "/dev/full", "reuse.py")
    assert result.code == 2
    assert result.err.splitlines()[-1] == "graphlint: error: can't write the report: No space left on device"


def test_own_fault_shows_its_traceback_and_asks_for_the_trace(
    graphlint, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("graphlint.lint.policy.judge", broken)
    result = graphlint("run", "clean.py")
    assert result.code == 2
    assert result.err.startswith("Traceback (most recent call last):\n")
    assert "LookupError: a bug of ours\n" in result.err
    assert "a fault of graphlint's own; please report it" in result.err
    assert "--trace FILE.jsonl.gz" in result.err


def test_own_fault_at_the_start_leaves_the_script_and_shows_itself(
    graphlint, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("graphlint.capture.session.Session.__enter__", broken)
    result = graphlint("run", "clean.py")
    assert (result.code, result.out) == (2, "")
    assert "LookupError: a bug of ours\n" in result.err
    assert "a fault of graphlint's own" in result.err


def test_a_trace_that_cannot_be_written_after_all_is_one_line(
    graphlint, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphlint.cli.outputs.check_trace_file", lambda path: Path.cwd() / "gone" / path)
    result = graphlint("run", "--trace", "t.jsonl", "clean.py")
    assert (result.code, result.out) == (2, "")
    assert "can't write the trace" in result.error_line
