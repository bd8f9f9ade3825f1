"""Gradients cleared, batches drawn, cleanup calls: seen at both levels."""

import gc
import threading
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from graphlint.capture.taps.patching import patch
from graphlint.record.events import BatchDraw, Cleanup, Op, ZeroGrad

LEVELS = pytest.mark.parametrize("level", ["full", "watch"])


@LEVELS
def test_zero_grad_of_optimizers_and_modules(record, events, level) -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def work() -> None:
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.zero_grad(set_to_none=False)
        net.zero_grad()

    first, second, third = events(record(work, level), ZeroGrad)
    assert (len(first.cleared), first.already_clear, first.set_to_none) == (0, 2, True)
    assert (len(second.cleared), second.already_clear, second.set_to_none) == (2, 0, False)
    assert (len(third.cleared), third.set_to_none) == (2, True)
    assert first.optimizer == second.optimizer == 0
    assert (first.module, third.optimizer) == (None, None)
    assert third.module is not None


@LEVELS
@pytest.mark.parametrize("made", ["before", "during"])
def test_zero_grad_of_the_users_own_class(record, events, level, made) -> None:
    calls = []

    def define() -> type[torch.optim.SGD]:
        class Own(torch.optim.SGD):
            def zero_grad(self, *arguments):
                calls.append(1)
                for group in self.param_groups:
                    for weight in group["params"]:
                        weight.grad = None

        return Own

    kind = define() if made == "before" else None
    weight = nn.Parameter(torch.ones(1))

    def work() -> None:
        optimizer = (kind or define())([weight], 0.1)
        weight.sum().backward()
        optimizer.zero_grad()

    (event,) = events(record(work, level), ZeroGrad)
    assert len(event.cleared) == 1
    assert event.optimizer == 0
    assert calls == [1]


def test_a_class_with_a_hook_of_its_own_for_subclasses(record, events) -> None:
    made = []

    class Base(nn.Module):
        def __init_subclass__(cls, *, mark="", **kwargs) -> None:
            super().__init_subclass__(**kwargs)
            made.append((cls.__name__, mark))

    def work() -> None:
        class Own(Base, mark="x"):
            def zero_grad(self, *arguments):
                super().zero_grad(*arguments)

        Own().zero_grad()

    trace = record(work)
    assert made == [("Own", "x")]
    assert len(events(trace, ZeroGrad)) == 1


def test_batches_are_counted_for_each_iterator(record, events) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4)), batch_size=2)

    def work() -> None:
        for _ in range(2):
            for _batch in loader:
                pass

    found = events(record(work), BatchDraw)
    assert [(event.loader, len(event.tensors)) for event in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    (watched,) = events(record(work, "watch"), BatchDraw)
    assert watched.tensors == ()


def test_what_a_data_set_computes_is_not_recorded(record, events) -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            for _ in range(2):
                yield torch.ones(2).cosh()

    def work() -> None:
        for batch in DataLoader(Stream(), batch_size=1):
            batch.sinh()

    names = {event.name.rpartition(".")[2] for event in events(record(work), Op)}
    assert names == {"sinh"}


@LEVELS
def test_cleanup_calls(record, events, level) -> None:
    def work() -> None:
        gc.collect()
        gc.collect(0)
        torch.cuda.empty_cache()

    found = events(record(work, level), Cleanup)
    assert [event.call for event in found] == ["gc.collect", "gc.collect", "torch.cuda.empty_cache"]
    assert all(event.duration_ns >= 0 and event.site is not None for event in found)


def test_cleanup_in_another_thread_is_not_recorded(record, events) -> None:
    def work() -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()

    assert events(record(work), Cleanup) == []


class Owner:
    @classmethod
    def made(cls):
        return cls


class Heir(Owner):
    pass


def test_a_patch_puts_back_the_very_object() -> None:
    held = vars(Owner)["made"]
    with ExitStack() as stack:
        patch(stack, Owner, "made", lambda original: classmethod(lambda cls: (original.__func__(cls), 1)))
        assert Heir.made() == (Heir, 1)
    assert vars(Owner)["made"] is held


def test_a_patch_of_an_inherited_name_is_taken_away() -> None:
    with ExitStack() as stack:
        patch(stack, Heir, "made", lambda original: classmethod(lambda cls: 2))
        assert Heir.made() == 2
        assert Owner.made() is Owner
    assert "made" not in vars(Heir)


def test_what_somebody_else_put_there_stays() -> None:
    held = vars(Owner)["made"]
    theirs = classmethod(lambda cls: 3)
    with ExitStack() as stack:
        patch(stack, Owner, "made", lambda original: classmethod(lambda cls: 2))
        Owner.made = theirs
    assert vars(Owner)["made"] is theirs
    Owner.made = held
