"""The pages in docs/rules are those that docs/generate.py makes of today's rules, examples and symptoms."""

import importlib.util
import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from graphlint.lint.discovery import rule_files

ROOT = Path(__file__).parents[1]
GENERATOR = ROOT / "docs" / "generate.py"
AGAIN = "write the pages again with python docs/generate.py"


def load_generator():
    spec = importlib.util.spec_from_file_location("graphlint_docs_generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


GENERATE = load_generator()
FILES = rule_files()
RULES = {file.rule.code: file.rule for file in FILES}
TABLE = GENERATE.symptoms()


def test_pages_are_those_of_the_rule_files():
    """Everything but the outputs, which the next test runs the examples for."""
    made = GENERATE.pages(GENERATE.shown())
    there = {path.name: path.read_text(encoding="utf-8") for path in GENERATE.PAGES.glob("*.md")}
    assert sorted(there) == sorted(made), AGAIN
    assert [name for name in made if made[name] != there[name]] == [], AGAIN


@pytest.mark.parametrize("code", RULES)
def test_shown_outputs_are_what_the_examples_print(code):
    shown = GENERATE.shown().get(code, {})
    printed = GENERATE.outputs_of(RULES[code])
    assert {number: GENERATE.masked(text) for number, text in shown.items()} == {
        number: GENERATE.masked(text) for number, text in printed.items()
    }, AGAIN
    assert all(code in text for text in printed.values())


def test_the_comparison_can_fail():
    file = FILES[0]
    page = GENERATE.page(file, {1: "a.py:1: GL101\n"}, TABLE)
    assert GENERATE.outputs_in(page)[1] == "a.py:1: GL101\n"
    assert page != GENERATE.page(file, {1: "a.py:2: GL101\n"}, TABLE)
    assert GENERATE.masked("takes 3.1 ms\n") == GENERATE.masked("takes\n77 ms\n")
    assert GENERATE.masked("line 3") != GENERATE.masked("line 4")


def test_snippets_are_fenced_where_they_are_whole():
    text = "Words.\n\n    a = 1\n\n    b = 2\n\nMore.\n\n    if x\n\nEnd."
    assert GENERATE._fenced(text) == ("Words.\n\n```python\na = 1\n\nb = 2\n```\n\nMore.\n\n    if x\n\nEnd.")


# --- symptoms --------------------------------------------------------------------------------------------


def test_symptoms_lead_to_rules_that_there_are():
    assert {code for one in TABLE for code in one.rules} - set(RULES) == set()


def test_every_rule_has_a_symptom():
    assert set(RULES) - {code for one in TABLE for code in one.rules} == set()


def test_symptoms_are_told_once_and_fully():
    words = [one.words for one in TABLE]
    assert len(set(words)) == len(words) > 30
    for one in TABLE:
        assert one.rules
        assert len(set(one.rules)) == len(one.rules)
        assert one.note.endswith(".")


def test_every_error_of_an_example_is_a_symptom():
    """Whoever searches for the message of an example finds the rule that reports it."""
    missing = [
        (rule.code, example.raises)
        for rule in RULES.values()
        for example in rule.bad
        if example.raises is not None
        and not any(
            one.by_torch
            and rule.code in one.rules
            and (one.words in example.raises or example.raises in one.words)
            for one in TABLE
        )
    ]
    assert missing == []


def torch_texts():
    """Yields the files of torch that can hold a message."""
    root = Path(torch.__file__).parent
    yield from (root / name for name in ("functional.py", "tensor.py", "nn/functional.py"))
    yield from root.glob("optim/**/*.py")
    yield from root.glob("amp/*.py")
    yield from (path for path in root.glob("lib/*torch_*") if re.search(r"\.(so|dylib|dll)", path.name))


def holds(path, words):
    if not path.is_file() or not path.stat().st_size:
        return set()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return {one for one in words if text.find(one.encode()) >= 0}


def test_messages_are_torchs_own():
    """A message that torch no longer says leads nobody anywhere."""
    missing = {one.words for one in TABLE if one.by_torch}
    for path in torch_texts():
        missing -= holds(path, missing)
    # These are put together of parts.
    assert missing <= {
        "CUDA out of memory",
        "Trying to backward through the graph a second time",
        "lr_scheduler.step()` before `optimizer.step()",
    }
