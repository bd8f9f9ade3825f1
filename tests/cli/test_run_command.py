"""`graphlint run`: what it prints where, and its exit code."""

import json
import os
from pathlib import Path

import pytest

REUSED = "reuse.py:9: GL101 freed-graph-reuse (error)\n"


def test_report_follows_on_stderr_and_stdout_stays_the_scripts(graphlint, clean) -> None:
    result = graphlint("run", "clean.py")
    assert result.code == 0
    assert result.out == "trained\n"
    assert result.err.startswith("graphlint: no findings in 4 steps")


def test_traceback_comes_before_the_report_and_a_finding_that_explains_it_gives_1(graphlint, reuse) -> None:
    result = graphlint("run", "reuse.py")
    assert result.code == 1
    before, _, after = result.err.partition(REUSED)
    assert before.startswith("Traceback (most recent call last):\n")
    *_, message, blank = before.splitlines()
    assert message.startswith("RuntimeError: Trying to backward through the graph a second time")
    assert blank == ""
    assert "`loss.backward()` enters a graph" in after


def test_a_failure_that_no_finding_explains_gives_3(graphlint, tmp_path: Path, clean) -> None:
    clean.write_text(clean.read_text() + "raise ValueError('mine')\n")
    result = graphlint("run", "clean.py")
    assert result.code == 3
    assert "ValueError: mine" in result.err


def test_a_failing_exit_code_gives_3_and_a_good_one_0(graphlint, clean) -> None:
    text = clean.read_text()
    clean.write_text(text + "import sys\nsys.exit(4)\n")
    assert graphlint("run", "clean.py").code == 3
    clean.write_text(text + "import sys\nsys.exit(0)\n")
    assert graphlint("run", "clean.py").code == 0


def test_fail_on_moves_the_bar(graphlint, detached) -> None:
    assert graphlint("run", "--fail-on", "error", "detached.py").code == 1
    assert graphlint("run", "--fail-on", "never", "detached.py").code == 0


def test_select_and_ignore_take_prefixes_lists_and_repeats(graphlint, detached) -> None:
    assert graphlint("run", "--select", "GL1,GL4", "detached.py").code == 0
    assert graphlint("run", "--select", "GL101", "--select", "GL201", "detached.py").code == 1
    assert graphlint("run", "--ignore", "detached-loss,GL1", "detached.py").code == 0


def test_quiet_prints_findings_only(graphlint, clean, detached) -> None:
    assert graphlint("run", "--quiet", "clean.py") == (0, "trained\n", "")
    err = graphlint("run", "--quiet", "detached.py").err
    assert "GL201" in err
    assert "graphlint:" not in err


def test_arguments_after_the_script_are_the_scripts(graphlint, clean) -> None:
    clean.write_text(clean.read_text() + "import sys\nprint(sys.argv)\n")
    result = graphlint("run", "--quiet", "clean.py", "--steps", "1", "--quiet", "--", "-m", "x")
    assert result.out == "trained\n['clean.py', '--steps', '1', '--quiet', '--', '-m', 'x']\n"


@pytest.mark.parametrize("spelling", [("-m", "clean"), ("-mclean",)])
def test_arguments_after_a_module_are_the_modules(graphlint, clean, spelling) -> None:
    clean.write_text(clean.read_text() + "import sys\nprint(sys.argv[1:], __spec__.name)\n")
    result = graphlint("run", "--steps", "9", "--quiet", *spelling, "--steps", "1", "--", "-m")
    assert result.out == "trained\n['--steps', '1', '--', '-m'] clean\n"


def test_steps_stop_the_run(graphlint, clean) -> None:
    result = graphlint("run", "--steps", "2", "clean.py")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("graphlint: no findings in 2 steps")


def test_json_goes_to_stdout_after_the_scripts_output(graphlint, clean) -> None:
    result = graphlint("run", "--format", "json", "clean.py")
    assert result.code == 0
    assert result.err == ""
    first, _, rest = result.out.partition("\n")
    assert first == "trained"
    document = json.loads(rest)
    assert (document["version"], document["run"]["ended"], document["findings"]) == (1, "finished", [])


def test_output_takes_the_report_and_only_that(graphlint, reuse, tmp_path: Path) -> None:
    result = graphlint("run", "--format", "json", "--output", "report.json", "reuse.py")
    assert result.code == 1
    assert result.out == ""
    assert result.err.endswith("graphlint: report written to report.json\n")
    document = json.loads((tmp_path / "report.json").read_text())
    assert [(found["code"], found["path"], found["line"]) for found in document["findings"]] == [
        ("GL101", "reuse.py", 9)
    ]
    text = graphlint("run", "--output", "report.txt", "reuse.py")
    assert REUSED not in text.err
    assert (tmp_path / "report.txt").read_text().startswith(REUSED)


def test_output_is_found_again_after_the_script_changed_directory(graphlint, clean, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    clean.write_text(clean.read_text() + "import os\nos.chdir('elsewhere')\n")
    options = ("--output", "drawn/report.txt", "--trace", "run.jsonl", "--graphs", "drawn")
    assert graphlint("run", *options, "clean.py").code == 0
    assert (tmp_path / "drawn" / "report.txt").stat().st_size > 0
    assert (tmp_path / "run.jsonl").stat().st_size > 0
    assert list((tmp_path / "drawn").glob("*.svg"))


def test_trace_and_graphs_are_written_and_named(graphlint, reuse, tmp_path: Path) -> None:
    result = graphlint("run", "--trace", "run.jsonl.gz", "--graphs", "drawn/deep", "reuse.py")
    assert result.code == 1
    drawn = list((tmp_path / "drawn" / "deep").glob("*.svg"))
    assert len(drawn) == 2
    assert result.err.splitlines()[-2:] == [
        "graphlint: 2 graphs drawn in drawn/deep",
        "graphlint: trace saved in run.jsonl.gz",
    ]
    again = graphlint("draw", "run.jsonl.gz", "--graphs", "again")
    assert sorted(again.out.splitlines()) == sorted(f"again/{path.name}" for path in drawn)


def test_cuda_without_a_gpu_ends_with_its_error_and_one_hint(graphlint, tmp_path: Path) -> None:
    (tmp_path / "gpu.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
    result = graphlint("run", "gpu.py")
    assert result.code == 3
    assert "Torch not compiled with CUDA enabled" in result.err
    hints = [line for line in result.err.splitlines() if "hint:" in line]
    assert len(hints) == 1
    assert f"\n\n{hints[0]}\ngraphlint: " in result.err
    assert "--simulate cuda" in hints[0]


@pytest.mark.parametrize(("simulate", "hinted"), [("cuda", 1), ("cuda:1", 0)])
def test_a_simulated_device_too_few_is_one_hint(
    graphlint, simulate: str, hinted: int, tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text(
        "import torch\nx = torch.ones(2).to('cuda:1')\nassert x.device.index == 1\n"
    )
    result = graphlint("run", "--simulate", simulate, "two.py")
    hints = [line for line in result.err.splitlines() if "hint:" in line]
    assert len(hints) == hinted
    assert ("invalid device ordinal" in result.err) == bool(hinted)
    assert all("--simulate cuda:1 gives it a second one" in hint for hint in hints)


def test_simulated_cuda_runs_it(graphlint, clean) -> None:
    clean.write_text(clean.read_text().replace("nn.Linear(2, 1)", "nn.Linear(2, 1).to('cuda')"))
    clean.write_text(clean.read_text().replace("torch.ones(1, 2)", "torch.ones(1, 2, device='cuda')"))
    result = graphlint("run", "--simulate", "cuda", "--format", "json", "--output", "r.json", "clean.py")
    assert "hint" not in result.err
    assert result.code == 0, result.err
    assert json.loads(Path("r.json").read_text())["run"]["simulated"] == ["cuda"]


def test_a_script_that_never_trains_is_one_line_and_2(graphlint, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('hello')\n")
    result = graphlint("run", "idle.py")
    assert (result.code, result.out) == (2, "hello\n")
    assert result.error_line.startswith("nothing was checked: no backward and no optimizer step was recorded")


def test_training_in_another_thread_is_said_to_be_there(graphlint, clean) -> None:
    body = clean.read_text().replace("\n", "\n    ")
    clean.write_text(
        f"import threading\ndef main():\n    {body}\nimport torch\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
    )
    result = graphlint("run", "clean.py")
    assert (result.code, result.out) == (2, "trained\n")
    assert "backward calls in other threads than the one that graphlint was started in" in result.error_line
    assert "name a script" not in result.error_line


def test_a_script_that_only_fails_is_its_own_failure(graphlint, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import nothing_of_that_name\n")
    result = graphlint("run", "fails.py")
    assert result.code == 3
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in result.err


def test_interrupted_runs_are_reported(graphlint, clean) -> None:
    clean.write_text(clean.read_text() + "import signal\nsignal.raise_signal(signal.SIGINT)\n")
    result = graphlint("run", "clean.py")
    assert result.code == 0
    assert "KeyboardInterrupt\n\ngraphlint: no findings in 4 steps" in result.err


def test_a_closed_stdout_does_not_hide_the_report(graphlint, clean, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        result = graphlint("run", "clean.py")
    assert result.code == 0
    assert result.err.startswith("graphlint: no findings in 4 steps")
    assert "BrokenPipe" not in result.err
