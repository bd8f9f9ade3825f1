"""Weights, losses, the state of chance and exceptions are those of a plain run, at every level."""

import inspect
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

LEVELS = ("full", "auto", "watch")
STEPS = 5
Loop = Callable[[], list[object]]


def trained(
    loss: Callable[[int], torch.Tensor], *optimizers: torch.optim.Optimizer, steps: int = STEPS
) -> list[object]:
    """Trains, and returns the losses, weights and gradients."""
    seen: list[object] = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = loss(step)
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        seen.append(value.item())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            seen += [(weight.detach().clone(), weight.grad) for weight in group["params"]]
    return seen


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 9)


def dropout_and_modules() -> list[object]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    return trained(
        lambda step: nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])), optimizer
    )


def checkpointing() -> list[object]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))
    x = torch.randn(3, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return [
        trained(
            lambda step, how=how: checkpoint(model, x, use_reentrant=how).pow(2).sum(), optimizer, steps=3
        )
        for how in (True, False)
    ]


def custom_function() -> list[object]:
    weight = nn.Parameter(torch.randn(3))
    return trained(lambda step: Rounded.apply(weight * 3).pow(2).sum(), torch.optim.SGD([weight], 0.01))


def transforms() -> list[object]:
    model = nn.Linear(3, 1)
    x = torch.randn(5, 3)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), x)
    jacobian = torch.func.jacrev(torch.sin)(x[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return [each, jacobian, trained(lambda step: loss(dict(model.named_parameters()), x), optimizer)]


def sparse_and_complex() -> list[object]:
    table = nn.Embedding(10, 4, sparse=True)
    wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    weight = nn.Parameter(torch.randn(2, 2))
    matrix = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), check_invariants=True).coalesce()
    optimizers = (torch.optim.SparseAdam(list(table.parameters())), torch.optim.SGD([wave, weight], 0.1))

    def loss(step):
        found = table(torch.tensor([1, 2])).pow(2).sum() + (wave * wave.conj()).real.sum()
        return found + torch.sparse.mm(matrix, weight).sum()

    seen = trained(loss, *optimizers)
    return [value for value in seen if not isinstance(value, tuple)] + [table.weight.detach(), wave.detach()]


def lbfgs() -> list[object]:
    weight = nn.Parameter(torch.randn(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (weight - 1).pow(2).sum()
        loss.backward()
        return loss

    return [*(optimizer.step(closure).item() for _ in range(STEPS)), weight.detach()]


def inference_and_views() -> list[object]:
    weight = nn.Parameter(torch.randn(4, 4))

    def loss(step):
        with torch.inference_mode():
            seen = torch.ones(4, 4)
            seen[0] = weight[0]
            seen.add_(1)
        held = torch.zeros(4, 4)
        held[1] = weight[1] * 2
        held[2].copy_(weight[2])
        return held.pow(2).sum() + weight.pow(2).sum()

    return trained(loss, torch.optim.SGD([weight], 0.1))


def double_backward() -> list[object]:
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(step):
        x = torch.randn(4, 3, requires_grad=True)
        score = critic(x)
        (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + (grad.norm(2, 1) - 1).pow(2).mean()

    return trained(loss, torch.optim.Adam(critic.parameters()))


def hooks() -> list[object]:
    model = nn.Linear(3, 1)
    seen: list[object] = []
    model.register_forward_hook(lambda module, args, output: output * 2)
    model.register_full_backward_hook(lambda module, before, after: seen.append(len(before)))
    model.weight.register_hook(lambda grad: grad * 0.5)
    model.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.sum().item()))
    return [
        trained(
            lambda step: model(torch.ones(2, 3, requires_grad=True)).pow(2).sum(),
            torch.optim.SGD(model.parameters(), 0.1),
        ),
        seen,
    ]


def threads() -> list[object]:
    seen: list[object] = []
    torch.manual_seed(1)

    def work() -> None:
        seen.extend(dropout_and_modules())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    return seen


def mixed_precision() -> list[object]:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    seen: list[object] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 3) * (1e30 if step == 2 else 1)).pow(2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen += [loss.item(), scaler.get_scale()]
    return [*seen, model.weight.detach()]


def device_contexts() -> list[object]:
    with torch.device("meta"):
        assert nn.Linear(3, 3).weight.is_meta
    weight = nn.Parameter(torch.randn(3))

    def loss(step):
        with torch.device("cpu"):
            return (weight * torch.ones(3)).pow(2).sum()

    torch.set_default_device("cpu")
    try:
        return trained(loss, torch.optim.SGD([weight], 0.1))
    finally:
        torch.set_default_device(None)


def caught_errors() -> list[object]:
    model = nn.Linear(3, 1)
    seen: list[object] = []

    def loss(step):
        try:
            model(torch.ones(2, 4))
        except RuntimeError as error:
            seen.append(str(error))
        value = model(torch.ones(2, 3)).pow(2).sum()
        value.backward()
        try:
            value.backward()
        except RuntimeError as error:
            seen.append(str(error))
        return model(torch.ones(2, 3)).pow(2).sum()

    return [trained(loss, torch.optim.SGD(model.parameters(), 0.1)), seen]


def clipped_scheduled_scaled() -> list[object]:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    seen: list[object] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).nan_to_num())
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        seen += [scaler.get_scale(), scheduler.get_last_lr()]
    return [*seen, model.weight.detach().clone()]


LOOPS = (
    clipped_scheduled_scaled,
    *(
        dropout_and_modules,
        checkpointing,
        custom_function,
        transforms,
        sparse_and_complex,
        lbfgs,
        hooks,
        threads,
    ),
    *(inference_and_views, double_backward, mixed_precision, device_contexts, caught_errors),
)


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)


def outcome(loop: Loop) -> tuple[list[object], torch.Tensor]:
    torch.manual_seed(0)
    return loop(), torch.get_rng_state()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_all_that_a_loop_computes_is_that_of_a_plain_run(loop: Loop, level: str) -> None:
    plain = outcome(loop)
    session = Session(CaptureOptions(level=level))
    with session:
        captured = outcome(loop)
    assert equal(plain, captured)
    end = session.trace().end
    assert [tap for tap in end.taps if tap.fault] == []
    assert end.steps >= (1 if loop is threads else 3)


def test_the_comparison_can_fail() -> None:
    one = outcome(custom_function)
    assert not equal(one, (one[0], one[1] + 1))
    assert not equal([torch.ones(2)], [torch.zeros(2)])


@pytest.mark.parametrize(
    "method",
    [
        lambda: torch.nn.Module.train,
        lambda: torch.nn.Module.zero_grad,
        lambda: torch.optim.Optimizer.zero_grad,
        lambda: torch.amp.GradScaler.step,
        lambda: torch.nn.utils.clip_grad_norm_,
    ],
)
def test_signatures_are_those_of_torch(method) -> None:
    plain, name = inspect.signature(method()), method().__qualname__
    with Session(CaptureOptions(level="full")):
        assert inspect.signature(method()) == plain
        assert method().__qualname__ == name
    assert inspect.signature(method()) == plain
