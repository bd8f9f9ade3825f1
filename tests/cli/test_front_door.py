"""What works without torch does so in a fresh interpreter; the commands that read saved traces and rules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphlint.cli.main import UNREAD
from graphlint.version import __version__

HEAVY = ("torch", "rich", "networkx", "graphviz", "jinja2", "torchviz")

LOADED = "import sys; print([name for name in {names!r} if name in sys.modules])"


def python(source: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=120,
    )


@pytest.mark.parametrize(
    "command", [["explain", "GL101"], ["rules"], ["rules", "--format", "json"], ["--help"]]
)
def test_a_reader_that_has_gone_is_met_in_silence(command: list[str], tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "graphlint", *command],
            check=False,
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (UNREAD, "")


@pytest.mark.parametrize(
    "statement",
    ["import graphlint", "from graphlint import audit, step", "import graphlint.cli.main"],
)
def test_front_door_imports_nothing_heavy(statement: str, tmp_path: Path) -> None:
    result = python(f"{statement}; {LOADED.format(names=HEAVY)}", tmp_path)
    assert result.stdout == "[]\n", result.stderr


def test_the_proof_can_fail(tmp_path: Path) -> None:
    result = python(f"import graphlint.cli.main; {LOADED.format(names=('click', 'xmlrpc'))}", tmp_path)
    assert result.stdout == "['click']\n"


def test_saved_traces_are_judged_and_drawn_without_torch(graphlint, reuse: Path, tmp_path: Path) -> None:
    first = graphlint("run", "--trace", "t.jsonl", "--quiet", "reuse.py")
    source = f"""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
from graphlint.cli.main import main
print(main(["check", "t.jsonl", "--quiet"]))
print(main(["check", "t.jsonl", "--format", "json", "--output", "r.json"]))
print(main(["draw", "t.jsonl", "--graphs", "drawn"]))
print(main(["rules"]))
print(main(["explain", "GL101"]))
{LOADED.format(names=("torch",))}
"""
    result = python(source, tmp_path)
    assert result.returncode == 0, result.stderr
    report = first.err[first.err.index("reuse.py:9: GL101") :]
    assert result.stdout.startswith(report)
    lines = result.stdout.splitlines()
    assert lines.count("1") == 2
    assert lines.count("0") == 3
    assert lines[-1] == "[]"
    assert json.loads((tmp_path / "r.json").read_text())["findings"][0]["code"] == "GL101"
    drawn = [line for line in lines if line.endswith(".svg")]
    assert drawn
    assert all((tmp_path / path).is_file() for path in drawn)


def test_check_gives_the_report_of_the_run(graphlint, detached: Path, tmp_path: Path) -> None:
    ran = graphlint("run", "--trace", "t.jsonl.gz", "--format", "json", "--output", "a.json", "detached.py")
    checked = graphlint("check", "t.jsonl.gz", "--format", "json", "--output", "b.json")
    assert (ran.code, checked.code) == (1, 1)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert graphlint("check", "--fail-on", "never", "t.jsonl.gz").code == 0
    assert graphlint("check", "--select", "GL101", "t.jsonl.gz").code == 0


def test_check_refuses_to_write_over_its_trace(graphlint, clean: Path) -> None:
    graphlint("run", "--trace", "t.jsonl", "clean.py")
    before = Path("t.jsonl").read_bytes()
    assert "used twice" in graphlint("check", "t.jsonl", "--output", "t.jsonl").error_line
    assert Path("t.jsonl").read_bytes() == before


def test_check_of_a_trace_without_training_is_one_line(graphlint, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("x = 1\n")
    graphlint("run", "--trace", "t.jsonl", "idle.py")
    result = graphlint("check", "t.jsonl")
    assert result.code == 2
    assert result.error_line.startswith("nothing was checked")
    assert "holds no backward" in graphlint("draw", "t.jsonl", "--graphs", "drawn").error_line


def test_rules_lists_every_rule_file(graphlint) -> None:
    import graphlint as package

    files = sorted(Path(package.__file__).parent.glob("rules/gl*.py"))
    rows = json.loads(graphlint("rules", "--format", "json").out)
    assert [row["code"].lower() for row in rows] == [path.name[:5] for path in files]
    assert {tuple(row) for row in rows} == {("code", "name", "severity", "since", "summary")}
    text = graphlint("rules").out.splitlines()
    assert [line.split()[:3] for line in text] == [
        [row["code"], row["name"], row["severity"]] for row in rows
    ]


@pytest.mark.parametrize("asked", ["GL101", "gl101", "freed-graph-reuse"])
def test_explain_prints_the_page(graphlint, asked: str) -> None:
    from graphlint.rules import gl101_freed_graph_reuse as rule

    result = graphlint("explain", asked)
    assert result.code == 0
    assert result.out.startswith("GL101 freed-graph-reuse (error, since ")
    page = [line.strip() for line in (rule.__doc__ or "").splitlines() if line.strip()]
    printed = [line.strip() for line in result.out.splitlines()]
    assert all(line.removeprefix("## ") in printed for line in page)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("GL301", "# graphlint: ignore[GL301] reason"),
        ("GL301", 'with graphlint.expect("GL301", reason="..."):'),
        ("GL301", "per-file-ignores"),
        ("GL901", "# graphlint: ignore[GL301, GL901]"),
    ],
)
def test_explain_says_how_to_declare_it_as_meant(graphlint, code: str, words: str) -> None:
    text = graphlint("explain", code).out
    assert text.count("\nIf it is meant\n") == 1
    assert words in text[text.index("If it is meant") :]


def test_version_and_help(graphlint) -> None:
    assert graphlint("--version") == (0, f"graphlint {__version__}\n", "")
    for arguments in (("--help",), ("-h",), ("run", "-h"), ("check", "--help"), ("draw", "-h")):
        result = graphlint(*arguments)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Usage: graphlint")
        assert "\\b" not in result.out
        assert "\b" not in result.out


def test_help_lists_one_exit_code_a_line(graphlint) -> None:
    lines = [line.strip() for line in graphlint("--help").out.splitlines()]
    begin = lines.index("Exit codes:") + 1
    assert [line[:3] for line in lines[begin : begin + 4]] == ["0  ", "1  ", "2  ", "3  "]


def test_python_m_graphlint_is_the_command(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "graphlint", "run", "missing.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert result.returncode == 2
    reason = "can't read the script missing.py: No such file or directory"
    assert result.stderr == f"graphlint: error: {reason} (see graphlint run --help)\n"
