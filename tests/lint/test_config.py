"""A config file is found near the script, read strictly, and every slip in it lists what would be right."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlint.errors import UsageError
from graphlint.lint.config import KEYS, Config, _config, find, load


@pytest.fixture
def rules(make_rule):
    return [make_rule("GL101", name="freed-graph-reuse"), make_rule("GL201", name="detached-loss")]


@pytest.fixture
def read(tmp_path, rules, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text, *, name="pyproject.toml", encoding="utf-8"):
        Path(name).write_text(text, encoding=encoding)
        return load(Path(name), rules)

    return run


FULL = """\
[project]
name = "x"

[tool.graphlint]
select = ["GL1", "detached-loss"]
ignore = ["gl201"]
fail-on = "error"
steps = 5
simulate = ["cuda", "cuda:1"]
level = "full"
show-info = true
baseline = "lint/known.json"

[tool.graphlint.per-file-ignores]
"tests/*" = ["GL101", "GL2"]
"""


def test_every_key_is_read(read, tmp_path):
    assert read(FULL) == Config(
        file=tmp_path / "pyproject.toml",
        select=("GL1", "detached-loss"),
        ignore=("gl201",),
        per_file_ignores=(("tests/*", ("GL101", "GL2")),),
        fail_on="error",
        steps=5,
        simulate=("cuda", "cuda:1"),
        level="full",
        show_info=True,
        baseline=tmp_path / "lint/known.json",
    )
    assert all(f"{key} = " in FULL or f"{key}]" in FULL for key in KEYS)


@pytest.mark.parametrize(
    "text", ["[tool.graphlint]\n", "\ufeff[tool.graphlint]\r\n", "[tool]\ngraphlint = {}"]
)
def test_an_empty_table_asks_for_nothing(read, tmp_path, text):
    assert read(text) == Config(file=tmp_path / "pyproject.toml")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("selct = ['GL101']", "has the unknown key 'selct'; known keys: baseline, fail-on, ignore, level, "),
        ("fail_on = 'error'", "has the unknown key 'fail_on'; known keys: "),
        ("select = ['GL999']", "unknown rule 'GL999'; known rules: GL101 freed-graph-reuse, GL201 detached"),
        ("ignore = ['nothing']", "unknown rule 'nothing'; known rules: GL101"),
        ("ignore = ['GL']", "no rule is left to check"),
        ("per-file-ignores = {'a.py' = ['GL9']}", "unknown rule 'GL9'; known rules: GL101"),
        ("select = 'GL101'", "select: 'GL101' is not a list of names, as in"),
        ("select = []", "select: [] is not a list of names"),
        ("ignore = [101]", "ignore: [101] is not a list of names"),
        ("per-file-ignores = ['GL101']", "per-file-ignores: ['GL101'] is not a table, as in"),
        ("per-file-ignores = {'a.py' = 'GL101'}", "per-file-ignores: 'GL101' is not a list of names"),
        ("fail-on = 'fatal'", "fail-on: 'fatal' is not one of error, warning, info, never"),
        ("fail-on = true", "fail-on: true is not one of"),
        ("level = 'high'", "level: 'high' is not one of auto, full, watch"),
        ("steps = 0", "steps: 0 is not a whole number from 1"),
        ("steps = true", "steps: true is not a whole number"),
        ("steps = '5'", "steps: '5' is not a whole number"),
        ("steps = 2.0", "steps: 2.0 is not a whole number"),
        ("simulate = 'cuda'", "simulate: 'cuda' is not a list of devices"),
        ("simulate = ['tpu']", "simulate: unknown device 'tpu'; cuda and cuda:N can be simulated"),
        ("show-info = 1", "show-info: 1 is not true or false"),
        ("baseline = ''", "baseline: '' is not the name of a file"),
        ("baseline = ['a']", "baseline: ['a'] is not the name of a file"),
    ],
)
def test_a_slip_is_one_line_that_lists_what_is_right(read, line, words):
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        read(f"[tool.graphlint]\n{line}\n")
    assert str(caught.value).startswith("pyproject.toml: [tool.graphlint]")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[tool.graphlint", "a = \n", "[tool]\ngraphlint = 3\n", "[[tool.graphlint]]\n"]
)
def test_what_is_no_table_is_refused(read, text):
    with pytest.raises(
        UsageError, match=r"pyproject\.toml( is not valid TOML|: \[tool\.graphlint\] is not a table)"
    ):
        read(text)


def test_other_encodings_are_refused(read):
    with pytest.raises(UsageError, match="is not valid TOML"):
        read("# gr\u00f6\u00dfe\n[tool.graphlint]\n", encoding="latin-1")


def test_a_file_that_is_asked_for_must_be_there_and_have_the_table(read, rules):
    with pytest.raises(UsageError, match=r"other\.toml has no table \[tool\.graphlint\]"):
        read("[tool.ruff]\n", name="other.toml")
    with pytest.raises(UsageError, match=r"can't read the config no\.toml: No such file"):
        load(Path("no.toml"), rules)
    with pytest.raises(UsageError, match="can't read the config"):
        load(Path.cwd(), rules)


def test_the_nearest_file_with_the_table_counts(tmp_path, rules):
    inner = tmp_path / "project" / "src" / "train"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.graphlint]\nsteps = 1\n")
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.graphlint]\nsteps = 2\n")
    (inner / "pyproject.toml").write_text("[tool.ruff]\n")
    assert find([inner], rules).steps == 2
    assert find([tmp_path], rules).steps == 1
    elsewhere = tmp_path / "project" / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("")
    (elsewhere / "pyproject.toml").write_text("[tool.graphlint]\nsteps = 3\n")
    assert find([elsewhere, inner], rules).steps == 3
    assert find([inner, elsewhere], rules).steps == 1


def test_without_a_file_nothing_is_asked_for(tmp_path, rules):
    assert find([tmp_path / "no" / "such"], rules) == Config()


def test_a_torn_file_on_the_way_is_refused(tmp_path, rules):
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(UsageError, match="is not valid TOML"):
        find([tmp_path / "src"], rules)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("GL101"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_value_is_read_or_refused(rules, table):
    refused: UsageError | None = None
    try:
        _config(Path("pyproject.toml"), table, rules)
    except UsageError as error:
        refused = error
    assert refused is None or "[tool.graphlint]" in str(refused)
