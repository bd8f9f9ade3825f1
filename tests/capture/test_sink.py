"""What is on disk is readable whatever happens to the run."""

import gzip
import os

import pytest

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.capture.sink import Sink
from graphlint.errors import UsageError
from graphlint.record.codec import load
from graphlint.record.events import Cleanup
from graphlint.record.header import Header

HEADER = Header(graphlint="0", torch="0", python="0")


def cleanup(number: int) -> Cleanup:
    return Cleanup(serial=number, call="gc.collect", duration_ns=number)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_rows_are_on_disk_after_each_flush(tmp_path, name: str) -> None:
    path = tmp_path / name
    sink = Sink(path)
    sink.add(HEADER)
    for number in range(4):
        sink.add(cleanup(number))
        sink.flush()
        assert len(load(path).events) == number + 1
    sink.add(cleanup(9))
    assert len(load(path).events) == 4
    sink.close()
    assert len(load(path).events) == 5
    assert [event.serial for event in load(path).events] == [0, 1, 2, 3, 9]
    sink.close()


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_file_that_breaks_off_anywhere_is_read_up_to_there(tmp_path, name: str) -> None:
    path = tmp_path / name
    sink = Sink(path)
    sink.add(HEADER)
    sink.flush()
    least = path.stat().st_size
    for number in range(30):
        sink.add(cleanup(number))
        sink.flush()
    sink.close()
    data = path.read_bytes()
    lengths = []
    for end in range(least, len(data), 17):
        path.write_bytes(data[:end])
        trace = load(path)
        assert trace.end is None
        lengths.append(len(trace.events))
    assert lengths == sorted(lengths)
    assert lengths[-1] >= 28


def test_a_compressed_file_is_plain_gzip(tmp_path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    sink = Sink(path)
    sink.add(HEADER)
    sink.close()
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 1


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_disk_that_refuses_ends_the_file_and_not_the_run(tmp_path, monkeypatch, accepted: int) -> None:
    path = tmp_path / "trace.jsonl"
    write = os.write
    written = []

    def refuse(file: int, data: bytes) -> int:
        if len(written) >= accepted:
            raise OSError(28, "No space left on device")
        written.append(1)
        return write(file, data)

    session = Session(CaptureOptions(trace=path))
    with session:
        monkeypatch.setattr(os, "write", refuse)
        for _ in range(4):
            session.mark_step()
        monkeypatch.undo()
    assert session.trace().end.unseen == ("the trace file stops early: No space left on device",)
    if accepted:
        assert not load(path).complete


def test_a_disk_that_refuses_leaves_no_file_open(tmp_path, monkeypatch) -> None:
    path = tmp_path / "trace.jsonl"
    sink = Sink(path)
    file = sink._file
    sink.add(HEADER)

    def refuse(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        sink.flush()
    sink.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_disk_that_takes_a_little_at_a_time(tmp_path, monkeypatch) -> None:
    path = tmp_path / "trace.jsonl"
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:7]))
    sink = Sink(path)
    sink.add(HEADER)
    sink.add(cleanup(3))
    sink.close()
    monkeypatch.undo()
    assert [event.serial for event in load(path).events] == [3]


def test_a_file_that_cannot_be_made_is_known_at_once(tmp_path) -> None:
    with pytest.raises(UsageError, match="can't write the trace"):
        Sink(tmp_path / "missing" / "trace.jsonl")
    with pytest.raises(UsageError, match="can't write the trace"), Session(CaptureOptions(trace=tmp_path)):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_nothing(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    sink = Sink(path)
    sink.add(HEADER)
    sink.add(cleanup(0))
    child = os.fork()
    if child == 0:
        sink.add(cleanup(1))
        sink.flush()
        sink.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.stat().st_size == 0
    sink.close()
    assert [event.serial for event in load(path).events] == [0]


def test_memory_alone_without_a_path() -> None:
    sink = Sink(None)
    sink.add(HEADER)
    sink.flush()
    sink.close()
    assert sink.records == [HEADER]
    assert sink.failure is None
