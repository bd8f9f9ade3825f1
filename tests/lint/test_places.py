"""Lines are shown as the user types them and numbered as Python numbers them."""

import pytest

from graphlint.analysis.sources import Sources
from graphlint.lint.places import Places


@pytest.fixture
def places(make_trace):
    def build(**fields):
        trace = make_trace(**fields)
        return Places(trace, Sources(trace))

    return build


@pytest.mark.parametrize(
    ("directory", "path", "expected"),
    [
        ("/home/me", "/home/me/a/b.py", "a/b.py"),
        ("/home/me", "/home/meow/b.py", "/home/meow/b.py"),
        ("/home/me", "b.py", "b.py"),
        ("", "/home/me/b.py", "/home/me/b.py"),
    ],
)
def test_paths_are_relative_below_the_directory(places, directory, path, expected):
    assert places(directory=directory).shown(path) == expected


def test_lines_end_where_python_ends_them(places):
    found = places(sources={"/a.py": "a\r\n  b\x0cc\rd\u2028e\n"})
    assert [found.text("/a.py", line) for line in range(6)] == [None, "a", "  b\x0cc", "d\u2028e", "", None]


def test_unknown_file_has_no_text(places):
    assert places().text("/other.py", 1) is None


def test_place_is_told_by_file_name(places):
    assert places().place("/opt/lib/x.py", 3).file == "x.py"
    assert places().place("/home/me/lib/x.py", 3).file == "x.py"


def test_place_without_source_says_less(places):
    place = places(sources={"/home/me/a.py": "if (:\n  f( 1 )\n"}).place("/home/me/a.py", 2)
    assert (place.file, place.function, place.statement) == ("a.py", "", "f( 1 )")
