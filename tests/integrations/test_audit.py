"""`graphlint.audit` around functions and loops: what is a step, when it ends, what it prints and leaves."""

import asyncio
import gc
import inspect
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import graphlint
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session, active_session
from graphlint.errors import FindingsError, UsageError
from graphlint.lint.rule import Report

CLEAN = "graphlint: no findings in {} steps"


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    call, zero_grad = nn.Module._call_impl, torch.optim.SGD.zero_grad
    yield
    assert active_session() is None
    assert _get_current_function_mode_stack() == []
    assert (nn.Module._call_impl, torch.optim.SGD.zero_grad) == (call, zero_grad)


class Trainer:
    """A model with a step that is right and one whose loss is cut off from the model."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def good(self, inputs: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.model(inputs).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def bad(self, inputs: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        scale = torch.ones(1, requires_grad=True)
        loss = self.model(inputs).detach().pow(2).mean() * scale
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def reusing(self, inputs: torch.Tensor) -> None:
        loss = self.model(inputs).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        loss.backward()


INPUTS = torch.ones(1, 2)


def codes(report: Report | None) -> list[str]:
    assert report is not None
    return [finding.code for finding in report.findings]


def test_public_names() -> None:
    assert graphlint.__all__ == ["__version__", "audit", "step"]
    assert dir(graphlint) == graphlint.__all__
    assert all(getattr(graphlint, name) for name in graphlint.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lint_everything'"):
        graphlint.lint_everything  # noqa: B018 - the lookup is the test


def test_decorated_function_ends_after_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    step = graphlint.audit(steps=2)(trainer.good)
    losses = [step(INPUTS)]
    assert step.report is None
    assert capsys.readouterr().err == ""
    losses.append(step(INPUTS))
    assert codes(step.report) == []
    assert capsys.readouterr().err.startswith(CLEAN.format(2))
    losses.append(step(INPUTS))
    assert capsys.readouterr().err == ""
    assert len(set(losses)) == 3


def test_bare_decorator_keeps_the_functions_face_and_ends_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()

    @graphlint.audit
    def train_step(inputs: torch.Tensor, *, scale: float = 1.0) -> float:
        """Trains."""
        return trainer.good(inputs * scale)

    assert (train_step.__name__, train_step.__doc__) == ("train_step", "Trains.")
    assert list(inspect.signature(train_step).parameters) == ["inputs", "scale"]
    for _ in range(4):
        train_step(INPUTS, scale=2.0)
    report = train_step.audit.end()
    assert codes(report) == []
    assert train_step.report is report
    assert train_step.audit.end() is report
    assert capsys.readouterr().err.startswith(f"{CLEAN.format(4)} (3 at full level)")


def test_findings_are_printed_once_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    step = graphlint.audit(steps=2, select="GL201")(Trainer().bad)
    for _ in range(3):
        step(INPUTS)
    assert codes(step.report) == ["GL201"]
    err = capsys.readouterr().err
    assert err.count("GL201 detached-loss (error)") == 1
    assert "1 error in 2 steps" in err


def test_findings_of_the_first_steps_do_not_wait_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    turn = iter([trainer.bad] * 5 + [Trainer().reusing])
    step = graphlint.audit(select=["GL201", "GL101"])(lambda: next(turn)(INPUTS))
    for _ in range(3):
        step()
    early = capsys.readouterr().err
    assert early.count("GL201 detached-loss (error)") == 1
    assert "1 error in 3 steps" in early
    step()
    step()
    assert step.report is None
    with pytest.raises(RuntimeError, match="second time"):
        step()
    late = capsys.readouterr().err
    assert late.startswith("tests/integrations/test_audit.py:")
    assert "GL101 freed-graph-reuse (error)" in late
    assert "GL201" not in late
    assert sorted(codes(step.report)) == ["GL101", "GL201"]


def test_raise_comes_after_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    step = graphlint.audit(on_finding="raise", select=["GL201"])(Trainer().bad)
    step(INPUTS)
    step(INPUTS)
    with pytest.raises(FindingsError, match="GL201 detached-loss"):
        step(INPUTS)
    assert codes(step.report) == ["GL201"]
    step(INPUTS)
    assert capsys.readouterr().err.count("GL201 detached-loss") == 1


def test_raise_does_not_wait_for_the_last_step_when_the_first_show_it() -> None:
    step = graphlint.audit(steps=50, on_finding="raise", select="GL201")(Trainer().bad)
    step(INPUTS)
    step(INPUTS)
    with pytest.raises(FindingsError, match="GL201 detached-loss"):
        step(INPUTS)
    assert codes(step.report) == ["GL201"]


def test_raise_does_not_raise_when_clean() -> None:
    step = graphlint.audit(steps=1, on_finding="raise")(Trainer().good)
    step(INPUTS)
    assert codes(step.report) == []


@pytest.mark.parametrize("on_finding", ["report", "raise"])
def test_what_a_step_raises_passes_and_ends_the_audit(
    on_finding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step = graphlint.audit(on_finding=on_finding)(Trainer().reusing)
    with pytest.raises(RuntimeError, match="second time"):
        step(INPUTS)
    assert codes(step.report) == ["GL101"]
    assert "GL101 freed-graph-reuse (error)" in capsys.readouterr().err


def test_recursion_is_one_step() -> None:
    trainer = Trainer()

    @graphlint.audit(steps=2)
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            trainer.good(INPUTS)

    down(3)
    assert down.report is None
    down(3)
    assert codes(down.report) == []


def test_methods_of_every_kind() -> None:
    class Training(Trainer):
        @graphlint.audit(steps=1)
        def method(self, inputs: torch.Tensor) -> float:
            return self.good(inputs)

        @staticmethod
        @graphlint.audit(steps=1)
        def static(trainer: Trainer) -> float:
            return trainer.good(INPUTS)

        @graphlint.audit(steps=1)
        @staticmethod
        def static_inside(trainer: Trainer) -> float:
            return trainer.good(INPUTS)

        @classmethod
        @graphlint.audit(steps=1)
        def of_class(cls, inputs: torch.Tensor) -> float:
            return cls().good(inputs)

        @graphlint.audit(steps=1)
        @classmethod
        def of_class_inside(cls, inputs: torch.Tensor) -> float:
            return cls().good(inputs)

    trainer = Training()
    assert isinstance(trainer.method(INPUTS), float)
    Training.static(trainer)
    Training.static_inside(trainer)
    Training.of_class(INPUTS)
    Training.of_class_inside(INPUTS)
    for audited in (trainer.method, Training.static, Training.static_inside):
        assert codes(audited.report) == []
    for bound in (Training.of_class, Training.of_class_inside):
        assert codes(bound.report) == []


def test_async_function_is_audited_through_its_body() -> None:
    trainer = Trainer()

    @graphlint.audit(steps=2, select=["GL201"])
    async def train_step(inputs: torch.Tensor) -> float:
        await asyncio.sleep(0)
        return trainer.bad(inputs)

    async def main() -> None:
        await train_step(INPUTS)
        assert train_step.report is None
        await train_step(INPUTS)

    assert inspect.iscoroutinefunction(train_step)
    asyncio.run(main())
    assert codes(train_step.report) == ["GL201"]


def test_a_call_in_another_thread_is_not_a_step() -> None:
    trainer = Trainer()
    step = graphlint.audit(steps=2)(trainer.good)
    step(INPUTS)
    thread = threading.Thread(target=step, args=(INPUTS,))
    thread.start()
    thread.join()
    assert step.report is None
    step(INPUTS)
    assert step.report is not None


def test_generators_and_classes_are_refused() -> None:
    def batches() -> Iterator[int]:
        yield 1

    async def batches_later() -> object:
        yield 1

    for function in (batches, batches_later):
        with pytest.raises(UsageError, match="is a generator: its body runs after the call has returned"):
            graphlint.audit(function)
    with pytest.raises(UsageError, match="decorates a function or a method, not"):
        graphlint.audit(Trainer)
    with pytest.raises(UsageError, match="decorates a function or a method, not"):
        graphlint.audit(steps=1)(3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 0}, "steps=0: give a whole number from 1"),
        ({"level": "high"}, "level='high': give one of auto, full, watch"),
        ({"on_finding": "stop"}, "on_finding='stop': give one of report, raise"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        graphlint.audit(**arguments)


@pytest.mark.parametrize("arguments", [{"select": "GL999"}, {"simulate": "tpu"}])
def test_unknown_rules_and_devices_are_refused_at_the_first_call(arguments: dict[str, object]) -> None:
    step = graphlint.audit(**arguments)(Trainer().good)
    with pytest.raises(UsageError, match=r"GL999|tpu"):
        step(INPUTS)


def test_one_audit_serves_one_use() -> None:
    audit = graphlint.audit()
    audit(Trainer().good)
    with pytest.raises(UsageError, match=r"already serves the function Trainer\.good"):
        audit(Trainer().bad)
    with pytest.raises(UsageError, match="already serves"), audit:
        pass


def test_nesting_is_refused_and_the_outer_audit_goes_on() -> None:
    inner = graphlint.audit(Trainer().good)
    with graphlint.audit() as outer:
        with pytest.raises(
            UsageError, match=r"another graphlint\.audit is active, and audits can't be nested"
        ):
            inner(INPUTS)
        with pytest.raises(UsageError, match="can't be nested"), graphlint.audit():
            pass
        Trainer().good(INPUTS)
    assert codes(outer.report) == []


def test_block_finds_its_steps_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    with graphlint.audit(select="GL201") as audit:
        for _ in range(3):
            trainer.bad(INPUTS)
        assert audit.report is None
    assert codes(audit.report) == ["GL201"]
    assert "1 error in 3 steps" in capsys.readouterr().err


def test_block_goes_on_after_the_steps_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    with graphlint.audit(steps=2, select="GL201") as audit:
        for _ in range(12):
            trainer.good(INPUTS)
        trainer.bad(INPUTS)
        reached = True
    assert reached
    assert codes(audit.report) == []
    assert capsys.readouterr().err.startswith(CLEAN.format(2))


def test_block_counts_repeated_steps_up_to_those_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    with graphlint.audit(steps=7):
        for _ in range(12):
            trainer.good(INPUTS)
    assert capsys.readouterr().err.startswith(CLEAN.format(7))


def test_steps_marked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    with graphlint.audit():
        for _ in range(2):
            graphlint.step()
            trainer.good(INPUTS)
            trainer.good(INPUTS)
    assert capsys.readouterr().err.startswith(CLEAN.format(2))


def test_step_outside_of_an_audit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"graphlint\.step\(\) was called outside of an audit"):
        graphlint.step()


def test_block_that_raises_reports_and_passes_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="second time"), graphlint.audit(on_finding="raise") as audit:
        Trainer().reusing(INPUTS)
    assert codes(audit.report) == ["GL101"]
    assert capsys.readouterr().err.count("GL101 freed-graph-reuse (error)") == 1


def test_block_raises_its_findings_at_its_end() -> None:
    with pytest.raises(FindingsError, match="GL201"), graphlint.audit(on_finding="raise", select="GL201"):
        Trainer().bad(INPUTS)


def test_under_graphlint_run_calls_mark_steps_and_the_run_reports(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    step = graphlint.audit(steps=1, on_finding="raise")(lambda: (trainer.bad(INPUTS), trainer.good(INPUTS)))
    with Session(CaptureOptions(script="train.py")) as session:
        for _ in range(3):
            step()
        with graphlint.audit() as block:
            graphlint.step()
            trainer.good(INPUTS)
        session.close("finished", 0)
    assert capsys.readouterr().err == ""
    assert (step.report, block.report) == (None, None)
    end = session.trace().end
    assert end is not None
    assert end.steps == 4


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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> object:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("graphlint.lint.runner.judge", broken)
    step = graphlint.audit(steps=1)(Trainer().good)
    assert isinstance(step(INPUTS), float)
    assert step.report is None
    err = capsys.readouterr().err
    assert "LookupError: a bug of ours" in err
    assert "a fault of graphlint's own" in err
    assert isinstance(step(INPUTS), float)


def test_tensors_die_as_without_an_audit() -> None:
    trainer = Trainer()
    step = graphlint.audit(trainer.good)
    counts = []
    for _ in range(5):
        step(INPUTS)
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    step.audit.end()
    assert len(set(counts[1:])) == 1
