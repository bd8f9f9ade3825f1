"""An audit takes from the nearest config file how to judge, and nothing about how to run."""

import pytest

import graphlint
from graphlint.errors import FindingsError, UsageError


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "pyproject.toml").write_text(f"[tool.graphlint]\n{text}\n")

    return write


def audited(trainer, **options):
    with graphlint.audit(**options) as audit:
        for _ in range(2):
            trainer.bad()
    return audit.report


def codes(report):
    return [finding.code for finding in report.findings]


def test_rules_are_chosen_by_the_file_and_the_arguments_win(config, trainer):
    config("ignore = ['GL201']")
    assert codes(audited(trainer)) == []
    assert codes(audited(trainer, select="GL201")) == ["GL201"]
    assert codes(audited(trainer, on_finding="raise")) == []


def test_per_file_ignores(config, trainer):
    config("[tool.graphlint.per-file-ignores]\n'*/tests/*' = ['GL201']")
    report = audited(trainer)
    assert codes(report) == []
    assert [one.by for one in report.suppressed] == ["per-file-ignores"]


def test_how_to_run_is_not_the_files_business(config, trainer, capsys):
    config("steps = 1\nsimulate = ['cuda']\nlevel = 'watch'\nfail-on = 'never'")
    with pytest.raises(FindingsError):
        audited(trainer, on_finding="raise")
    audited(trainer)
    assert "in 2 steps (all at full level)" in capsys.readouterr().err


def test_a_slip_in_the_file_is_said_before_anything_is_recorded(config, trainer):
    config("selct = ['GL1']")
    with pytest.raises(UsageError, match="unknown key 'selct'; known keys: baseline"):
        audited(trainer)


def test_hints_do_not_raise_and_are_shown_on_demand(config, trainer, capsys):
    def good():
        with graphlint.audit(steps=1, on_finding="raise") as audit, graphlint.expect("GL101"):
            for _ in range(3):
                trainer.good()
        return audit.report

    assert codes(good()) == ["GL901"]
    said = capsys.readouterr().err
    assert "  info         1 not shown (GL901); show-info = true in pyproject.toml prints them\n" in said
    config("show-info = true")
    good()
    assert "GL901 unused-suppression (info)" in capsys.readouterr().err
