"""A baseline puts aside what it holds and nothing else, whatever moved; a broken one is one line."""

import json
import os
import re
import stat
from pathlib import Path

import msgspec
import pytest

from graphlint.errors import UsageError
from graphlint.lint import baseline as baselines
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.events import Backward
from graphlint.record.identity import Serial, SiteId

SOURCE = "def train():\n    a()\n    b()\n    b()\n"


@pytest.fixture
def project(tmp_path, make_trace, make_rule):
    """Judges a project in a directory whose one file is flagged at some lines."""

    def run(*lines, source=SOURCE, path="src/train.py", root=tmp_path, cwd=None, checked=True, **end):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)

        def check(facts):
            for line in lines:
                yield Occurrence(message="m.", labels=(Label(path=str(file), line=line, text="l"),), fix="f.")

        event = Backward(serial=Serial(0), end=Serial(0), call="Tensor.backward", roots=(), site=SiteId(0))
        trace = make_trace(
            [event],
            sources={str(file): source},
            sites=[(str(file), line, "train") for line in (lines or (2,))],
            directory=str(cwd or root),
            **end,
        )
        rules = [make_rule("GL301", check), make_rule("GL302")]
        return judge(trace, Selection(select=() if checked else ("GL302",)), rules), trace

    return run


def written(made, path):
    baseline = baselines.of(*made, path)
    baselines.save(baseline, path)
    return baselines.load(path)


def left(baseline, made):
    report = baseline.use(*made)
    return [one.line for one in report.findings]


def test_what_it_holds_is_put_aside(project, tmp_path):
    baseline = written(project(2, 3), tmp_path / "b.json")
    report = baseline.use(*project(2, 3, 4))
    assert [one.line for one in report.findings] == [4]
    assert [(one.finding.line, one.by) for one in report.suppressed] == [(2, "baseline"), (3, "baseline")]
    assert report.baseline is not None
    assert (report.baseline.entries, report.baseline.matched, report.baseline.gone) == (2, 2, ())


def test_it_survives_moved_lines_and_edits_elsewhere(project, tmp_path):
    baseline = written(project(2), tmp_path / "b.json")
    assert left(baseline, project(7, source="import os\n\n\nx = 1\n\n" + SOURCE)) == []
    edited = "def train():\n    a( )  # why\n    c()\n"
    assert left(baseline, project(2, source=edited)) == []
    assert left(baseline, project(2, source=SOURCE.replace("a()", "a(1)"))) == [2]


def test_it_survives_another_working_directory_and_checkout(project, tmp_path):
    baseline = written(project(2), tmp_path / "b.json")
    assert left(baseline, project(2, cwd=tmp_path / "src")) == []
    other = tmp_path / "elsewhere"
    moved = msgspec.structs.replace(baseline, directory=other)
    assert left(moved, project(2, root=other)) == []


def test_it_survives_a_renamed_directory(project, tmp_path):
    baseline = written(project(2), tmp_path / "b.json")
    (tmp_path / "src" / "train.py").unlink()
    assert left(baseline, project(2, path="lib/train.py")) == []


def test_the_same_fault_in_a_like_named_file_is_another(project, tmp_path):
    baseline = written(project(2), tmp_path / "b.json")
    assert left(baseline, project(2, path="copy/train.py")) == [2]


def test_a_trace_of_another_machine_is_told_by_the_end_of_its_paths(project, tmp_path):
    (tmp_path / "here").mkdir()
    baseline = written(project(2, root=tmp_path / "here"), tmp_path / "here" / "b.json")
    assert left(baseline, project(2, root=tmp_path / "there")) == []
    assert left(baseline, project(2, root=tmp_path / "there", path="copy/train.py")) == [2]


def test_entries_that_are_gone_are_named(project, tmp_path):
    baseline = written(project(2, 3), tmp_path / "b.json")
    report = baseline.use(*project(3))
    assert report.baseline is not None
    assert [(entry.code, entry.path) for entry in report.baseline.gone] == [("GL301", "src/train.py")]


@pytest.mark.parametrize(
    "fields", [{"checked": False}, {"how": "error", "exit_code": 1}, {"how": "steps"}, {"path": "other.py"}]
)
def test_entries_of_which_the_run_cannot_tell_are_not_called_gone(project, tmp_path, fields):
    baseline = written(project(2), tmp_path / "b.json")
    report = baseline.use(*project(**fields))
    assert report.baseline is not None
    assert report.baseline.gone == ()


def test_writing_again_keeps_what_the_run_cannot_tell(project, tmp_path):
    path = tmp_path / "b.json"
    old = written(project(2, 3), path)
    plain = project(3, 4)
    new = baselines.merged(baselines.of(*plain, path), old, old.use(*plain).baseline)
    assert sorted(one.fingerprint for one in new.entries) == sorted(
        one.fingerprint for one in plain[0].findings
    )
    other = project(2, path="other.py")
    both = baselines.merged(baselines.of(*other, path), old, old.use(*other).baseline)
    assert [one.path for one in both.entries] == ["other.py", "src/train.py", "src/train.py"]


def test_the_file_is_stable_and_says_where(project, tmp_path):
    path = tmp_path / "b.json"
    written(project(3, 2), path)
    first = path.read_bytes()
    written(project(2, 3), path)
    assert path.read_bytes() == first
    document = json.loads(first)
    assert (document["format"], document["version"]) == ("graphlint-baseline", 1)
    assert {(one["code"], one["path"], one["message"]) for one in document["findings"]} == {
        ("GL301", "src/train.py", "m.")
    }
    assert first.endswith(b"}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is not a graphlint baseline: "),
        (b"{", "is not a graphlint baseline: "),
        (b"[]", "is not a graphlint baseline: "),
        (b"\xff\xfe", "is not a graphlint baseline: "),
        (b"[" * 100_000, "is not a graphlint baseline: "),
        (b"{}", "is not a graphlint baseline; write one with --write-baseline"),
        (b'{"format": "other", "version": 1}', "is not a graphlint baseline; write one"),
        (
            b'{"format": "graphlint-baseline", "version": 9}',
            "baseline version 9; this graphlint reads version 1",
        ),
        (b'{"format": "graphlint-baseline", "version": "1"}', "is not a graphlint baseline: "),
        (b'{"format": "graphlint-baseline", "version": 1}', "missing required field `findings`"),
        (
            b'{"format": "graphlint-baseline", "version": 1, "findings": [{"code": "GL1"}]}',
            "missing required",
        ),
        (b'{"format": "graphlint-baseline", "version": 1, "findings": [], "new": 1}', "unknown field `new`"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, words):
    path = tmp_path / "b.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        baselines.load(path)
    assert "b.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"can't read the baseline .*b\.json: No such file"):
        baselines.load(tmp_path / "b.json")


def test_a_write_that_fails_leaves_what_was_there(project, tmp_path, monkeypatch):
    path = tmp_path / "b.json"
    written(project(2), path)
    before = path.read_bytes()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match=r"can't write the baseline .*No space left"):
        baselines.save(baselines.of(*project(2, 3), path), path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["b.json"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_file_has_an_ordinary_mode_and_links_are_followed(project, tmp_path):
    path = tmp_path / "b.json"
    (tmp_path / "kept").mkdir()
    path.symlink_to(tmp_path / "kept" / "real.json")
    written(project(2), path)
    assert path.is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"])
def test_a_path_that_no_file_can_have_is_like_one_that_is_gone(project, tmp_path, path):
    baseline = written(project(2), tmp_path / "b.json")
    (entry,) = baseline.entries
    odd = msgspec.structs.replace(baseline, entries=(msgspec.structs.replace(entry, path=path),))
    assert left(odd, project(2)) == []
