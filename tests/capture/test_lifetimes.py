"""Exceptions pass as they are, and nothing lives longer than in a plain run."""

import gc
import weakref

import pytest
import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session

LEVELS = ("full", "auto", "watch")


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 9)


def raise_in_forward(error: Exception) -> None:
    class Bad(nn.Module):
        def forward(self, x):
            raise error

    Bad()(torch.ones(1))


def raise_in_custom(error: Exception) -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            raise error

    Bad.apply(torch.ones(1, requires_grad=True))


def raise_in_hook(error: Exception) -> None:
    def hook(grad):
        raise error

    x = torch.ones(1, requires_grad=True)
    x.register_hook(hook)
    (x * 2).backward()


def raise_in_step(error: Exception) -> None:
    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            raise error

    Bad([nn.Parameter(torch.ones(1))], 0.1).step()


def raise_in_zero_grad(error: Exception) -> None:
    class Bad(torch.optim.SGD):
        def zero_grad(self, *arguments):
            raise error

    Bad([nn.Parameter(torch.ones(1))], 0.1).zero_grad()


def raise_in_loader(error: Exception) -> None:
    class Bad(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            raise error

    next(iter(torch.utils.data.DataLoader(Bad())))


class UnprintableError(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISERS = (
    raise_in_forward,
    raise_in_custom,
    raise_in_hook,
    raise_in_step,
    raise_in_zero_grad,
    raise_in_loader,
)


@pytest.mark.parametrize("level", ["full", "watch"])
@pytest.mark.parametrize("kind", [ValueError, KeyError, UnprintableError])
@pytest.mark.parametrize("raiser", RAISERS)
def test_an_exception_passes_as_the_same_object(raiser, kind: type[Exception], level: str) -> None:
    error = kind("of the script")
    with pytest.raises(kind) as caught, Session(CaptureOptions(level=level)):
        raiser(error)
    assert caught.value is error
    assert error.args == ("of the script",)
    assert error.__context__ is None
    assert error.__cause__ is None


def live_tensors() -> int:
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def census(level: str | None) -> list[int]:
    counts: list[int] = []

    def loop() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            x = torch.randn(2, 4, requires_grad=True)
            loss = model(x).pow(2).sum() + Rounded.apply(x * 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts.append(live_tensors())
            with torch.no_grad():
                model(x).sum().item()

    gc.collect()
    start = live_tensors()
    if level is None:
        loop()
    else:
        with Session(CaptureOptions(level=level)):
            loop()
    return [count - start for count in counts]


@pytest.mark.parametrize("level", LEVELS)
def test_as_many_tensors_are_alive_after_each_step_as_in_a_plain_run(level: str) -> None:
    census(None)
    assert census(level) == census(None)


def test_a_deleted_variable_dies_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            x = torch.randn(3, requires_grad=True)
            y = (x * 2).sum()
            held = [weakref.ref(x), weakref.ref(y)]
            y.backward()
            del y
            assert held[1]() is None
            torch.ones(1).add(1)
            del x
            assert held[0]() is None

    with Session(CaptureOptions(level="full")):
        work()


def test_what_was_in_a_call_that_raised_dies_before_the_exception() -> None:
    kept: list[Exception] = []
    held: list[weakref.ref[torch.Tensor]] = []

    def made() -> torch.Tensor:
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        return tensor

    with Session(CaptureOptions(level="full")):
        try:
            torch.add(made(), torch.ones(4))
        except RuntimeError as error:
            kept.append(error)
        assert held[0]() is None


def test_a_dict_of_locals_is_the_users_own() -> None:
    def work() -> dict[str, object]:
        x = torch.ones(2)
        mine = locals()
        mine["added"] = 1
        y = x * 2
        assert "y" not in mine
        assert y.tolist() == [2.0, 2.0]
        return mine

    with Session(CaptureOptions(level="full")):
        mine = work()
    assert set(mine) == {"x", "added"}
