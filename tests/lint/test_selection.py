"""Selections name rules by code, prefix or name, and refuse what names none."""

import pytest

from graphlint.errors import UsageError
from graphlint.lint.selection import Selection


@pytest.fixture
def rules(make_rule):
    return [
        make_rule("GL101", name="freed-graph-reuse"),
        make_rule("GL102", name="silent-rebackward"),
        make_rule("GL201", name="detached-loss"),
    ]


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), {"GL101", "GL102", "GL201"}),
        (("GL1",), (), {"GL101", "GL102"}),
        (("gl101",), (), {"GL101"}),
        (("detached-loss",), (), {"GL201"}),
        (("GL101,GL201",), (), {"GL101", "GL201"}),
        (("GL101", " detached-loss "), (), {"GL101", "GL201"}),
        ((), ("GL1",), {"GL201"}),
        (("GL1",), ("silent-rebackward",), {"GL101"}),
        (("GL101",), ("GL2",), {"GL101"}),
    ],
)
def test_names_rules(rules, select, ignore, expected):
    assert Selection(select, ignore).codes(rules) == expected


@pytest.mark.parametrize(
    "selection",
    [
        Selection(select=("GL9",)),
        Selection(ignore=("GL9",)),
        Selection(
            select=(
                "GL101",
                "detached",
            )
        ),
        Selection(select=("",)),
        Selection(select=("GL101,",)),
        Selection(select=("L101",)),
    ],
)
def test_unknown_entry_lists_what_is_known(rules, selection):
    with pytest.raises(UsageError) as caught:
        selection.codes(rules)
    for rule in rules:
        assert f"{rule.code} {rule.name}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_left_is_refused(rules):
    with pytest.raises(UsageError, match="no rule is left"):
        Selection(select=("GL101",), ignore=("GL1",)).codes(rules)
