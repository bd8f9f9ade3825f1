"""Comments are read as Python reads them: never from strings, for the statement that they belong to."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlint.lint.comments import comments

PATH = "/home/me/train.py"


def read(text):
    return comments({PATH: text})


def spoken_for(text):
    return [(one.line, one.first_line, one.last_line, one.entries) for one in read(text)]


@pytest.mark.parametrize(
    ("text", "entries", "reason"),
    [
        ("x = 1  # graphlint: ignore[GL301] by hand", ("GL301",), "by hand"),
        ("x = 1  # graphlint: ignore[GL301]", ("GL301",), ""),
        ("x = 1  #graphlint:ignore[GL301]: by hand", ("GL301",), "by hand"),
        (
            "x = 1  # Graphlint : Ignore [gl301 , missing-zero-grad,] - by hand",
            ("gl301", "missing-zero-grad"),
            "by hand",
        ),
        ("x = 1  # type: ignore[x]  # graphlint: ignore[GL3] why  # noqa: E501", ("GL3",), "why"),
        ("x = 1  # noqa # graphlint: ignore[GL301]\tsee issue #12", ("GL301",), "see issue #12"),
        ("x = 1\t# graphlint: ignore[GL301] caf\u00e9", ("GL301",), "caf\u00e9"),
    ],
)
def test_a_comment_names_rules_and_a_reason(text, entries, reason):
    (found,) = read(text)
    assert (found.entries, found.reason, found.problem) == (entries, reason, None)


@pytest.mark.parametrize(
    "text",
    [
        'x = "# graphlint: ignore[GL301]"',
        "'''\n# graphlint: ignore[GL301]\n'''",
        'f"{x}  # graphlint: ignore[GL301]"',
        "# see `# graphlint: ignore[GL301]` in the manual",
        "# graphlint: this loop is wrong on purpose",
        "# mygraphlint: ignore[GL301]",
        "# ignore[GL301]",
        "",
    ],
)
def test_other_words_are_no_comment(text):
    assert read(text) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# graphlint: ignore GL301", "the rules do not stand in brackets"),
        ("# graphlint: ignore(GL301)", "the rules do not stand in brackets"),
        ("# graphlint: ignore[GL301", "its bracket is not closed"),
        ("# graphlint: ignore[GL301 [x]]", "its bracket is not closed"),
        ("# graphlint: ignore", "it names no rule"),
        ("# graphlint: ignore[]", "it names no rule in its brackets"),
        ("# graphlint: ignore[ , ]", "it names no rule in its brackets"),
        ("# graphlint: ignored[GL301]", "it doesn't say `ignore[...]`"),
        ("# graphlint: disable=GL301", "it doesn't say `ignore[...]`"),
    ],
)
def test_a_comment_that_cannot_be_read_says_why(text, problem):
    assert [one.problem for one in read(f"x = 1  {text}\n")] == [problem]


STATEMENTS = """\
x = f(  # graphlint: ignore[GL1]
    1,
    # graphlint: ignore[GL2]
    2,
)  # graphlint: ignore[GL3]
# graphlint: ignore[GL4]

# another word
with f():  # graphlint: ignore[GL5]
    y = '''
    '''; z = 2  # graphlint: ignore[GL6]
    # graphlint: ignore[GL7]
g()
# graphlint: ignore[GL8]
"""


def test_a_comment_speaks_for_its_statement_or_the_next_one():
    assert spoken_for(STATEMENTS) == [
        (1, 1, 5, ("GL1",)),
        (3, 1, 5, ("GL2",)),
        (5, 1, 5, ("GL3",)),
        (6, 9, 9, ("GL4",)),
        (9, 9, 9, ("GL5",)),
        (11, 10, 11, ("GL6",)),
        (12, 13, 13, ("GL7",)),
        (14, 0, 0, ("GL8",)),
    ]


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_lines_may_end_otherwise(newline):
    assert spoken_for(STATEMENTS.replace("\n", newline)) == spoken_for(STATEMENTS)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\x0c\n", "\n    "])
def test_a_comment_at_the_end_speaks_for_nothing(end):
    assert spoken_for("x = 1\n# graphlint: ignore[GL301]" + end) == [(2, 0, 0, ("GL301",))]


@pytest.mark.parametrize(
    "torn", ["x = (\n", "  y = 1\n", "x = '''\n", "\tif x:\n  y\n", "$?\n", "%magic\n", "\0\n", "\udce9\n"]
)
def test_a_source_that_breaks_off_gives_what_stands_before(torn):
    assert spoken_for("x = 1  # graphlint: ignore[GL301]\n" + torn)[0] == (1, 1, 1, ("GL301",))


def test_two_in_one_comment_are_two():
    assert (
        spoken_for("x = 1  # graphlint: ignore[GL1] a # graphlint: ignore[GL1] a")
        == [(1, 1, 1, ("GL1",))] * 2
    )


def test_files_are_told_apart():
    found = comments({"/b.py": "x # graphlint: ignore[GL1]", "/a.py": "\nx # graphlint: ignore[GL2]"})
    assert [(one.path, one.line) for one in found] == [("/a.py", 2), ("/b.py", 1)]
    assert found[0].covers("/a.py", 2)
    assert not found[0].covers("/b.py", 2)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "# graphlint: ignore[GL1] why",
                    "x = 1",
                    "\n",
                    "(",
                    ")",
                    "'''",
                    '"',
                    "\\",
                    "\t",
                    "  ",
                    "\r",
                    "\x0c",
                ]
            ),
            st.text(max_size=4),
        ),
        max_size=25,
    ).map("".join)
)
def test_no_text_is_too_strange(text):
    lines = len(re.split(r"\r\n|\r|\n", text))
    for one in read(text):
        assert 1 <= one.line <= lines
        assert one.first_line <= one.last_line <= lines
        assert one.first_line == 0 or one.covers(PATH, one.first_line)
