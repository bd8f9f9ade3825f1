"""A record comes back as it was written; what isn't one is refused by line; a cut file loads to the cut."""

import gzip
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlint.errors import TraceError
from graphlint.record.codec import decode, encode, load, save
from graphlint.record.events import Backward, ScriptError
from graphlint.record.header import FORMAT_VERSION, End, Header
from graphlint.record.identity import OptimizerId, Serial, TensorId
from graphlint.record.tables import Optimizer, Source
from graphlint.record.trace import Record

HEADER = Header(graphlint="0.1.0", torch="2.13.0", python="3.11.0", script="train.py")
RECORDS = (
    HEADER,
    Source(path="/home/me/train.py", text="loss.backward()\n" * 3 + "# Umlaut: \u00fc, \u2028\n"),
    Backward(serial=Serial(1), end=Serial(2), call="Tensor.backward", roots=(TensorId(4),)),
    ScriptError(serial=Serial(3), type="RuntimeError", message="a second time"),
    End(how="error", exit_code=1, steps=1),
)
KINDS = [kind for kind in get_args(Record) if isinstance(kind, type)]


def strategy(kind):
    """Returns a strategy for any value of a msgspec type, derived from the type itself."""
    return STRATEGIES[type(kind)](kind)


def _struct(kind):
    fields = {field.name: strategy(field.type) for field in kind.fields}
    return st.fixed_dictionaries(fields).map(lambda values: kind.cls(**values))


STRATEGIES = {
    msgspec.inspect.IntType: lambda _: st.integers(-(2**63), 2**64 - 1),
    msgspec.inspect.StrType: lambda _: st.text(max_size=8),
    msgspec.inspect.BoolType: lambda _: st.booleans(),
    msgspec.inspect.FloatType: lambda _: st.floats(allow_nan=False, allow_infinity=False),
    msgspec.inspect.NoneType: lambda _: st.none(),
    msgspec.inspect.LiteralType: lambda kind: st.sampled_from(kind.values),
    msgspec.inspect.VarTupleType: lambda kind: st.lists(strategy(kind.item_type), max_size=3).map(tuple),
    msgspec.inspect.TupleType: lambda kind: st.tuples(*map(strategy, kind.item_types)),
    msgspec.inspect.UnionType: lambda kind: st.one_of(*map(strategy, kind.types)),
    msgspec.inspect.StructType: _struct,
}


def any_record(kind):
    return strategy(msgspec.inspect.type_info(kind))


def test_every_kind_of_record_is_tried():
    assert len(KINDS) == len(get_args(Record))
    assert len(KINDS) > 20


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(kind, data):
    record = data.draw(any_record(kind))
    line = encode(record)
    assert line.count(b"\n") == 1
    if kind is Header:
        (back,) = (
            decode([line], origin="t") if _is_ours(record) else (msgspec.json.decode(line, type=Header),)
        )
    else:
        _, back = decode([encode(HEADER), line], origin="t")
    assert back == record
    assert encode(back) == line


def _is_ours(header):
    return header.format == HEADER.format and header.version == FORMAT_VERSION


def test_text_that_utf8_cannot_hold_is_escaped():
    record = Source(path="/caf\udce9.py", text="ok")
    _, back = decode([encode(HEADER), encode(record)], origin="t")
    assert back == Source(path="/caf\\udce9.py", text="ok")


def test_learning_rate_that_json_cannot_hold_is_read_as_none():
    record = Optimizer(id=OptimizerId(0), type="SGD", groups=((), ()), lrs=(float("inf"), 0.1))
    _, back = decode([encode(HEADER), encode(record)], origin="t")
    assert back.lrs == (None, 0.1)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_saves_and_loads_a_file(tmp_path, name):
    path = tmp_path / name
    save(RECORDS, path)
    assert path.read_bytes().startswith(b"\x1f\x8b") is name.endswith(".gz")
    trace = load(path)
    assert trace.complete
    assert trace.header == HEADER
    assert trace.events == RECORDS[2:4]
    assert trace.end == RECORDS[4]
    assert trace.sources == {RECORDS[1].path: RECORDS[1].text}


def test_file_cut_anywhere_loads_to_the_last_whole_line(tmp_path):
    whole = b"".join(map(encode, RECORDS))
    starts = [0]
    for record in RECORDS:
        starts.append(starts[-1] + len(encode(record)))
    path = tmp_path / "cut.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line is whole once its closing brace is there; the newline may be missing.
        kept = sum(length >= end - 1 for end in starts[1:])
        if kept == 0:
            with pytest.raises(TraceError):
                load(path)
            continue
        trace = load(path)
        assert len(trace.events) == max(0, min(kept, 4) - 2)
        assert trace.complete is (kept == len(RECORDS))


def test_gzip_file_cut_anywhere_loads_or_says_that_it_is_none(tmp_path):
    events = [
        ScriptError(serial=Serial(number), type="E", message=f"{number * 7919 % 104729:x}")
        for number in range(3000)
    ]
    whole = tmp_path / "whole.jsonl.gz"
    save([HEADER, *events, End(how="finished")], whole)
    compressed = whole.read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    counts = []
    for length in range(0, len(compressed), len(compressed) // 40):
        path.write_bytes(compressed[:length])
        try:
            trace = load(path)
        except TraceError:
            counts.append(-1)
            continue
        assert not trace.complete
        assert trace.events == tuple(events[: len(trace.events)])
        counts.append(len(trace.events))
    assert counts == sorted(counts)
    assert counts[0] == -1
    assert counts[-1] > len(events) * 0.8


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\n", "1: not a graphlint trace"),
        (b"hello\n", "1: not a graphlint trace"),
        (b"\xff\xfe\x00\n", "1: not a graphlint trace"),
        (b"[1, 2]\n", "1: not a graphlint trace"),
        (b'{"format": "har", "version": 1}\n', "1: not a graphlint trace"),
        (b'{"format": 3}\n', "1: not a graphlint trace"),
        (encode(RECORDS[1]), "1: not a graphlint trace"),
        (encode(HEADER).replace(b'"version":1', b'"version":2'), "1: trace version 2; this graphlint reads"),
        (encode(HEADER).replace(b"}", b',"new":1}'), "1: not a trace record"),
        (encode(HEADER) * 2, "2: a second header"),
        (encode(HEADER) + b"\n", "2: not a trace record"),
        (encode(HEADER) + b"nonsense\n" + encode(RECORDS[2]), "2: not a trace record"),
        (encode(HEADER) + b'{"record":"novelty"}\n', "2: not a trace record"),
        (encode(HEADER) + b'{"record":"source","path":"a"}\n', "2: not a trace record"),
        (encode(HEADER) + b'{"record":"source","path":"a","text":1}\n', "2: not a trace record"),
        (encode(HEADER) + b'{"record":"source","path":"a","text":"","x":1}\n', "2: not a trace record"),
        (encode(HEADER) + b'{"record":"source","path":"a","text":"\xff"}\n', "2: not a trace record"),
        (encode(HEADER) + encode(RECORDS[4]) + encode(RECORDS[2]), "3: a record follows the end"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "1: not a graphlint trace"),
        (encode(HEADER) + b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "2: not a trace record"),
    ],
)
def test_foreign_file_is_refused_with_its_line(tmp_path, content, reason):
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert f"{path}: {reason}" in str(caught.value) or f"{path}:{reason}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plain_text_named_gz_is_refused(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(encode(HEADER))
    with pytest.raises(TraceError, match="not a gzip file"):
        load(path)


# Named, since gzip writes the time of day: by their bytes the cases would differ between pytest's workers.
@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b\x08garbage, and more of it", gzip.compress(b"x" * 99)[:15]],
    ids=["garbage", "cut-off"],
)
def test_a_gzip_file_without_a_whole_line_is_refused_for_what_it_is(tmp_path, content):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="not a graphlint trace") as caught:
        load(path)
    assert "empty" not in str(caught.value)


def test_gzip_of_something_else_is_refused(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"hello\n"))
    with pytest.raises(TraceError, match="not a graphlint trace"):
        load(path)


def test_missing_file_and_directory_are_refused(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceError, match="can't be read"):
            load(path)
