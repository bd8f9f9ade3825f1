"""Which files a pattern fits, and what wins when a config file and the caller both choose rules."""

import msgspec
import pytest

from graphlint.errors import UsageError
from graphlint.lint import policy as policies
from graphlint.lint.config import Config
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.policy import Policy, fits, make_policy
from graphlint.lint.runner import judge


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("train.py", "train.py"),
        ("train.py", "deep/down/train.py"),
        ("*.py", "deep/train.py"),
        ("tests/*", "tests/test_a.py"),
        ("tests/*", "tests/deep/test_a.py"),
        ("tests/**", "tests/deep/test_a.py"),
        ("tests/**/test_*.py", "tests/deep/down/test_a.py"),
        ("**/test_*.py", "test_a.py"),
        ("**/test_*.py", "deep/test_a.py"),
        ("tests", "tests/deep/test_a.py"),
        ("tests/", "tests/test_a.py"),
        ("./tests/*", "tests/test_a.py"),
        ("experiments/[ab]*.py", "experiments/b1.py"),
        ("/abs/*.py", "/abs/x.py"),
    ],
)
def test_pattern_fits(pattern, path):
    assert fits(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("train.py", "train_all.py"),
        ("tests/*", "src/tests/test_a.py"),
        ("tests", "tests2/a.py"),
        ("Tests/*", "tests/a.py"),
        ("*.pyi", "a.py"),
        ("a/b.py", "b.py"),
        ("", "a.py"),
    ],
)
def test_pattern_does_not_fit(pattern, path):
    assert not fits(pattern, path)


@pytest.fixture
def rules(make_rule):
    def flags(facts):
        for path in ("/home/me/tests/a.py", "/home/me/train.py", "/opt/x.py"):
            yield Occurrence(message="m.", labels=(Label(path=path, line=1, text="l"),), fix="f.")

    return [make_rule("GL101", flags), make_rule("GL201"), make_rule("GL202")]


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), {"GL201"}),
        (("GL101",), (), {"GL101"}),
        (("GL1", "GL202"), ("GL202",), {"GL101"}),
        (("GL202",), (), {"GL202"}),
    ],
)
def test_the_caller_wins(rules, select, ignore, expected):
    config = Config(select=("GL2",), ignore=("GL202",))
    policy = make_policy(config, rules, select=select, ignore=ignore)
    assert policy.selection.codes(rules) == expected


def test_an_ignore_of_the_callers_is_added(rules):
    policy = make_policy(Config(ignore=("GL202",)), rules, ignore=("GL201",))
    assert policy.selection.codes(rules) == {"GL101"}
    with pytest.raises(UsageError, match="no rule is left"):
        make_policy(Config(select=("GL201",)), rules, ignore=("GL201",))


@pytest.mark.parametrize(
    ("directory", "per_file", "left"),
    [
        ("/home/me", ("tests/*", ("GL1",)), ["train.py", "/opt/x.py"]),
        ("/home", ("me/tests/*", ("fault-gl101",)), ["train.py", "/opt/x.py"]),
        ("/home/me", ("*.py", ("GL101",)), []),
        ("/home/me", ("/opt/*", ("GL101",)), ["tests/a.py", "train.py"]),
        ("/home/me", ("*.py", ("GL202", "GL201")), ["tests/a.py", "train.py", "/opt/x.py"]),
        ("/srv", ("train.py", ("GL101",)), ["tests/a.py", "/opt/x.py"]),
    ],
)
def test_findings_in_some_files_are_put_aside(
    make_trace, rules, monkeypatch, tmp_path, directory, per_file, left
):
    monkeypatch.setattr(policies, "judge", lambda trace, selection: judge(trace, selection, rules))
    policy = Policy(per_file=(per_file,), directory=tmp_path.__class__(directory))
    report = policy.judge(make_trace())
    assert {one.path.removeprefix("/home/me/") for one in report.findings} == set(left)
    assert {one.by for one in report.suppressed} <= {"per-file-ignores"}
    assert len(report.findings) + len(report.suppressed) == 3
    assert msgspec.json.encode(report.suppressed)
