"""Checkpoints: replaced whole or not at all, read without running code, refused in one line."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from graphlint.errors import CheckpointError, UsageError
from graphlint.reference import checkpoints
from graphlint.reference.checkpoints import FORMAT, on_host, read_checkpoint, write_checkpoint


class _RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "c.pt"
    state = {"weights": {"a": torch.arange(3.0)}, "steps": 4, "python": (3, (1, 2), None)}
    write_checkpoint(state, path)
    read = read_checkpoint(path)
    assert torch.equal(read.pop("weights")["a"], state.pop("weights")["a"])
    assert read == {"format": FORMAT, "version": 1, **state}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("fails", ["save", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, fails):
    path = tmp_path / "c.pt"
    write_checkpoint({"steps": 1}, path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    owners = {"save": torch, "fsync": os, "replace": Path}
    monkeypatch.setattr(owners[fails], fails, full)
    with pytest.raises(UsageError, match=r"can't write the checkpoint .*c\.pt: No space left on device"):
        write_checkpoint({"steps": 2}, path)
    assert path.read_bytes() == before


def test_the_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), real_fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("replace"), real_replace(a, b))[1])
    write_checkpoint({"steps": 1}, tmp_path / "c.pt")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"can't write the checkpoint .*: No such file or directory"):
        write_checkpoint({}, tmp_path / "no" / "c.pt")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.99, 0.9999])
def test_damaged_files(tmp_path, part):
    path = tmp_path / "c.pt"
    write_checkpoint({"weights": torch.arange(500.0)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(CheckpointError, match=r"c\.pt: damaged, or no checkpoint of the reference trainer$"):
        read_checkpoint(path)


def test_a_flipped_bit_is_found_in_whatever_part_of_the_data(tmp_path):
    path = tmp_path / "c.pt"
    write_checkpoint({"weights": torch.arange(500.0)}, path)
    data = path.read_bytes()
    for text in (b"weights", torch.tensor(250.0).numpy().tobytes() + torch.tensor(251.0).numpy().tobytes()):
        damaged = bytearray(data)
        damaged[data.index(text)] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"c\.pt: damaged, or no checkpoint"):
            read_checkpoint(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "c.pt"
    with pytest.raises(CheckpointError, match=r"c\.pt: can't be read: No such file"):
        read_checkpoint(path)
    with pytest.raises(CheckpointError, match="can't be read: Is a directory"):
        read_checkpoint(tmp_path)
    torch.save({"generator": {}}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of the reference trainer"):
        read_checkpoint(path)
    torch.save(torch.ones(1), path)
    with pytest.raises(CheckpointError, match="not a checkpoint of the reference trainer"):
        read_checkpoint(path)
    torch.save({"format": FORMAT, "version": 2}, path)
    with pytest.raises(CheckpointError, match="of version 2; this graphlint reads version 1"):
        read_checkpoint(path)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_no_code_runs_when_a_file_is_read(tmp_path, save):
    path, ran = tmp_path / "c.pt", tmp_path / "ran"
    save({"format": FORMAT, "version": 1, "steps": _RunsCode(ran)}, path)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not ran.exists()


def test_copies_share_nothing_with_what_is_trained():
    weight = torch.nn.Parameter(torch.ones(2))
    copy = on_host({"a": [weight, (weight, 3)], "b": "text"})
    weight.data.fill_(5)
    assert copy["a"][0].tolist() == copy["a"][1][0].tolist() == [1, 1]
    assert not copy["a"][0].requires_grad
    assert (copy["a"][1][1], copy["b"]) == (3, "text")


def test_a_leftover_of_a_killed_write_is_replaced(tmp_path):
    (tmp_path / "c.pt.tmp").write_bytes(b"half")
    write_checkpoint({"steps": 1}, tmp_path / "c.pt")
    assert read_checkpoint(tmp_path / "c.pt")["steps"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.pt"]
    assert checkpoints.FILE == "checkpoint.pt"
