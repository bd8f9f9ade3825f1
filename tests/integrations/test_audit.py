"""`graphlint.audit` around functions: what is a step, when it ends, what it prints and leaves."""

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import graphlint
from graphlint.capture.taps.zero_grad import ZeroGradTap
from graphlint.errors import FindingsError, NothingCheckedError, UsageError
from graphlint.lint.discovery import all_rules
from graphlint.lint.rule import Report

CLEAN = "graphlint: no findings in {} steps"


def codes(report: Report | None) -> list[str]:
    assert report is not None
    return [finding.code for finding in report.findings]


def test_public_names() -> None:
    assert graphlint.__all__ == ["__version__", "audit", "expect", "step"]
    assert dir(graphlint) == graphlint.__all__
    assert all(getattr(graphlint, name) for name in graphlint.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lint_everything'"):
        graphlint.lint_everything  # noqa: B018 - the lookup is the test


def test_decorated_function_ends_after_its_steps(capsys: pytest.CaptureFixture[str], trainer) -> None:
    step = graphlint.audit(steps=2)(trainer.good)
    losses = [step()]
    assert step.report is None
    assert capsys.readouterr().err == ""
    losses.append(step())
    assert codes(step.report) == []
    assert capsys.readouterr().err.startswith(CLEAN.format(2))
    losses.append(step())
    assert capsys.readouterr().err == ""
    assert len(set(losses)) == 3


def test_bare_decorator_keeps_the_functions_face_and_ends_by_hand(
    capsys: pytest.CaptureFixture[str], trainer
) -> None:
    @graphlint.audit
    def train_step(inputs: torch.Tensor, *, scale: float = 1.0) -> float:
        """Trains."""
        return trainer.good(inputs * scale)

    assert (train_step.__name__, train_step.__doc__) == ("train_step", "Trains.")
    assert list(inspect.signature(train_step).parameters) == ["inputs", "scale"]
    for _ in range(4):
        train_step(torch.ones(1, 2), scale=2.0)
    report = train_step.audit.end()
    assert codes(report) == []
    assert train_step.report is report
    assert train_step.audit.end() is report
    assert capsys.readouterr().err.startswith(f"{CLEAN.format(4)} (3 at full level)")


def test_findings_are_printed_once_and_kept(capsys: pytest.CaptureFixture[str], trainer) -> None:
    step = graphlint.audit(steps=2, select="GL201")(trainer.bad)
    for _ in range(3):
        step()
    assert codes(step.report) == ["GL201"]
    err = capsys.readouterr().err
    assert err.count("GL201 detached-loss (error)") == 1
    assert "1 error in 2 steps" in err


def test_findings_of_the_first_steps_do_not_wait_for_the_end(
    capsys: pytest.CaptureFixture[str], trainer, make_trainer
) -> None:
    turns = iter([trainer.bad] * 5 + [make_trainer().reusing])

    @graphlint.audit(select=["GL201", "GL101"])
    def step() -> None:
        next(turns)()

    for _ in range(3):
        step()
    early = capsys.readouterr().err
    assert early.count("GL201 detached-loss (error)") == 1
    assert early.endswith("\n\ngraphlint: found in the first 3 calls; the audit goes on\n")
    assert early.count("graphlint: ") == 1
    assert "breaks off" not in early
    assert "checked" not in early
    step()
    step()
    assert step.report is None
    with pytest.raises(RuntimeError, match="second time"):
        step()
    late = capsys.readouterr().err
    assert "graphlint: 2 errors in 6 steps" in late
    assert late.count("graphlint: ") == 1
    assert "the audited code ended in an exception" in late
    assert "GL101 freed-graph-reuse (error)" in late
    assert "GL201" not in late
    assert sorted(codes(step.report)) == ["GL101", "GL201"]


def test_an_early_report_is_summed_up_at_the_end_without_its_findings(
    capsys: pytest.CaptureFixture[str], trainer
) -> None:
    step = graphlint.audit(trainer.bad)
    for _ in range(10):
        step()
    assert "GL201 detached-loss (error)" in capsys.readouterr().err
    report = step.audit.end()
    late = capsys.readouterr().err
    rules = len(all_rules())
    assert late.startswith(f"graphlint: 1 error in 10 steps (3 at full level); {rules} rules checked\n")
    assert "  run          the audited code finished\n" in late
    assert "GL201" not in late
    assert "breaks off" not in late
    assert codes(report) == ["GL201"]


def test_raise_comes_after_the_last_step(capsys: pytest.CaptureFixture[str], trainer) -> None:
    step = graphlint.audit(on_finding="raise", select=["GL201"])(trainer.bad)
    step()
    step()
    with pytest.raises(FindingsError, match="GL201 detached-loss"):
        step()
    assert codes(step.report) == ["GL201"]
    step()
    assert capsys.readouterr().err == ""


def test_raised_findings_are_the_whole_report_and_not_printed_beside(
    capsys: pytest.CaptureFixture[str], trainer
) -> None:
    step = graphlint.audit(on_finding="raise", steps=1, select=["GL201"])(trainer.bad)
    with pytest.raises(FindingsError) as raised:
        step()
    assert str(raised.value).count("GL201 detached-loss (error)") == 1
    assert "the audited code: its first step was recorded, as asked" in str(raised.value)
    assert capsys.readouterr().err == ""


def test_how_many_steps_were_recorded_is_said_as_it_is(
    capsys: pytest.CaptureFixture[str], trainer, make_trainer
) -> None:
    step = graphlint.audit(steps=2, select=["GL201"])(trainer.bad)
    for _ in range(4):
        step()
    err = capsys.readouterr().err
    assert "the audited code: its first 2 steps were recorded, as asked\n" in err
    assert "stopped" not in err
    unasked = graphlint.audit(on_finding="raise", select=["GL201"])(make_trainer().bad)
    unasked()
    unasked()
    with pytest.raises(FindingsError, match=r"the audited code: its first 3 steps were recorded\n"):
        unasked()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "nothing was checked: no backward and no optimizer step was recorded"),
        (
            lambda: [torch.ones(1, requires_grad=True).sum() for _ in range(3)],
            "nothing was checked: no backward and no optimizer step was recorded",
        ),
    ],
)
def test_raise_is_not_silent_when_nothing_trained(
    function: Callable[[], object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step = graphlint.audit(steps=1, on_finding="raise")(function)
    with pytest.raises(NothingCheckedError, match=words):
        step()
    assert capsys.readouterr().err == ""
    assert codes(step.report) == []


def test_raise_is_not_silent_when_no_rule_could_judge(trainer) -> None:
    step = graphlint.audit(steps=1, on_finding="raise", level="watch", select="GL401")(trainer.good)
    with pytest.raises(NothingCheckedError, match=r"nothing was checked: .* full level only"):
        step()


def test_raise_is_not_silent_when_the_function_was_never_called(trainer) -> None:
    step = graphlint.audit(on_finding="raise")(trainer.good)
    with pytest.raises(NothingCheckedError, match="never called"):
        step.audit.end()


def test_raise_is_not_silent_when_a_tap_failed(monkeypatch: pytest.MonkeyPatch, trainer) -> None:
    def broken(*arguments: object, **named: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr(ZeroGradTap, "_after", broken)
    step = graphlint.audit(steps=1, on_finding="raise")(trainer.good)
    with pytest.raises(
        NothingCheckedError, match=r"GL102 was not checked: calls of zero_grad .* a bug of ours"
    ):
        step()


def test_raise_is_not_silent_when_the_audit_itself_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trainer
) -> None:
    def broken(*arguments: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("graphlint.lint.policy.judge", broken)
    step = graphlint.audit(steps=1, on_finding="raise")(trainer.good)
    with pytest.raises(NothingCheckedError, match="ended without a report"):
        step()
    assert "LookupError: a bug of ours" in capsys.readouterr().err


def test_raise_does_not_wait_for_the_last_step_when_the_first_show_it(trainer) -> None:
    step = graphlint.audit(steps=50, on_finding="raise", select="GL201")(trainer.bad)
    step()
    step()
    with pytest.raises(FindingsError, match="GL201 detached-loss"):
        step()
    assert codes(step.report) == ["GL201"]


def test_raise_does_not_raise_when_clean(trainer) -> None:
    step = graphlint.audit(steps=1, on_finding="raise")(trainer.good)
    step()
    assert codes(step.report) == []


@pytest.mark.parametrize("on_finding", ["report", "raise"])
def test_what_a_step_raises_passes_and_ends_the_audit(
    on_finding: str, capsys: pytest.CaptureFixture[str], trainer
) -> None:
    step = graphlint.audit(on_finding=on_finding)(trainer.reusing)
    with pytest.raises(RuntimeError, match="second time"):
        step()
    assert codes(step.report) == ["GL101"]
    assert "GL101 freed-graph-reuse (error)" in capsys.readouterr().err


def test_recursion_is_one_step(trainer) -> None:
    @graphlint.audit(steps=2)
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            trainer.good()

    down(3)
    assert down.report is None
    down(3)
    assert codes(down.report) == []


def test_methods_of_every_kind(make_trainer) -> None:
    class Training(make_trainer):
        @graphlint.audit(steps=1)
        def method(self) -> float:
            return self.good()

        @staticmethod
        @graphlint.audit(steps=1)
        def static(trainer) -> float:
            return trainer.good()

        @graphlint.audit(steps=1)
        @staticmethod
        def static_inside(trainer) -> float:
            return trainer.good()

        @classmethod
        @graphlint.audit(steps=1)
        def of_class(cls) -> float:
            return cls().good()

        @graphlint.audit(steps=1)
        @classmethod
        def of_class_inside(cls) -> float:
            return cls().good()

    trainer = Training()
    assert isinstance(trainer.method(), float)
    Training.static(trainer)
    Training.static_inside(trainer)
    Training.of_class()
    Training.of_class_inside()
    for audited in (trainer.method, Training.static, Training.static_inside):
        assert codes(audited.report) == []
    for bound in (Training.of_class, Training.of_class_inside):
        assert codes(bound.report) == []


def test_async_function_is_audited_through_its_body(trainer) -> None:
    @graphlint.audit(steps=2, select=["GL201"])
    async def train_step() -> float:
        await asyncio.sleep(0)
        return trainer.bad()

    async def main() -> None:
        await train_step()
        assert train_step.report is None
        await train_step()

    assert inspect.iscoroutinefunction(train_step)
    asyncio.run(main())
    assert codes(train_step.report) == ["GL201"]


def test_a_call_in_another_thread_is_not_a_step(trainer) -> None:
    step = graphlint.audit(steps=2)(trainer.good)
    step()
    thread = threading.Thread(target=step, args=(torch.ones(1, 2),))
    thread.start()
    thread.join()
    assert step.report is None
    step()
    assert step.report is not None


def test_two_threads_cannot_audit_at_once(trainer, make_trainer) -> None:
    refused: list[Exception] = []

    def other() -> None:
        try:
            graphlint.audit(make_trainer().good)()
        except UsageError as error:
            refused.append(error)

    with graphlint.audit():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        trainer.good()
    assert ["audits can't be nested" in str(error) for error in refused] == [True]


def test_generators_and_classes_are_refused(make_trainer) -> None:
    def batches() -> Iterator[int]:
        yield 1

    async def batches_later() -> object:
        yield 1

    for function in (batches, batches_later):
        with pytest.raises(UsageError, match="is a generator: its body runs after the call has returned"):
            graphlint.audit(function)
    with pytest.raises(UsageError, match="decorates a function or a method, not"):
        graphlint.audit(make_trainer)
    with pytest.raises(UsageError, match="decorates a function or a method, not"):
        graphlint.audit(steps=1)(3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 0}, "steps=0: give a whole number from 1"),
        ({"steps": 1.5}, "steps=1.5: give a whole number from 1"),
        ({"steps": "3"}, "steps='3': give a whole number from 1"),
        ({"steps": True}, "steps=True: give a whole number from 1"),
        ({"select": 5}, "5: give a name or a list of names"),
        ({"level": "high"}, "level='high': give one of auto, full, watch"),
        ({"on_finding": "stop"}, "on_finding='stop': give one of report, raise"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        graphlint.audit(**arguments)


@pytest.mark.parametrize("arguments", [{"select": "GL999"}, {"simulate": "tpu"}])
def test_unknown_rules_and_devices_are_refused_at_the_first_call(
    arguments: dict[str, object], trainer
) -> None:
    step = graphlint.audit(**arguments)(trainer.good)
    with pytest.raises(UsageError, match=r"GL999|tpu"):
        step()


def test_one_audit_serves_one_use(make_trainer) -> None:
    audit = graphlint.audit()
    audit(make_trainer().good)
    with pytest.raises(UsageError, match=r"already serves the function Trainer\.good"):
        audit(make_trainer().bad)
    with pytest.raises(UsageError, match="already serves"), audit:
        pass


def test_simulated_devices_are_there_inside_the_audit() -> None:
    @graphlint.audit(steps=1, simulate="cuda")
    def train_step() -> str:
        model = nn.Linear(2, 1).to("cuda")
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        return str(model.weight.device)

    assert train_step() == "cuda:0"
    assert not torch.cuda.is_available()
    assert codes(train_step.report) is not None


def test_own_fault_at_the_end_is_printed_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trainer
) -> None:
    def broken(*arguments: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("graphlint.lint.policy.judge", broken)
    step = graphlint.audit(steps=1)(trainer.good)
    assert isinstance(step(), float)
    assert step.report is None
    err = capsys.readouterr().err
    assert "LookupError: a bug of ours" in err
    assert "a fault of graphlint's own" in err
    assert isinstance(step(), float)


def test_tensors_die_as_without_an_audit(trainer) -> None:
    step = graphlint.audit(trainer.good)
    counts = []
    for _ in range(5):
        step()
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    step.audit.end()
    assert len(set(counts[1:])) == 1
