"""What the variables of a frame keep of graphs: found by the shortest way, spelled as the user would."""

import gc
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn

from graphlint.capture import holders
from graphlint.capture.holders import find_graph_tensors


def made() -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * 2


def is_mine(code: CodeType) -> bool:
    return code.co_filename == __file__


def spelled() -> list[tuple[str, str, str]]:
    """Returns the place of everything found in the caller's variables: whole, its holder, what is inside."""
    found = find_graph_tensors([sys._getframe(1)], is_mine)
    return [(place.spelled, place.holder, place.inside) for _, place in found]


class Meter:
    def __init__(self) -> None:
        self.total: Any = 0.0
        self.log: dict[str, list[Any]] = {"loss": []}


@dataclass(slots=True)
class Slotted:
    kept: list[Any] = field(default_factory=list)


def look(kept: Any) -> list[tuple[str, str, str]]:
    """Returns what is found in the one variable of this frame."""
    return spelled() if kept is not None else []


def test_variables_attributes_and_namespaces_are_told_one_by_one() -> None:
    meter = Meter()
    meter.total = made()
    assert look(made()) == [("kept", "kept", "")]
    assert look(made().detach()) == []
    assert look(meter) == [("kept.total", "kept.total", "")]
    parts = {"model": nn.Linear(1, 1), "state": made()}
    assert look(parts) == [("kept['state']", "kept['state']", "")]


def test_a_collection_is_told_as_a_whole() -> None:
    meter = Meter()
    meter.log["loss"].append(made())
    outputs = [{"loss": made(), "metrics": {"smooth": made()}}]
    assert look(outputs) == [
        ("kept[0]['loss']", "kept", "['loss']"),
        ("kept[0]['metrics']['smooth']", "kept", "['metrics']['smooth']"),
    ]
    assert look({0: made()}) == [("kept[0]", "kept", "")]
    assert look(meter) == [("kept.log['loss'][0]", "kept.log['loss']", "")]
    assert look(Slotted([made()])) == [("kept.kept[0]", "kept.kept", "")]


def limits(kept: Any) -> list[int | None]:
    return [place.limit for _, place in find_graph_tensors([sys._getframe()], is_mine) if kept is not None]


def test_the_room_of_a_deque_is_told() -> None:
    assert limits(deque([made()], maxlen=3)) == [3]
    assert limits([made()]) == [None]


def test_what_functions_bring_along_is_found() -> None:
    def outer() -> Any:
        inside = [made()]

        def step() -> int:
            return len(inside)

        return step

    step = outer()
    assert look(step) == look(partial(step)) == [("inside[0]", "inside", "")]


def test_modules_show_their_states_buffers_hooks_and_gradients() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].hidden = (made(), made())
    net[1].register_buffer("running", made())
    caught: list[torch.Tensor] = []
    net.register_forward_hook(lambda module, given, result: caught.append(result))
    net(torch.ones(1, 2))
    weight = net[1].weight
    weight.grad = torch.ones_like(weight) * made().sum()
    assert {place for place, _, _ in look(net)} == {
        "kept.0.hidden[0]",
        "kept.0.hidden[1]",
        "kept.1.running",
        "kept.1.weight.grad",
        "caught[0]",
    }


def whole(kept: Any) -> list[bool]:
    return [place.whole for _, place in find_graph_tensors([sys._getframe()], is_mine) if kept is not None]


def test_a_long_list_of_tensors_is_counted_and_of_records_the_ends_are_seen() -> None:
    assert whole([made() for _ in range(300)]) == [True] * 300
    records = whole([(index, made()) for index in range(300)])
    assert 0 < len(records) < 300
    assert not any(records)


def test_nothing_outlives_the_look() -> None:
    tensor = made()
    alive = weakref.ref(tensor)
    held = [tensor]
    del tensor
    gc.disable()
    try:
        assert look(held)
        held.clear()
        assert alive() is None
    finally:
        gc.enable()


class Loud:
    def __iter__(self) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    @property
    def shown(self) -> Any:
        raise AssertionError


class Row(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


def test_no_code_of_the_users_is_run() -> None:
    row = Row([1, Loud()])
    list.append(row, made())
    assert look(row) == [("kept[2]", "kept", "")]


def asks_for_an_objects_variables(kept: Any) -> tuple[Any, Any]:
    return spelled(), vars(kept)


def asks_for_its_own_variables(kept: Any) -> tuple[Any, Any]:
    return spelled(), locals() if kept is not None else {}


def test_a_function_that_may_hold_its_variables_is_passed_over() -> None:
    meter = Meter()
    meter.total = made()
    assert asks_for_an_objects_variables(meter)[0] == [("kept.total", "kept.total", "")]
    if sys.version_info < (3, 13):
        assert asks_for_its_own_variables(meter)[0] == []


class Hashed(type):
    def __hash__(cls) -> int:
        raise AssertionError("the user's code was run")


class OfHashed(metaclass=Hashed):
    pass


def test_a_class_with_a_hash_of_its_own_is_no_matter() -> None:
    kept = [OfHashed(), made()]
    assert [name for name, _, _ in spelled()] == ["kept[1]"]
    kept.clear()


def test_a_collection_that_another_thread_changes_is_left_at_that(monkeypatch) -> None:
    kept: Any = {0: made(), 1: made()}
    entries = holders._entries

    def changing(value: Any, place: Any) -> Iterator[Any]:
        for entry in entries(value, place):
            yield entry
            kept[len(kept)] = None

    monkeypatch.setattr(holders, "_entries", changing)
    later = made()
    assert [name for name, _, _ in spelled()] == ["later", "kept[0]"]
    del later


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_modules_compiled_by_jit_are_no_hindrance() -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    kept = [torch.jit.trace(Doubling(), torch.ones(1)), made()]
    assert [name for name, _, _ in spelled()] == ["kept[1]"]
    kept.clear()
