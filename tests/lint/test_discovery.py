"""Every file under the rules package is one sound rule, or nothing runs."""

import itertools
import re
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

import graphlint.rules
from graphlint.errors import RuleLoadError
from graphlint.lint.discovery import SECTIONS, all_rules, rule_files

PAGE = "Proves a fault.\n\n" + "\n\n".join(f"## {section}\nWords." for section in SECTIONS)
FIELDS = MappingProxyType(
    {
        "code": "'GL901'",
        "name": "'some-fault'",
        "severity": "'warning'",
        "since": "'0.1'",
        "needs": "('backward',)",
        "check": "check",
        "bad": "(Example(title='b', code='b'),)",
        "good": "(Example(title='g', code='g'),)",
    }
)


def rule_text(page=PAGE, body="    yield from ()", **changes):
    fields = ", ".join(f"{name}={value}" for name, value in {**FIELDS, **changes}.items())
    return (
        f'"""{page}\n"""\nfrom graphlint.lint.rule import Example, Rule\n'
        f"def check(facts):\n{body}\nRULE = Rule({fields})\n"
    )


@pytest.fixture
def discover(tmp_path, monkeypatch):
    """Returns a function that writes files into a new package and discovers the rules in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = itertools.count()

    def run(**files):
        package = f"made_up_rules_{tmp_path.name}_{next(numbers)}"
        package = re.sub(r"\W", "_", package)
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        try:
            return rule_files(package)
        finally:
            for name in [name for name in sys.modules if name.startswith(package)]:
                del sys.modules[name]

    return run


def test_loads_sound_rules_in_the_order_of_their_codes(discover):
    second = rule_text(code="'GL902'", name="'another'")
    files = discover(gl902_another=second, gl901_some_fault=rule_text())
    assert [file.rule.code for file in files] == ["GL901", "GL902"]
    assert files[0].path.name == "gl901_some_fault.py"
    assert files[0].page == PAGE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (rule_text().replace("RULE =", "RULES ="), "declares no RULE"),
        ("RULE = 3", "declares no RULE"),
        ("def (", "SyntaxError"),
        ("import graphlint.nowhere", "ModuleNotFoundError"),
        ("undefined", "NameError"),
        ("raise ValueError('no')", "ValueError"),
        (rule_text(code="'GL902'"), "the rule says GL902"),
        (rule_text(name="'other-fault'"), "the rule says other-fault"),
        (rule_text(severity="'fatal'"), "severity is 'fatal'"),
        (rule_text(since="'soon'"), "since is 'soon'"),
        (rule_text(needs="('backwards',)"), "needs 'backwards'"),
        (rule_text(body="    return ()"), "not a generator"),
        (rule_text(bad="()"), "at least one bad"),
        (rule_text(good="()"), "at least one bad"),
        (rule_text(good="(Example(title='b', code='g'),)"), "titled 'b'"),
        (rule_text(good="(Example(title='g', code='b'),)"), "is there twice"),
        (rule_text(page=""), "must have the sections"),
        (rule_text(page=PAGE.replace("## Known limits", "")), "must have the sections"),
        (rule_text(page=PAGE + "\n\n## Example\nAgain."), "must have the sections"),
        (rule_text(page=PAGE + "\n\n## Notes\nMore."), "must have the sections"),
        (rule_text(page=PAGE.replace("## Example", "Example")), "must have the sections"),
        (rule_text(page=PAGE.replace("Proves a fault.", "Faults")), "first line"),
    ],
)
def test_unsound_file_is_fatal_and_named(discover, text, reason):
    with pytest.raises(RuleLoadError, match=re.escape(reason)) as caught:
        discover(gl901_some_fault=text)
    assert "gl901_some_fault.py" in str(caught.value)


@pytest.mark.parametrize("name", ["helpers", "gl901", "GL901_some_fault", "gl91_some_fault", "gl901_Some"])
def test_file_that_is_no_rule_is_fatal(discover, name):
    with pytest.raises(RuleLoadError, match="a rule file is named like"):
        discover(**{"gl901_some_fault": rule_text(), name: "x = 1"})


def test_two_rules_of_one_name_are_fatal(discover):
    files = {"gl901_some_fault": rule_text(), "gl902_some_fault": rule_text(code="'GL902'")}
    with pytest.raises(RuleLoadError, match="two rules have the name some-fault"):
        discover(**files)


def test_two_rules_of_one_code_are_fatal(discover):
    files = {"gl901_some_fault": rule_text(), "gl901_other": rule_text(name="'other'")}
    with pytest.raises(RuleLoadError, match="two rules have the code GL901"):
        discover(**files)


def test_no_rules_at_all_is_fatal(discover):
    with pytest.raises(RuleLoadError, match="holds no rules"):
        discover()


def test_every_shipped_file_became_a_rule():
    folder = Path(graphlint.rules.__file__).parent
    files = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert [f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in all_rules()] == files
