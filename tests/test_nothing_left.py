"""The proof that nothing is left installed can itself fail."""

import gc

import pytest
import torch
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import _get_current_function_mode_stack

from graphlint.capture import session as sessions
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

FULL_TAPS = ("ModulesTap", "ModuleMovesTap", "CustomFunctionsTap", "OperationsTap")
WATCH_TAPS = ("OptimizerTap", "ZeroGradTap", "BackwardTap", "BatchesTap", "CleanupTap", "ModesTap")
LIGHT_TAPS = ("ClippingTap", "SchedulersTap", "ScalersTap")
OTHER_TAPS = ("CompiledTap", "ScriptedTap")


def installed() -> dict[str, object]:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    return {
        "backward": torch.autograd._engine_run_backward,
        "engine": torch.autograd.graph._engine_run_backward,
        "apply": vars(torch.autograd.Function)["apply"],
        "init": torch.optim.Optimizer.__init__,
        "add": torch.optim.Optimizer.add_param_group,
        "zero": torch.optim.Optimizer.zero_grad,
        "call": torch.nn.Module._call_impl,
        "to": torch.nn.Module.to,
        "train": torch.nn.Module.train,
        "next": _BaseDataLoaderIter.__next__,
        "collect": gc.collect,
        "empty": torch.cuda.empty_cache,
        "no_grad": (torch.no_grad.__enter__, torch.no_grad.__exit__),
        "inference": (torch.inference_mode.__enter__, torch.inference_mode.__exit__),
        "compile": torch.compile,
        "script": torch.jit.script,
        "trace": torch.jit._trace._trace_impl,
        "export": torch.export.export,
        "record": torch.autograd.profiler.record_function.__exit__,
        "clip": clip_grad_value_.__closure__[0].cell_contents,
        "norm": clip_grads_with_norm_.__closure__[0].cell_contents,
        "scheduler": torch.optim.lr_scheduler.LRScheduler.__setattr__,
        "scaler": torch.amp.GradScaler.step,
        "modes": tuple(_get_current_function_mode_stack()),
    }


def changed(before: dict[str, object]) -> set[str]:
    return {name for name, value in installed().items() if value != before[name]}


def test_the_proof_sees_a_session_that_is_open() -> None:
    before = installed()
    with Session(CaptureOptions(level="full")):
        assert changed(before) == set(before)
    assert not changed(before)


def test_the_watch_level_arms_no_mode() -> None:
    before = installed()
    with Session(CaptureOptions(level="watch")):
        assert not {"modes", "call", "to", "apply", "no_grad"} & changed(before)


def test_the_proof_sees_a_hook_that_is_left() -> None:
    from torch.optim import optimizer as optimizers

    handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: None)
    assert len(optimizers._global_optimizer_post_hooks) == 1
    handle.remove()


@pytest.mark.parametrize("tap", [*FULL_TAPS, *WATCH_TAPS, *LIGHT_TAPS, *OTHER_TAPS])
@pytest.mark.parametrize("half", [False, True])
def test_a_tap_that_fails_to_arm_unwinds_all(monkeypatch: pytest.MonkeyPatch, tap: str, half) -> None:
    before = installed()
    kind = getattr(sessions, tap)
    arm = kind.arm

    def fail(self: object, stack: object) -> None:
        if half:
            arm(self, stack)
        raise RuntimeError("can't arm")

    monkeypatch.setattr(kind, "arm", fail)
    with pytest.raises(RuntimeError, match="can't arm"), Session(CaptureOptions(level="full")):
        pass
    assert not changed(before)
    assert sessions.active_session() is None
    monkeypatch.undo()
    with Session(CaptureOptions(level="full")):
        assert changed(before)
    assert not changed(before)


@pytest.mark.parametrize("level", ["full", "auto", "watch"])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, sessions.StopRun])
def test_a_body_that_raises_leaves_nothing(level: str, kind: type[BaseException]) -> None:
    before = installed()
    error = kind("of the script")
    with pytest.raises(kind) as caught, Session(CaptureOptions(level=level)):
        raise error
    assert caught.value is error
    assert not changed(before)


def test_a_compiled_function_leaves_nothing() -> None:
    from torch._dynamo import eval_frame

    switches = (eval_frame.set_eval_frame, eval_frame._maybe_set_eval_frame)
    with Session(CaptureOptions(level="full")):
        compiled = torch.compile(lambda x: x * 2, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        assert switches[1] is not eval_frame._maybe_set_eval_frame
    assert switches == (eval_frame.set_eval_frame, eval_frame._maybe_set_eval_frame)


def test_classes_made_during_a_session_are_left_as_they_were_written() -> None:
    with Session(CaptureOptions(level="full")):

        class Own(torch.optim.SGD):
            def zero_grad(self, *arguments) -> None:
                super().zero_grad(*arguments)

        assert "graphlint" in Own.zero_grad.__code__.co_filename
        written = Own.zero_grad
    assert Own.zero_grad is not written
    assert Own.zero_grad.__code__.co_filename == __file__
    assert "__init_subclass__" not in vars(torch.optim.Optimizer)
    assert "__init_subclass__" not in vars(torch.nn.Module)
