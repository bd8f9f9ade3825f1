"""What is declared as meant, from the command line to the exit code: comments, blocks, config, baselines."""

import json
import os
from pathlib import Path

import pytest

DETACHED = """\
import torch
from torch import nn
import graphlint
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scale = torch.ones(1, requires_grad=True)
for step in range({steps}):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).detach().pow(2).sum()
    (loss * scale).sum().backward()
    {step}
"""


@pytest.fixture
def script(tmp_path):
    def write(step="optimizer.step()", *, steps=3, name="train.py", head=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + DETACHED.format(step=step, steps=steps))
        return path

    return write


@pytest.fixture
def config(tmp_path):
    def write(text, name="pyproject.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def report_of(result):
    return json.loads(result.out[result.out.index("{") :])


def codes(result):
    return [finding["code"] for finding in report_of(result)["findings"]]


@pytest.fixture
def line(graphlint, script):
    """The line that GL201 points at."""
    script()
    (finding,) = report_of(graphlint("run", "--format", "json", "train.py"))["findings"]
    assert finding["code"] == "GL201"
    return finding["line"]


def comment_on(path, line, comment, *, newline="\n", encoding="utf-8"):
    lines = path.read_text().splitlines()
    lines[line - 1] += comment
    path.write_bytes(newline.join([*lines, ""]).encode(encoding))


# --- comments and blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "form"),
    [
        ("  # graphlint: ignore[GL201] a frozen model", {}),
        ("  # graphlint: ignore[gl201] a frozen model", {"newline": "\r\n"}),
        ("\t# graphlint: ignore[detached-loss] a frozen model", {}),
        ("  # noqa  # graphlint: ignore[GL2] a frozen model  # fmt: skip", {}),
    ],
)
def test_a_comment_is_obeyed_and_said_in_every_format(graphlint, script, line, comment, form):
    comment_on(script(), line, comment, **form)
    result = graphlint("run", "--trace", "t.jsonl", "train.py")
    assert result.code == 0, result.err
    assert "graphlint: no findings, 1 suppressed in 3 steps" in result.err
    assert "  suppressed   1 by comment: GL201\n" in result.err
    (one,) = report_of(graphlint("check", "--format", "json", "t.jsonl"))["suppressed"]
    assert (one["by"], one["reason"], one["path"], one["line"]) == (
        "comment",
        "a frozen model",
        "train.py",
        line,
    )
    assert one["finding"]["code"] == "GL201"
    assert graphlint("run", "--quiet", "train.py").err == ""


def test_a_source_in_another_encoding_is_read(graphlint, script, line):
    path = script(head="# -*- coding: latin-1 -*-\n")
    comment_on(path, line + 1, "  # graphlint: ignore[GL201] gr\u00fcndlich", encoding="latin-1")
    result = graphlint("run", "--format", "json", "train.py")
    assert [one["reason"] for one in report_of(result)["suppressed"]] == ["gr\u00fcndlich"]


def test_words_in_a_string_are_no_comment(graphlint, script, line):
    path = script()
    comment_on(path, line, "; note = '# graphlint: ignore[GL201]'")
    assert codes(graphlint("run", "--format", "json", "train.py")) == ["GL201"]


@pytest.mark.parametrize(("commented", "left"), [("finish", []), ("train", ["GL201", "GL901"])])
def test_a_comment_counts_in_its_own_file(graphlint, script, tmp_path, commented, left):
    comment = "  # graphlint: ignore[GL201] frozen"
    module = f"finishing_of_test_{commented}"  # imported once for all tests of this process
    (tmp_path / f"{module}.py").write_text(
        "\n" * 9 + "def finish(loss): loss.backward()" + comment * (commented == "finish")
    )
    path = script()
    text = path.read_text().replace("(loss * scale).sum().backward()", "finish((loss * scale).sum())")
    path.write_text(text.replace("import graphlint", f"from {module} import finish"))
    if commented == "train":
        comment_on(path, 10, comment)
    result = graphlint("run", "--format", "json", "train.py")
    assert codes(result) == left
    assert [one["path"] for one in report_of(result)["suppressed"]] == [f"{module}.py"] * (not left)


def test_a_comment_that_suppresses_nothing_is_reported(graphlint, script):
    script("optimizer.step()  # graphlint: ignore[GL101] once")
    result = graphlint("run", "--ignore", "GL201", "train.py")
    assert result.code == 1
    assert "train.py:11: GL901 unused-suppression (warning)" in result.err
    assert graphlint("run", "--select", "GL203", "train.py").code in {0, 1}
    assert "GL901" not in graphlint("run", "--ignore", "GL201,GL101", "train.py").err


def test_an_expected_fault_is_put_aside(graphlint, script):
    script("with graphlint.expect('GL201', reason='frozen'):\n        optimizer.step()")
    result = graphlint("run", "--format", "json", "train.py")
    assert result.code == 0
    (one,) = report_of(result)["suppressed"]
    assert (one["by"], one["reason"], one["line"]) == ("expect", "frozen", 11)


def test_a_crash_whose_cause_is_put_aside_is_still_a_crash(graphlint, reuse):
    lines = reuse.read_text().splitlines()
    result = graphlint("run", "--format", "json", "reuse.py")
    (finding,) = report_of(result)["findings"]
    assert (finding["code"], result.code) == ("GL101", 1)
    lines[finding["line"] - 1] += "  # graphlint: ignore[GL101] to see it"
    reuse.write_text("\n".join(lines))
    assert graphlint("run", "reuse.py").code == 3


# --- hints -----------------------------------------------------------------------------------------------


def test_hints_are_counted_and_shown_on_demand(graphlint, script):
    script("optimizer.step()  # graphlint: ignore[GL101] late")
    common = ("run", "--steps", "2", "--ignore", "GL201")
    result = graphlint(*common, "train.py")
    assert result.code == 0
    assert "graphlint: 1 info in 2 steps" in result.err
    assert "  info         1 not shown (GL901); --show-info prints them\n" in result.err
    assert "train.py:11: GL901" not in result.err
    shown = graphlint(*common, "--show-info", "train.py")
    assert shown.code == 0
    assert "train.py:11: GL901 unused-suppression (info)" in shown.err
    assert "not shown" not in shown.err
    assert codes(graphlint(*common, "--format", "json", "train.py")) == ["GL901"]
    failed = graphlint(*common, "--fail-on", "info", "train.py")
    assert failed.code == 1
    assert "train.py:11: GL901" in failed.err
    assert graphlint(*common, "--quiet", "train.py").err == ""


# --- config ----------------------------------------------------------------------------------------------


def test_the_config_near_the_script_counts(graphlint, script, config):
    script(name="project/src/train.py", steps=9)
    config("[tool.graphlint]\nignore = ['GL1']\n")
    config("[tool.graphlint]\nsteps = 2\nlevel = 'full'\nfail-on = 'never'\n", "project/pyproject.toml")
    result = graphlint("run", "--format", "json", "project/src/train.py")
    run = report_of(result)["run"]
    assert (run["steps"], run["level"], result.code) == (2, "full", 0)
    rules = {rule["code"]: rule["outcome"] for rule in report_of(result)["rules"]}
    assert rules["GL101"] == "clean"


def test_options_win_over_the_config(graphlint, script, config):
    script(steps=5)
    config(
        "[tool.graphlint]\nsteps = 2\nfail-on = 'never'\nlevel = 'watch'\n"
        "select = ['GL1']\nignore = ['GL102']\n"
    )
    result = graphlint("run", "--format", "json", "train.py")
    assert result.code == 0
    assert report_of(result)["run"]["steps"] == 2
    assert {rule["code"] for rule in report_of(result)["rules"] if rule["reason"] != "not selected"} >= {
        "GL101"
    }
    result = graphlint(
        *("run", "--format", "json", "--steps", "4", "--fail-on", "error", "--select", "GL201,GL102"),
        *("--level", "full", "train.py"),
    )
    assert (result.code, codes(result), report_of(result)["run"]["steps"]) == (1, ["GL201"], 4)
    assert next(rule for rule in report_of(result)["rules"] if rule["code"] == "GL102")["outcome"] == "clean"
    result = graphlint("run", "--no-config", "--format", "json", "train.py")
    assert (result.code, report_of(result)["run"]["steps"]) == (1, 5)


def test_a_config_can_be_named(graphlint, script, config):
    script()
    config("[tool.graphlint]\nselect = ['GL999']\n")
    config("[tool.graphlint]\nignore = ['GL201']\n", "ci/lint.toml")
    assert graphlint("run", "--config", "ci/lint.toml", "train.py").code == 0
    both = graphlint("run", "--config", "ci/lint.toml", "--no-config", "train.py")
    assert both.error_line == "--config and --no-config were both given; give one of them"
    config("[tool.ruff]\n", "ruff.toml")
    assert "ruff.toml has no table" in graphlint("run", "--config", "ruff.toml", "train.py").error_line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.graphlint\n", "pyproject.toml is not valid TOML"),
        ("[tool.graphlint]\nselct = ['GL101']\n", "unknown key 'selct'; known keys: baseline, fail-on, "),
        ("[tool.graphlint]\nselect = ['GL999']\n", "unknown rule 'GL999'; known rules: GL101 "),
        ("[tool.graphlint]\nsteps = '3'\n", "steps: '3' is not a whole number"),
        ("[tool.graphlint]\nsimulate = ['tpu']\n", "unknown device 'tpu'"),
        ("[tool.graphlint]\nbaseline = 'no.json'\n", "can't read the baseline"),
    ],
)
def test_a_broken_config_stops_before_the_script_runs(graphlint, tmp_path, config, text, words):
    (tmp_path / "train.py").write_text("import pathlib\npathlib.Path('was_run').touch()\n")
    config(text)
    for arguments in (("run", "train.py"), ("check", "t.jsonl")):
        result = graphlint(*arguments)
        assert result.code == 2
        assert words in result.error_line
    assert not Path("was_run").exists()


def test_rules_are_ignored_in_some_files(graphlint, script, config):
    script(name="experiments/train.py")
    config('[tool.graphlint.per-file-ignores]\n"experiments/*" = ["GL201"]\n')
    result = graphlint("run", "--trace", "t.jsonl", "--format", "json", "experiments/train.py")
    assert (result.code, codes(result)) == (0, [])
    assert [one["by"] for one in report_of(result)["suppressed"]] == ["per-file-ignores"]
    assert "1 by per-file-ignores: GL201" in graphlint("check", "t.jsonl").out
    config('[tool.graphlint.per-file-ignores]\n"tests/*" = ["GL201"]\n')
    assert graphlint("check", "t.jsonl").code == 1


def test_simulated_devices_of_the_config(graphlint, tmp_path, config):
    (tmp_path / "train.py").write_text(
        "import torch\nx = torch.ones(1, device='cuda', requires_grad=True)\nx.sum().backward()\n"
    )
    config("[tool.graphlint]\nsimulate = ['cuda']\n")
    assert report_of(graphlint("run", "--format", "json", "train.py"))["run"]["simulated"] == ["cuda"]


# --- baselines -------------------------------------------------------------------------------------------


def test_a_baseline_puts_up_with_what_was_found(graphlint, script):
    path = script()
    first = graphlint("run", "--write-baseline", "known.json", "--trace", "t.jsonl", "train.py")
    assert first.code == 0
    assert "graphlint: no findings, 1 suppressed in 3 steps" in first.err
    assert "graphlint: baseline of 1 finding written to known.json\n" in first.err
    result = graphlint("run", "--baseline", "known.json", "train.py")
    assert result.code == 0
    assert "  suppressed   1 by the baseline: GL201\n" in result.err
    assert graphlint("run", "train.py").code == 1
    path.write_text("# one\n# two\n\n" + path.read_text())
    assert graphlint("run", "--baseline", "known.json", "train.py").code == 0
    assert graphlint("check", "--baseline", "known.json", "t.jsonl").code == 0


def test_a_baseline_in_the_config_lies_beside_it(graphlint, script, config, monkeypatch, tmp_path):
    script(name="src/train.py")
    config("[tool.graphlint]\nbaseline = 'lint/known.json'\n")
    (tmp_path / "lint").mkdir()
    assert graphlint("run", "--write-baseline", "lint/known.json", "src/train.py").code == 0
    assert json.loads(Path("lint/known.json").read_text())["findings"][0]["code"] == "GL201"
    monkeypatch.chdir(tmp_path / "src")
    assert graphlint("run", "train.py").code == 0


def test_what_is_no_longer_found_is_said(graphlint, script):
    path = script()
    graphlint("run", "--write-baseline", "known.json", "train.py")
    path.write_text(path.read_text().replace(".detach()", ""))
    result = graphlint("run", "--baseline", "known.json", "train.py")
    assert result.code == 0
    said = " ".join(result.err.split())
    assert "baseline 1 of 1 entries in known.json no longer found: GL201 in train.py" in said
    document = report_of(graphlint("run", "--baseline", "known.json", "--format", "json", "train.py"))
    assert [entry["code"] for entry in document["baseline"]["gone"]] == ["GL201"]
    graphlint("run", "--baseline", "known.json", "--write-baseline", "known.json", "train.py")
    assert json.loads(Path("known.json").read_text())["findings"] == []


def test_a_run_that_proves_nothing_writes_no_baseline(graphlint, script, tmp_path):
    script()
    graphlint("run", "--write-baseline", "known.json", "train.py")
    before = Path("known.json").read_bytes()
    (tmp_path / "idle.py").write_text("x = 1\n")
    assert graphlint("run", "--write-baseline", "known.json", "idle.py").code == 2
    assert Path("known.json").read_bytes() == before


def test_one_baseline_for_two_scripts(graphlint, script):
    script()
    script(name="other.py")
    both = ("--baseline", "known.json", "--write-baseline", "known.json")
    graphlint("run", *both, "train.py")
    graphlint("run", *both, "other.py")
    assert len(json.loads(Path("known.json").read_text())["findings"]) == 2
    for name in ("train.py", "other.py"):
        result = graphlint("run", "--baseline", "known.json", name)
        assert (result.code, "no longer found" in result.err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--baseline", "no.json"), "can't read the baseline no.json: No such file or directory"),
        (("--baseline", "torn.json"), "torn.json is not a graphlint baseline: "),
        (("--baseline", "new.json"), "new.json: baseline version 2; this graphlint reads version 1"),
        (("--baseline", "."), "can't read the baseline .: Is a directory"),
        (("--write-baseline", "no/b.json"), "can't write the baseline to no/b.json: No such file"),
        (("--write-baseline", "."), "can't write the baseline to .: Is a directory"),
        (("--write-baseline", "torn.json/b.json"), "can't write the baseline to torn.json/b.json: "),
        (("--write-baseline", "train.py"), "train.py is used twice"),
        (("--write-baseline", "r.json", "--output", "r.json"), "r.json is used twice"),
        (("--baseline", "torn.json", "--output", "torn.json"), "torn.json"),
    ],
)
def test_a_wrong_baseline_stops_before_the_script_runs(graphlint, tmp_path, arguments, words):
    source = "import pathlib\npathlib.Path('was_run').touch()\n"
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "new.json").write_text('{"format": "graphlint-baseline", "version": 2, "findings": []}')
    result = graphlint("run", *arguments, "train.py")
    assert result.code == 2
    assert words in result.error_line
    assert not Path("was_run").exists()
    assert (tmp_path / "train.py").read_text() == source
    assert (tmp_path / "torn.json").read_text() == "{"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_directory_is_one_line(graphlint, script, tmp_path):
    script()
    (tmp_path / "closed").mkdir(mode=0o500)
    result = graphlint("run", "--write-baseline", "closed/b.json", "train.py")
    assert result.error_line == "can't write the baseline to closed/b.json: Permission denied"
