"""Ctrl-C waits for the end of a step, a second one doesn't, and the handler is put back."""

import signal
import threading

import pytest

from graphlint.reference.interruption import Interruption, TrainingInterrupted


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_is_noted_and_the_second_raises():
    with pytest.raises(KeyboardInterrupt), Interruption() as interruption:  # noqa: PT012 - in this order
        assert not interruption.asked
        press()
        assert interruption.asked
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_changes():
    with Interruption() as interruption:
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert not interruption.asked
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_anothers_handler_stays(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *arguments: seen.append(arguments[0]))
    try:
        with Interruption() as interruption:
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert not interruption.asked


def test_other_threads_leave_the_handler_alone():
    handlers = []

    def work() -> None:
        with Interruption():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_ctrl_c_between_epochs_saves_the_step_it_followed(tiny, tmp_path):
    dataset = tiny.Pairs()
    run = tiny.make_run(tmp_path, dataset=dataset)
    set_epoch = dataset.set_epoch
    dataset.set_epoch = lambda epoch: (set_epoch(epoch), epoch == 1 and press())
    with pytest.raises(TrainingInterrupted, match=r"after step 4 of 20; saved in .*checkpoint\.pt, resume"):
        run.train()
    assert run.saved_steps == run.trainer.steps == 4
    assert issubclass(TrainingInterrupted, KeyboardInterrupt)
    tiny.make_run(tmp_path).train(resume=True)
    tiny.make_run(tmp_path / "whole").train()
    assert (tmp_path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
