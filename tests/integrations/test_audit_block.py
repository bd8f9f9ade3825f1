"""`graphlint.audit` around loops, steps marked by hand, nesting, and audits under `graphlint run`."""

import threading

import pytest

import graphlint
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.errors import FindingsError, NothingCheckedError, UsageError
from graphlint.lint.rule import Report

CLEAN = "graphlint: no findings in {} steps"


def codes(report: Report | None) -> list[str]:
    assert report is not None
    return [finding.code for finding in report.findings]


def test_nesting_is_refused_and_the_outer_audit_goes_on(make_trainer) -> None:
    inner = graphlint.audit(make_trainer().good)
    with graphlint.audit() as outer:
        with pytest.raises(
            UsageError, match=r"another graphlint\.audit is active, and audits can't be nested"
        ):
            inner()
        with pytest.raises(UsageError, match="can't be nested"), graphlint.audit():
            pass
        make_trainer().good()
    assert codes(outer.report) == []


def test_block_finds_its_steps_by_itself(capsys: pytest.CaptureFixture[str], trainer) -> None:
    with graphlint.audit(select="GL201") as audit:
        for _ in range(3):
            trainer.bad()
        assert audit.report is None
    assert codes(audit.report) == ["GL201"]
    assert "1 error in 3 steps" in capsys.readouterr().err


def test_block_goes_on_after_the_steps_asked_for(capsys: pytest.CaptureFixture[str], trainer) -> None:
    with graphlint.audit(steps=2, select="GL201") as audit:
        for _ in range(12):
            trainer.good()
        trainer.bad()
        reached = True
    assert reached
    assert codes(audit.report) == []
    assert capsys.readouterr().err.startswith(CLEAN.format(2))


def test_block_counts_repeated_steps_up_to_those_asked_for(
    capsys: pytest.CaptureFixture[str], trainer
) -> None:
    with graphlint.audit(steps=7):
        for _ in range(12):
            trainer.good()
    assert capsys.readouterr().err.startswith(CLEAN.format(7))


def test_steps_marked_by_hand(capsys: pytest.CaptureFixture[str], trainer) -> None:
    with graphlint.audit():
        for _ in range(2):
            graphlint.step()
            trainer.good()
            trainer.good()
    assert capsys.readouterr().err.startswith(CLEAN.format(2))


def test_step_outside_of_an_audit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"graphlint\.step\(\) was called outside of an audit"):
        graphlint.step()


def test_block_that_raises_reports_and_passes_it(capsys: pytest.CaptureFixture[str], trainer) -> None:
    with pytest.raises(RuntimeError, match="second time"), graphlint.audit(on_finding="raise") as audit:
        trainer.reusing()
    assert codes(audit.report) == ["GL101"]
    assert capsys.readouterr().err.count("GL101 freed-graph-reuse (error)") == 1


def test_block_raises_its_findings_at_its_end(trainer) -> None:
    with pytest.raises(FindingsError, match="GL201"), graphlint.audit(on_finding="raise", select="GL201"):
        trainer.bad()


def test_block_that_trains_nothing_does_not_pass_for_clean(trainer) -> None:
    thread = threading.Thread(target=trainer.good)

    def train_elsewhere() -> None:
        with graphlint.audit(on_finding="raise"):
            thread.start()
            thread.join()

    with pytest.raises(NothingCheckedError, match="not seen: backward calls in other threads"):
        train_elsewhere()


def test_under_graphlint_run_calls_mark_steps_and_the_run_reports(
    capsys: pytest.CaptureFixture[str], trainer
) -> None:
    step = graphlint.audit(steps=1, on_finding="raise")(lambda: (trainer.bad(), trainer.good()))
    with Session(CaptureOptions(script="train.py")) as session:
        for _ in range(3):
            step()
        with graphlint.audit() as block:
            graphlint.step()
            trainer.good()
        session.close("finished", 0)
    assert capsys.readouterr().err == ""
    assert (step.report, block.report) == (None, None)
    end = session.trace().end
    assert end is not None
    assert end.steps == 4


def test_under_graphlint_run_a_call_in_another_thread_is_no_step(trainer, make_trainer) -> None:
    step = graphlint.audit(make_trainer().good)
    with Session(CaptureOptions(script="train.py")) as session:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        for _ in range(2):
            step()
            trainer.good()
    end = session.trace().end
    assert end is not None
    assert end.steps == 4


def test_marking_a_step_from_another_thread_is_refused() -> None:
    refused: list[Exception] = []

    def other() -> None:
        try:
            graphlint.step()
        except UsageError as error:
            refused.append(error)

    with graphlint.audit():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
