"""What graphlint believes about gradient clipping, learning-rate schedulers and gradient scalers."""

import warnings

import pytest
import torch
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.5**e),
    "LinearLR": lr_scheduler.LinearLR,
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0),
    "WarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "Plateau": lr_scheduler.ReduceLROnPlateau,
    "Sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 1)], [1]
    ),
    "Chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o)]),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


def parameter() -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    return p


@pytest.mark.parametrize("function", [clip_grad._clip_grads_with_norm_, clip_grad_value_])
def test_clipping_is_a_closure_over_the_function_that_clips(function):
    (cell,) = function.__closure__
    assert function.__code__.co_freevars == ("func",)
    assert cell.cell_contents is function.__wrapped__


def test_every_clip_by_norm_ends_in_one_function(monkeypatch):
    (cell,) = clip_grad._clip_grads_with_norm_.__closure__
    original, seen = cell.cell_contents, []
    cell.cell_contents = lambda *args: seen.append(args[0])
    p = parameter()
    try:
        clip_grad_norm_(iter([p]), 1.0)
        torch.nn.utils.clip_grads_with_norm_([p], 1.0, torch.tensor(1.0))
        torch.nn.utils.get_total_norm([p.grad])
    finally:
        cell.cell_contents = original
    assert [[given is p for given in parameters] for parameters in seen] == [[True], [True]]


def test_clipping_by_value_refuses_to_clip_nothing():
    empty = torch.nn.Parameter(torch.zeros(1))
    clip_grad_norm_([empty], 1.0)
    with pytest.raises(RuntimeError):
        clip_grad_value_([empty], 1.0)


def test_a_norm_alone_changes_nothing():
    p = parameter()
    torch.nn.utils.get_total_norm([p.grad])
    clip_grad_norm_([p], float("inf"))
    assert torch.equal(p.grad, torch.ones(3))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_ends_its_step_by_noting_the_rates(name):
    noted = []

    def assign(scheduler, attribute, value):
        if attribute == "_last_lr":
            noted.append((type(scheduler).__name__, [g["lr"] for g in scheduler.optimizer.param_groups]))
        object.__setattr__(scheduler, attribute, value)

    optimizer = torch.optim.SGD([parameter()], 0.1, momentum=0.9)
    assert "__setattr__" not in vars(lr_scheduler.LRScheduler)
    lr_scheduler.LRScheduler.__setattr__ = assign
    try:
        scheduler = SCHEDULERS[name](optimizer)
        assert noted[-1][0] == type(scheduler).__name__
        optimizer.step()
        noted.clear()
        scheduler.step(*([1.0] if name == "Plateau" else []))
        assert noted[-1] == (type(scheduler).__name__, [g["lr"] for g in optimizer.param_groups])
        assert [kind for kind, _ in noted].count(type(scheduler).__name__) == 1
    finally:
        del lr_scheduler.LRScheduler.__setattr__


def test_torch_notes_that_an_optimizer_stepped_since_it_has_a_scheduler():
    optimizer = torch.optim.SGD([parameter()], 0.1)
    optimizer.step()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    assert not getattr(optimizer, "_opt_called", False)
    assert scheduler.last_epoch == 0
    optimizer.step()
    assert optimizer._opt_called


def test_torch_warns_of_a_scheduler_that_steps_after_a_step_that_the_scaler_left_out():
    p = parameter()
    optimizer = torch.optim.SGD([p], 0.1)
    scheduler, scaler = lr_scheduler.StepLR(optimizer, 1), torch.amp.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    p.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    with pytest.warns(UserWarning, match="before `optimizer.step") as caught:
        scheduler.step()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_scheduler_given_the_first_epoch_skips_nothing():
    optimizer = torch.optim.SGD([parameter()], 0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step(0)
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 0.1)


def test_scalers_of_every_device_are_of_one_class():
    assert issubclass(torch.cuda.amp.GradScaler, torch.amp.GradScaler)
    assert issubclass(torch.cpu.amp.GradScaler, torch.amp.GradScaler)


def test_a_second_scaler_step_without_update_raises():
    p = parameter()
    optimizer, scaler = torch.optim.SGD([p], 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update"):
        scaler.step(optimizer)


def test_update_between_unscale_and_step_unscales_twice():
    p = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([p], 0.0), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    assert p.grad.item() == 1.0
    scaler.update()
    scaler.step(optimizer)
    assert p.grad.item() == 1 / 8


def test_gradients_that_come_after_unscale_stay_scaled():
    p = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([p], 0.0), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    assert p.grad.item() == 9.0


def test_a_disabled_scaler_hands_everything_on():
    p = parameter()
    optimizer, scaler = torch.optim.SGD([p], 0.1), torch.amp.GradScaler("cpu", enabled=False)
    loss = p.sum()
    assert scaler.scale(loss) is loss
    scaler.step(optimizer)
    scaler.step(optimizer)
    assert not scaler.is_enabled()
