"""`graphlint.expect` declares faults as meant, does nothing where nothing records, hides no other fault."""

import contextlib
import inspect
import subprocess
import sys
import threading

import pytest
import torch

import graphlint
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.errors import FindingsError, UsageError
from graphlint.record.events import Repeat
from graphlint.record.expectations import ExpectBegin, ExpectEnd


def codes(report):
    assert report is not None
    return [finding.code for finding in report.findings]


def aside(report):
    return [(one.finding.code, one.by, one.reason) for one in report.suppressed]


def test_it_needs_no_torch_and_no_audit():
    code = (
        "import sys, graphlint\n"
        "with graphlint.expect('GL301', reason='meant'):\n    pass\n"
        "@graphlint.expect('GL301')\ndef double(x):\n    return 2 * x\n"
        "print(double(3), 'torch' in sys.modules, 'graphlint.lint' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("6 False False\n", "")


def test_a_fault_in_the_block_is_meant(trainer):
    with graphlint.audit() as audit:
        for _ in range(2):
            with graphlint.expect("GL201", reason="frozen"):
                trainer.bad()
    assert codes(audit.report) == []
    assert aside(audit.report) == [("GL201", "expect", "frozen")]


def test_a_block_around_the_loop_holds_while_it_is_open(trainer, capsys):
    step = graphlint.audit(trainer.bad)
    with graphlint.expect("detached-loss", reason="frozen"):
        for _ in range(5):
            step()
        assert capsys.readouterr().err == ""
    report = step.audit.end()
    assert codes(report) == []
    assert aside(report) == [("GL201", "expect", "frozen")]
    assert "1 suppressed in 5 steps" in capsys.readouterr().err


def test_the_same_fault_outside_is_reported(trainer, make_trainer):
    other = make_trainer()
    with graphlint.audit(select="GL201") as audit:
        for _ in range(2):
            graphlint.step()
            with graphlint.expect("GL201"):
                trainer.bad()
            other.bad()
    # The same lines of the class do both: what they did in a step was not all in the block.
    assert codes(audit.report).count("GL201") >= 1


def test_what_is_meant_does_not_raise(trainer):
    with graphlint.audit(on_finding="raise", select="GL201"), graphlint.expect("GL201"):
        trainer.bad()
    with (
        pytest.raises(FindingsError, match="GL901"),
        graphlint.audit(on_finding="raise", ignore="GL2"),
        graphlint.expect("GL101"),
    ):
        trainer.good()


def test_as_a_decorator(trainer):
    step = graphlint.expect("GL201", reason="frozen")(trainer.bad)
    assert step.__name__ == "bad"
    with graphlint.audit() as audit:
        for _ in range(2):
            step()
    assert aside(audit.report) == [("GL201", "expect", "frozen")]
    assert audit.report.suppressed[0].line == trainer.bad.__code__.co_firstlineno


def test_an_exit_stack_is_looked_through(trainer):
    line = inspect.currentframe().f_lineno + 2
    with graphlint.audit(select="GL901,GL101") as audit, contextlib.ExitStack() as stack:
        stack.enter_context(graphlint.expect("GL101"))
        trainer.good()
    assert [(one.code, one.path, one.line) for one in audit.report.findings] == [("GL901", __file__, line)]


def test_it_may_be_entered_again_from_within(trainer):
    meant = graphlint.expect("GL201", "GL3", reason="frozen")

    @meant
    def recursive(depth):
        if depth:
            recursive(depth - 1)
        else:
            trainer.bad()

    with Session(CaptureOptions()) as session:
        recursive(2)
    events = session.trace().events
    begins = [event.serial for event in events if isinstance(event, ExpectBegin)]
    ends = [event.begin for event in events if isinstance(event, ExpectEnd)]
    assert len(begins) == 3
    assert ends == begins[::-1]
    assert {event.rules for event in events if isinstance(event, ExpectBegin)} == {("GL201", "GL3")}


def test_an_exception_passes_and_ends_the_block():
    with (
        Session(CaptureOptions()) as session,
        pytest.raises(ValueError, match="theirs"),
        graphlint.expect("GL201"),
    ):
        raise ValueError("theirs")
    kinds = [type(event) for event in session.trace().events if isinstance(event, ExpectBegin | ExpectEnd)]
    assert kinds == [ExpectBegin, ExpectEnd]


def test_watched_steps_with_blocks_are_folded(trainer):
    with Session(CaptureOptions(level="watch")) as session:
        for _ in range(8):
            with graphlint.expect("GL201"):
                trainer.good()
    repeats = [event.count for event in session.trace().events if isinstance(event, Repeat)]
    assert sum(repeats) >= 5


def test_a_block_that_is_open_is_noted_by_each_capture(trainer):
    with contextlib.ExitStack() as block:
        with Session(CaptureOptions()) as first:
            block.enter_context(graphlint.expect("GL201"))
        with Session(CaptureOptions()) as second:
            block.close()
        with Session(CaptureOptions()) as third:
            trainer.good()
    kinds = [
        [type(event) for event in session.trace().events if isinstance(event, ExpectBegin | ExpectEnd)]
        for session in (first, second, third)
    ]
    assert kinds == [[ExpectBegin], [ExpectBegin, ExpectEnd], []]


def test_blocks_of_other_threads_are_not_noted(trainer):
    entered, done = threading.Event(), threading.Event()

    def other():
        with graphlint.expect("GL201"):
            entered.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with Session(CaptureOptions()) as session:
        trainer.good()
        done.set()
        thread.join()
    assert not [event for event in session.trace().events if isinstance(event, ExpectBegin | ExpectEnd)]


def test_training_is_the_same(make_trainer):
    def weights(meant):
        torch.manual_seed(0)
        trainer = make_trainer()
        with Session(CaptureOptions()):
            for _ in range(5):
                with meant():
                    trainer.good()
        return trainer.model.weight

    plain = graphlint.expect("GL301", reason="x")
    assert torch.equal(weights(lambda: plain), weights(lambda: graphlint.expect("GL2")))


@pytest.mark.parametrize("rules", [(), ("",), ("GL301,",), (301,), (["GL301"],)])
def test_without_a_rule_it_is_refused(rules):
    with pytest.raises(UsageError, match=r"graphlint\.expect"):
        graphlint.expect(*rules)


def test_a_reason_is_text():
    with pytest.raises(UsageError, match="the reason is given as text, not as int"):
        graphlint.expect("GL301", reason=3)


async def coroutine():
    pass


def generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, int, 3])
def test_what_has_no_body_that_runs_in_the_call_is_refused(function):
    with pytest.raises(UsageError, match="decorates a plain function or method, not"):
        graphlint.expect("GL301")(function)


@pytest.mark.parametrize("recording", [False, True])
def test_compiled_code_may_hold_a_block(recording):
    @graphlint.expect("GL301")
    def decorated(x):
        return x + 1

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x):
        with graphlint.expect("GL301", reason="meant"):
            return decorated(x * 2)

    with Session(CaptureOptions()) if recording else contextlib.nullcontext():
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    torch._dynamo.reset()
