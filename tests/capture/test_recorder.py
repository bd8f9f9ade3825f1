"""Rows of tensors, modules and optimizers are entered once, as they were when they were met."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from graphlint.capture.containers import find_tensors
from graphlint.capture.recorder import Recorder
from graphlint.capture.sink import Sink
from graphlint.record.tables import Module, Name, Optimizer, Parameter, Tensor


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Sink(None), lambda tensor: str(tensor.device))


def rows(recorder: Recorder, kind: type) -> list:
    return [row for row in recorder.sink.records if isinstance(row, kind)]


def test_a_tensor_is_entered_once(recorder) -> None:
    weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    assert recorder.tensor(weight) == recorder.tensor(weight) == 0
    (row,) = rows(recorder, Tensor)
    assert (row.shape, row.dtype, row.device, row.bytes) == ((2, 3), "torch.float64", "cpu", 48)
    assert (row.requires_grad, row.leaf, row.parameter) == (True, True, True)


def test_aliases_are_tensors_of_one_storage(recorder) -> None:
    x = torch.ones(4, requires_grad=True)
    for alias in (x, x.view(2, 2), x.detach(), x.data):
        recorder.tensor(alias)
    found = rows(recorder, Tensor)
    assert [row.id for row in found] == [0, 1, 2, 3]
    assert len({row.storage for row in found}) == 1
    assert [row.leaf for row in found] == [True, False, True, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.sparse_coo_tensor([[0], [0]], [1.0], (2, 2), check_invariants=True),
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.tensor(1),
        lambda: torch.empty(0),
    ],
)
def test_tensors_of_every_sort(recorder, make) -> None:
    tensor = make()
    recorder.tensor(tensor)
    (row,) = rows(recorder, Tensor)
    assert row.shape == tuple(tensor.shape)
    assert row.dtype == str(tensor.dtype)
    assert recorder.use(tensor).version == 0


def test_numbers_of_tensors_are_not_reused(recorder) -> None:
    given = [recorder.tensor(torch.ones(1)) for _ in range(5000)]
    assert given == list(range(5000))
    assert len({row.storage for row in rows(recorder, Tensor)}) == 5000


def test_a_module_is_entered_with_all_it_holds(recorder) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    recorder.module(net[0])
    assert [row.path for row in rows(recorder, Module)] == [""]
    recorder.module(net)
    last = {row.id: (row.type, row.root, row.path) for row in rows(recorder, Module)}
    root = recorder.module(net)
    assert last[root] == ("Sequential", root, "")
    assert last[recorder.module(net[0])] == ("Linear", root, "0")
    assert last[recorder.module(net[1])] == ("BatchNorm1d", root, "1")
    members = [(row.name, row.buffer) for row in rows(recorder, Parameter)]
    assert members == [
        *[("weight", False), ("bias", False), ("weight", False), ("bias", False)],
        *[("running_mean", True), ("running_var", True), ("num_batches_tracked", True)],
    ]


def test_shared_parameters_have_one_number_and_two_places(recorder) -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    recorder.module(nn.Sequential(first, second))
    places = rows(recorder, Parameter)
    assert len({row.tensor for row in places}) == 1
    assert len({row.module for row in places}) == 2


def test_an_optimizer_is_entered_with_its_groups(recorder) -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": float("nan")}]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(0.5).item())
    number = recorder.optimizer(optimizer)
    assert recorder.optimizer(optimizer) == number
    (row,) = rows(recorder, Optimizer)
    assert (row.type, row.groups, row.lrs) == ("SGD", ((0, 1), (2,)), (0.5, None))


def test_a_name_is_entered_once(recorder) -> None:
    for name in ("x", "x", "y"):
        recorder.name("tensor", 0, name, "work")
    recorder.name("tensor", 0, "x", "other")
    assert len(rows(recorder, Name)) == 3


def test_tensors_in_containers_come_in_order() -> None:
    @dataclass
    class Batch:
        images: torch.Tensor
        labels: list[torch.Tensor]

    tensors = [torch.ones(1) for _ in range(6)]
    value = (
        tensors[0],
        {"a": [tensors[1], (tensors[2],)]},
        Batch(tensors[3], [tensors[4]]),
        3,
        "x",
        tensors[5],
    )
    found = find_tensors(value)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors]


def test_a_container_that_holds_itself_ends() -> None:
    tensor = torch.ones(1)
    loop: list[object] = [tensor]
    loop.append(loop)
    assert len(find_tensors(loop)) < 20


def test_serials_grow(recorder) -> None:
    assert recorder.last_serial == -1
    assert [recorder.next_serial() for _ in range(3)] == [0, 1, 2]
    assert recorder.last_serial == 2


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:.*nested tensor.*")
def test_nested_tensors_have_no_one_shape(record, layout) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def work() -> None:
        parts = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=layout)
        result = torch.nn.functional.linear(parts, weight)
        padded = torch.nested.to_padded_tensor(result, 0.0) if layout is torch.strided else result.values()
        padded.sum().backward()

    trace = record(work)
    assert not [tap.fault for tap in trace.end.taps if tap.fault]
    assert weight.grad is not None
