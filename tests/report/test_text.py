"""What the text report looks like, line by line, and what it never leaves out."""

import io
import re

import msgspec
import pytest

from graphlint.lint.finding import Finding, Label
from graphlint.lint.rule import Report, RuleOutcome
from graphlint.lint.suppressed import BaselineEntry, BaselineUse, Suppressed
from graphlint.record.events import Backward, ModuleMove, Repeat, ScriptError, StepBoundary
from graphlint.record.header import End, Header
from graphlint.record.identity import ModuleId, Serial, StorageId, TensorId
from graphlint.record.tables import Frame, Tensor
from graphlint.record.trace import Trace
from graphlint.report.text import layout, render

TRAIN = "/home/me/proj/train.py"
BLOCKS = "/home/me/proj/nets/blocks.py"
LINES = [""] * 80
LINES[57] = "    fake_predictions = discriminator(fake_images, text_embeddings)"
LINES[64] = "    discriminator_loss.backward()"
LINES[70] = "    generator_loss.backward()"
SOURCES = {TRAIN: "\n".join(LINES), BLOCKS: "def f(x):\n        return x.cpu()\n"}
REUSE = (
    Label(path=TRAIN, line=71, text="entered again here: torch raises, and `generator` gets no gradient"),
    Label(path=TRAIN, line=58, text="built here: 6 nodes, `fake_predictions`"),
    Label(path=TRAIN, line=65, text="freed here (step 0)"),
)
FIX = (
    "call discriminator(fake_images, text_embeddings) again after line 66 and build generator_loss from "
    "that. retain_graph=True would not help: discriminator_optimizer.step() (line 66) changes "
    "`discriminator.out.weight` in place, which the retained graph needs."
)


def make_finding(labels=REUSE, **fields):
    return Finding(
        **{
            "code": "GL101",
            "rule": "freed-graph-reuse",
            "severity": "error",
            "message": "generator_loss.backward() enters a graph that discriminator_loss.backward() has "
            "already freed.",
            "path": labels[0].path,
            "line": labels[0].line,
            "labels": tuple(labels),
            "fix": FIX,
            "count": 1,
            "first_step": 0,
            "last_step": 0,
            "fingerprint": "f",
        }
        | fields
    )


def make_trace(events=(), *, sources=None, devices=("cpu",), header=None, end=None):
    tensors = {
        TensorId(number): Tensor(
            id=TensorId(number), storage=StorageId(0), shape=(), dtype="", device=device, bytes=0
        )
        for number, device in enumerate(devices)
    }
    return Trace(
        header=Header(
            **{"graphlint": "0", "torch": "2", "python": "3", "directory": "/home/me/proj", "script": TRAIN}
            | (header or {})
        ),
        sites={},
        sources=SOURCES if sources is None else sources,
        tensors=tensors,
        modules={},
        parameters=(),
        optimizers={},
        names=(),
        graphs={},
        events=tuple(events),
        end=None
        if end == "missing"
        else End(**{"how": "finished", "steps": 4, "full_steps": 3} | (end or {})),
    )


def make_report(*findings, tracebacks=None, **outcomes):
    outcomes = outcomes or {"GL101": "findings" if findings else "clean"}
    rows = []
    for code, outcome in outcomes.items():
        kind, _, reason = outcome.partition(": ")
        rows.append(RuleOutcome(code=code, outcome=kind, reason=reason or None))
    return Report(findings=findings, outcomes=tuple(rows), tracebacks=tracebacks or {})


def text(report, trace=None, *, width=110, **options):
    stream = io.StringIO()
    render(report, trace or make_trace(), stream, width=width, **options)
    return stream.getvalue()


def test_finding_has_the_shape_of_a_lifetime_report():
    shown = text(make_report(make_finding()), width=107, summary=False)
    assert (
        shown
        == """\
train.py:71: GL101 freed-graph-reuse (error)
  generator_loss.backward() enters a graph that discriminator_loss.backward() has already freed.
    58 |     fake_predictions = discriminator(fake_images, text_embeddings)
       |     ^ built here: 6 nodes, `fake_predictions`
    65 |     discriminator_loss.backward()
       |     ^ freed here (step 0)
    71 |     generator_loss.backward()
       |     ^ entered again here: torch raises, and `generator` gets no gradient
  Fix: call discriminator(fake_images, text_embeddings) again after line 66 and build generator_loss from
  that. retain_graph=True would not help: discriminator_optimizer.step() (line 66) changes
  `discriminator.out.weight` in place, which the retained graph needs.
"""
    )


def test_labels_of_one_line_share_it_and_files_are_told_apart():
    labels = [
        Label(path=TRAIN, line=65, text="first"),
        Label(path=TRAIN, line=65, text="second"),
        Label(path=BLOCKS, line=2, text="made here"),
    ]
    shown = text(make_report(make_finding(labels, message="M.", fix="F.")), summary=False)
    assert (
        shown
        == """\
train.py:65: GL101 freed-graph-reuse (error)
  M.
      --> train.py
    65 |     discriminator_loss.backward()
       |     ^ first
       |     ^ second
      --> nets/blocks.py
     2 |     return x.cpu()
       |     ^ made here
  Fix: F.
"""
    )


def test_long_words_wrap_beside_the_caret_and_source_lines_never_wrap():
    source = "    " + "value = compute(" + ", ".join(f"argument_{n}" for n in range(20)) + ")"
    words = "moved here " + "and there " * 12
    finding = make_finding([Label(path=TRAIN, line=1, text=words)], message="M.", fix="")
    lines = text(
        make_report(finding), make_trace(sources={TRAIN: source}), width=60, summary=False
    ).splitlines()
    assert lines[2] == "    1 |     value = compute(argument_0, argument_1, argum..."
    assert lines[3].startswith("      |     ^ moved here and there")
    assert lines[4].startswith("      |       there and")
    assert max(map(len, lines)) <= 60


def test_deep_indentation_is_shortened_and_relative_indentation_kept():
    source = "                if x:\n                    f(x)\n"
    labels = [Label(path=TRAIN, line=2, text="two"), Label(path=TRAIN, line=1, text="one")]
    shown = text(make_report(make_finding(labels)), make_trace(sources={TRAIN: source}), summary=False)
    assert "    1 |     if x:\n      |     ^ one\n    2 |         f(x)\n      |         ^ two\n" in shown


def test_source_that_is_not_in_the_trace_leaves_the_label():
    shown = text(make_report(make_finding()), make_trace(sources={}), summary=False)
    assert "    65 |\n       | ^ freed here (step 0)\n" in shown


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 8, "first_step": 0, "last_step": 7}, "  Seen 8 times, steps 0 to 7.\n"),
        ({"count": 8, "first_step": 3, "last_step": 3}, "  Seen 8 times, in step 3.\n"),
        ({"count": 8, "first_step": None, "last_step": None}, "  Seen 8 times.\n"),
        ({"count": 1}, "retained graph needs.\n"),
    ],
)
def test_repeated_sightings_are_counted(fields, expected):
    assert text(make_report(make_finding(**fields)), summary=False).endswith(expected)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((0, 2), "  Seen 3 times, steps 0 to 2: all that were recorded in full.\n"),
        ((1, 2), "  Seen 3 times, steps 1 to 2; later ones were only watched.\n"),
        ((2, 2), "  Seen 3 times, in step 2; later ones were only watched.\n"),
        ((0, 1), "  Seen 3 times, steps 0 to 1.\n"),
        ((0, 5), "  Seen 3 times, steps 0 to 5.\n"),
        ((0, 9), "  Seen 3 times, steps 0 to 9.\n"),
    ],
)
def test_last_sighting_in_the_last_full_step_does_not_read_as_an_end(steps, expected):
    events = []
    for number in range(4):
        at, level = Serial(10 * number), "full" if number < 3 else "watch"
        events.append(StepBoundary(serial=at, after=at, reason="batch", level=level))
        events.append(Backward(serial=Serial(at + 1), end=Serial(at + 2), call="Tensor.backward", roots=()))
    events.append(Repeat(serial=Serial(40), like=Serial(30), count=6))
    finding = make_finding(count=3, first_step=steps[0], last_step=steps[1])
    assert text(make_report(finding), make_trace(events), summary=False).endswith(expected)


def test_user_text_is_neither_markup_nor_an_escape_sequence():
    source = "x = y[bold]\x1b[31m [/] \u202e"
    finding = make_finding(
        [Label(path=TRAIN, line=1, text="[red]`a[b]`[/red]\x07")], message="[link] :smile:"
    )
    for color in (False, True):
        shown = text(make_report(finding), make_trace(sources={TRAIN: source}), color=color)
        for piece in ("y[bold]\\x1b[31m [/] \\u202e", "[red]`a[b]`[/red]\\x07", "[link] :smile:"):
            assert piece in shown


def test_colour_changes_no_word():
    report = make_report(make_finding(), GL101="findings", GL102="not-checked: why", GL103="clean")
    plain, coloured = text(report), text(report, color=True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    assert [
        line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    ] == plain.splitlines()


@pytest.mark.parametrize("color", [False, True])
def test_stream_that_holds_less_than_unicode_gets_escapes(color):
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    trace = make_trace(sources={TRAIN: "größe = 1"})
    render(make_report(make_finding([Label(path=TRAIN, line=1, text="größe")])), trace, stream, color=color)
    stream.flush()
    assert b"gr\\xf6\\xdfe = 1" in buffer.getvalue()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"steps": 200, "full_steps": 3}, "no findings in 200 steps (3 at full level); 2 rules checked\n"),
        ({"steps": 2, "full_steps": 2}, "no findings in 2 steps (all at full level); 2 rules checked\n"),
        ({"steps": 1, "full_steps": 0}, "no findings in 1 step (0 at full level); 2 rules checked\n"),
        ({"steps": 0, "full_steps": 0}, "no findings in 0 steps; 2 rules checked\n"),
    ],
)
def test_clean_run_is_one_line(end, expected):
    assert text(make_report(GL101="clean", GL102="clean"), make_trace(end=end)) == f"graphlint: {expected}"


def test_clean_run_still_says_what_was_not_checked_and_not_seen():
    report = make_report(
        GL101="clean", GL102="not-checked: not selected", GL103="not-checked: no", GL105="not-checked: no"
    )
    trace = make_trace(
        devices=("cpu", "cuda:0"), header={"simulated": ("cuda",)}, end={"unseen": ("threads",)}
    )
    assert (
        text(report, trace)
        == """\
graphlint: no findings in 4 steps (3 at full level); 1 of 4 rules checked
  devices      cpu, cuda:0; cuda:0 simulated on the CPU
  not seen     threads
  not checked  GL102: not selected
  not checked  GL103, GL105: no
"""
    )


def test_every_simulated_device_that_was_met_is_called_so():
    move = ModuleMove(
        serial=Serial(1), module=ModuleId(0), to_device="cuda:1", tensors=2, moved=2, bytes=8, method="to"
    )
    header = {"simulated": ("cuda:1",)}
    trace = make_trace([move], devices=("cpu", "cuda:0", "meta"), header=header)
    shown = text(make_report(GL101="clean"), trace)
    assert "  devices      cpu, cuda:0, cuda:1, meta; cuda:0 and cuda:1 simulated on the CPU\n" in shown
    unmet = text(make_report(GL101="clean"), make_trace(header=header))
    assert "  devices      cpu; cuda:1 simulated on the CPU\n" in unmet


def test_nothing_checked_is_not_called_clean():
    shown = text(make_report(GL101="not-checked: no", GL102="failed: E"), make_trace(end={"steps": 0}))
    assert shown.splitlines()[0] == "graphlint: nothing was checked in 0 steps"
    assert "no findings" not in shown


def test_failed_rule_is_shown_with_its_traceback():
    report = make_report(
        GL101="clean", GL102="failed: KeyError: 7", tracebacks={"GL102": "Traceback\n  E7\n"}
    )
    shown = text(report)
    assert "  failed       GL102: KeyError: 7\n" in shown
    assert "a fault of graphlint's own" in shown
    assert "  Traceback\n    E7\n" in shown
    assert "1 of 2 rules checked" in shown


def test_failed_rule_is_shown_even_without_a_summary():
    report = make_report(
        GL101="clean", GL102="failed: KeyError: 7", tracebacks={"GL102": "Traceback\n  E7\n"}
    )
    assert text(report, summary=False).startswith("graphlint: GL102 failed by a fault of graphlint's own")
    assert text(make_report(GL101="clean"), summary=False) == ""


def test_findings_are_counted_by_severity():
    findings = [make_finding(severity=severity) for severity in ("error", "warning", "warning", "info")]
    shown = text(make_report(*findings))
    assert "graphlint: 1 error, 2 warnings, 1 info in 4 steps (3 at full level); 1 rule checked\n" in shown


@pytest.mark.parametrize(
    ("end", "argv", "expected"),
    [
        ({"how": "finished"}, ("--lr", "1"), "train.py --lr 1 finished"),
        ({"how": "steps"}, (), "train.py was stopped after 4 steps, as asked"),
        ({"how": "interrupt"}, (), "train.py was interrupted"),
        ({"how": "terminated"}, (), "train.py was ended by SIGTERM"),
        ({"how": "exit", "exit_code": 2}, (), "train.py ended with sys.exit(2)"),
        ({"how": "error"}, (), "train.py ended in an exception at train.py:71: RuntimeError: boom"),
        ("missing", (), "train.py: how it ended is not in the trace"),
    ],
)
def test_ending_of_the_run_is_said(end, argv, expected):
    frames = (Frame(TRAIN, 71, "<module>", 1),)
    error = ScriptError(serial=Serial(0), type="RuntimeError", message="boom\nmore", frames=frames)
    events = [error] if end == {"how": "error"} else []
    shown = text(make_report(make_finding()), make_trace(events, end=end, header={"argv": argv}))
    assert f"  run          {expected}\n" in shown


def test_steps_of_a_broken_off_trace_are_counted():
    def step(serial, level):
        yield StepBoundary(serial=Serial(serial), after=Serial(serial), reason="batch", level=level)
        yield Backward(serial=Serial(serial + 1), end=Serial(serial + 2), call="Tensor.backward", roots=())

    events = [*step(0, "full"), *step(5, "watch"), Repeat(serial=Serial(9), like=Serial(5), count=7)]
    shown = text(make_report(), make_trace(events, end="missing"))
    assert shown.splitlines()[0] == "graphlint: no findings in 9 steps (1 at full level); 1 rule checked"
    assert "  not seen     everything after the place where the trace breaks off\n" in shown


def test_layout_is_values():
    report = make_report(make_finding())
    first = next(iter(layout(report, make_trace(), width=100)))
    assert "".join(piece for piece, _ in first) == "train.py:71: GL101 freed-graph-reuse (error)"


# --- what is put aside -----------------------------------------------------------------------------------


def aside(by, code="GL101", **fields):
    return Suppressed(finding=make_finding(code=code, **fields), by=by)


def test_hints_are_counted_and_printed_on_demand():
    report = make_report(make_finding(severity="info"), make_finding())
    shown = text(report)
    assert shown.count("GL101 freed-graph-reuse (error)") == 1
    assert "(info)" not in shown
    assert "graphlint: 1 error, 1 info in 4 steps" in shown
    assert "  info         1 not shown (GL101); --show-info prints them\n" in shown
    full = text(report, show_info=True)
    assert "GL101 freed-graph-reuse (info)" in full
    assert "not shown" not in full


def test_only_hints_leave_the_summary_alone():
    report = make_report(make_finding(severity="info"), make_finding(severity="info"))
    assert text(report).startswith("graphlint: 2 info in 4 steps")
    assert "  info         2 not shown (GL101 (2)); --show-info prints them\n" in text(report)
    assert text(report, summary=False) == ""
    assert "show-info = true in pyproject.toml prints them" in text(report, make_trace(header={"script": ""}))


def test_suppressed_findings_are_counted_by_what_suppressed_them():
    suppressed = (
        aside("comment"),
        aside("comment", code="GL301"),
        aside("comment"),
        aside("expect"),
        aside("per-file-ignores"),
        aside("baseline"),
    )
    report = msgspec.structs.replace(make_report(GL101="findings"), suppressed=suppressed)
    assert (
        text(report)
        == """\
graphlint: no findings, 6 suppressed in 4 steps (3 at full level); 1 rule checked
  suppressed   3 by comment: GL101 (2), GL301
  suppressed   1 by graphlint.expect: GL101
  suppressed   1 by per-file-ignores: GL101
  suppressed   1 by the baseline: GL101
"""
    )
    assert text(report, summary=False) == ""


def test_entries_of_a_baseline_that_are_gone_are_named():
    entries = tuple(BaselineEntry(fingerprint=str(n), code="GL101", path=f"{n}.py") for n in range(7))
    report = msgspec.structs.replace(
        make_report(GL101="clean"), baseline=BaselineUse(path="b.json", entries=9, matched=2, gone=entries)
    )
    said = " ".join(text(report).split())
    assert (
        "baseline 7 of 9 entries in b.json no longer found: GL101 in 0.py, GL101 in 1.py, GL101 in 2.py, "
        "GL101 in 3.py, GL101 in 4.py, 2 more"
    ) in said
