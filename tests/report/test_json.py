"""The JSON report holds the whole report, fits the shipped schema, and the schema fits the types."""

import json

import jsonschema
import msgspec
import pytest

from graphlint.lint.finding import Finding, Label
from graphlint.lint.rule import Report, RuleOutcome
from graphlint.lint.suppressed import BaselineEntry, BaselineUse, Suppressed
from graphlint.record.events import ScriptError
from graphlint.record.header import End, Header
from graphlint.record.identity import Serial, StorageId, TensorId
from graphlint.record.tables import Frame, Tensor
from graphlint.record.trace import Trace
from graphlint.report.json import SCHEMA_PATH, schema, schema_text, to_json
from graphlint.version import __version__

TRAIN = "/home/me/proj/train.py"
FINDING = Finding(
    code="GL401",
    rule="ping-pong-transfer",
    severity="warning",
    message="m.",
    path=TRAIN,
    line=9,
    labels=(Label(path=TRAIN, line=9, text="back"), Label(path="/opt/lib/x.py", line=2, text="there")),
    fix="f.",
    count=4,
    first_step=0,
    last_step=3,
    fingerprint="0123",
)
OUTCOMES = (
    RuleOutcome(code="GL101", outcome="clean"),
    RuleOutcome(code="GL401", outcome="findings"),
    RuleOutcome(code="GL402", outcome="not-checked", reason="not selected"),
    RuleOutcome(code="GL403", outcome="failed", reason="KeyError: 7"),
)
REPORT = Report(findings=(FINDING,), outcomes=OUTCOMES, tracebacks={"GL403": "Traceback"})


def make_trace(*, frames=(), message="boom", end="error"):
    error = ScriptError(serial=Serial(1), type="RuntimeError", message=message, frames=frames)
    tensors = {
        TensorId(0): Tensor(
            id=TensorId(0), storage=StorageId(0), shape=(), dtype="", device="cuda:0", bytes=0
        ),
        TensorId(1): Tensor(id=TensorId(1), storage=StorageId(0), shape=(), dtype="", device="cpu", bytes=0),
    }
    return Trace(
        header=Header(
            graphlint="0.0.9",
            torch="2.13.0",
            python="3.11.0",
            script=TRAIN,
            argv=("--lr", "1"),
            directory="/home/me/proj",
            simulated=("cuda",),
        ),
        sites={},
        sources={},
        tensors=tensors,
        modules={},
        parameters=(),
        optimizers={},
        names=(),
        graphs={},
        events=(error,) if end == "error" else (),
        end=None
        if end == "missing"
        else End(how=end, exit_code=1, steps=4, full_steps=3, unseen=("other threads",)),
    )


def parsed(report=REPORT, trace=None):
    document = json.loads(to_json(report, trace or make_trace()))
    jsonschema.validate(document, json.loads(SCHEMA_PATH.read_bytes()))
    return document


def test_document_is_the_whole_report():
    frames = (Frame(TRAIN, 9, "<module>", 1),)
    assert parsed(trace=make_trace(frames=frames)) == {
        "version": 1,
        "tool": {"name": "graphlint", "version": __version__, "torch": "2.13.0"},
        "run": {
            "script": "train.py",
            "argv": ["--lr", "1"],
            "ended": "error",
            "exit_code": 1,
            "error": {"type": "RuntimeError", "message": "boom", "path": "train.py", "line": 9},
            "steps": 4,
            "full_steps": 3,
            "level": "auto",
            "devices": ["cpu", "cuda:0"],
            "simulated": ["cuda"],
            "unseen": ["other threads"],
            "complete": True,
        },
        "findings": [
            {
                "code": "GL401",
                "rule": "ping-pong-transfer",
                "severity": "warning",
                "message": "m.",
                "path": "train.py",
                "line": 9,
                "labels": [
                    {"path": "train.py", "line": 9, "text": "back"},
                    {"path": "/opt/lib/x.py", "line": 2, "text": "there"},
                ],
                "fix": "f.",
                "count": 4,
                "first_step": 0,
                "last_step": 3,
                "fingerprint": "0123",
            }
        ],
        "suppressed": [],
        "baseline": None,
        "rules": [
            {"code": "GL101", "outcome": "clean", "reason": None},
            {"code": "GL401", "outcome": "findings", "reason": None},
            {"code": "GL402", "outcome": "not-checked", "reason": "not selected"},
            {"code": "GL403", "outcome": "failed", "reason": "KeyError: 7"},
        ],
    }


def test_what_was_put_aside_is_listed_with_the_paths_as_shown():
    suppressed = Suppressed(finding=FINDING, by="comment", reason="two GPUs", path=TRAIN, line=9)
    baseline = BaselineUse(
        path="b.json", entries=3, matched=1, gone=(BaselineEntry(fingerprint="1", code="GL101", path="x.py"),)
    )
    report = msgspec.structs.replace(REPORT, findings=(), suppressed=(suppressed,), baseline=baseline)
    document = parsed(report)
    (shown,) = document["suppressed"]
    assert (shown["by"], shown["reason"], shown["path"], shown["line"]) == (
        "comment",
        "two GPUs",
        "train.py",
        9,
    )
    assert (shown["finding"]["code"], shown["finding"]["path"]) == ("GL401", "train.py")
    assert document["findings"] == []
    assert document["baseline"] == {
        "path": "b.json",
        "entries": 3,
        "matched": 1,
        "gone": [{"fingerprint": "1", "code": "GL101", "path": "x.py", "message": ""}],
    }


def test_error_raised_outside_the_users_code_has_no_place():
    error = parsed()["run"]["error"]
    assert (error["path"], error["line"]) == (None, None)


@pytest.mark.parametrize("how", ["finished", "steps", "exit", "interrupt", "terminated"])
def test_run_without_an_exception_has_no_error(how):
    run = parsed(trace=make_trace(end=how))["run"]
    assert (run["ended"], run["error"]) == (how, None)


def test_broken_off_run_says_so():
    run = parsed(trace=make_trace(end="missing"))["run"]
    assert (run["ended"], run["complete"], run["exit_code"]) == ("unknown", False, None)
    assert run["unseen"]


def test_text_that_utf8_cannot_hold_is_escaped():
    assert parsed(trace=make_trace(message="caf\udce9"))["run"]["error"]["message"] == "caf\\udce9"


def test_output_is_stable_and_ends_in_a_newline():
    first = to_json(REPORT, make_trace())
    assert first == to_json(REPORT, make_trace())
    assert first.endswith(b"}\n")


def test_shipped_schema_is_the_generated_one():
    assert SCHEMA_PATH.read_bytes() == schema_text()
    assert json.loads(schema_text()) == schema()


def test_schema_is_sound():
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("part", ["version", "tool", "run", "findings", "suppressed", "rules"])
def test_schema_refuses_a_document_without_a_part(part):
    document = parsed()
    del document[part]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("findings", "severity", "fatal"),
        ("findings", "line", "9"),
        ("findings", "novelty", 1),
        ("rules", "outcome", "skipped"),
    ],
)
def test_schema_refuses_a_wrong_field(part, field, value):
    document = parsed()
    document[part][0][field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())
