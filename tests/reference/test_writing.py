"""Files take their place whole, or not at all, and leave nothing beside them."""

import pytest

from graphlint.reference.writing import replacing


def test_a_file_takes_the_place_of_another(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
