"""Where tensors lie, what a value was computed from on its own device, and what a moved one was used for."""

import pytest

from graphlint.analysis.devices_wording import recurring, sized
from graphlint.record.events import (
    Backward,
    Change,
    HostRead,
    ModuleCall,
    ModuleMove,
    Op,
    ScriptError,
    StepBoundary,
    Transfer,
    Use,
)
from graphlint.record.tables import Frame, Module, Parameter, Site, Tensor

CPU, GPU = "cpu", "cuda:0"


def tensor(number, device=CPU, *, shape=(4,), storage=None, parameter=False):
    size = 4
    for length in shape:
        size *= length
    return Tensor(
        id=number,
        storage=number if storage is None else storage,
        shape=shape,
        dtype="torch.float32",
        device=device,
        bytes=size,
        parameter=parameter,
    )


def op(serial, inputs=(), outputs=(), *, name="torch.add", changed=()):
    uses = tuple(Use(number, 0, requires_grad=True) for number in inputs)
    return Op(serial=serial, name=name, inputs=uses, outputs=outputs, changed=changed)


def sent(serial, source, result, origin=CPU, to=GPU, **facts):
    return Transfer(
        serial=serial,
        source=Use(source, 0, requires_grad=True),
        result=result,
        from_device=origin,
        to_device=to,
        bytes=16,
        method="to",
        **facts,
    )


def backward(serial, root):
    return Backward(serial=serial, call="Tensor.backward", roots=(root,), end=serial + 1)


# --- where a tensor lies ------------------------------------------------------------------------------------


def test_a_parameter_lies_where_its_module_was_moved(build):
    rows = (
        Module(id=0, type="Net", root=0),
        Module(id=1, type="Linear", root=0, path="layer"),
        Module(id=2, type="Linear", root=0, path="layer2"),
        Parameter(tensor=0, module=1, name="weight"),
        Parameter(tensor=1, module=2, name="weight"),
        ModuleMove(serial=5, module=1, to_device="cuda", tensors=1, moved=1, bytes=16, method="to"),
    )
    facts = build(tensor(0, parameter=True), tensor(1, parameter=True), tensor(2, GPU), *rows)
    assert facts.devices.of(0, 4) == CPU
    assert facts.devices.of(0, 5) == GPU
    assert facts.devices.of(1, 9) == CPU
    assert facts.devices.of(99, 9) == ""


def test_a_bare_device_is_spelled_as_its_tensors_spell_it(build):
    facts = build(tensor(0), tensor(1, "cuda:1"))
    assert [facts.devices.spelled(name) for name in ("cpu", "cuda", "cuda:0", "mps")] == [
        "cpu",
        "cuda:1",
        "cuda:0",
        "mps:0",
    ]


def test_a_line_of_the_users_is_one_that_called_torch_itself(build):
    frame = Frame("train.py", 3, "<module>", 1)
    facts = build(Site(id=0, frames=(frame,)), Site(id=1, frames=(frame,), direct=False))
    assert facts.devices.line(op(1)) is None
    by_site = {site: Op(serial=1, name="torch.add", site=site) for site in (0, 1)}
    assert facts.devices.line(by_site[0]) == frame
    assert facts.devices.line(by_site[1]) is None


# --- upstream -----------------------------------------------------------------------------------------------


def test_what_is_local_stops_where_a_value_moved_in(build):
    facts = build(
        *(tensor(number) for number in range(3)),
        tensor(3, GPU),
        tensor(4, GPU),
        tensor(5, GPU, parameter=True),
        tensor(6, GPU),
        op(1, (), (1,)),
        op(2, (0, 1), (2,)),
        sent(3, 2, 3),
        op(4, (), (4,)),
        op(5, (3, 4, 5), (6,)),
    )
    local = facts.devices.local(6, 9)
    assert [event.serial for event in local.operations] == [5]
    assert [event.serial for event in local.arrivals] == [3]
    assert [event.serial for event in local.made] == [4]
    assert (local.given, local.parameters, local.opaque) == ((), (5,), False)
    assert facts.devices.local(2, 9).given == (0,)


# --- downstream ---------------------------------------------------------------------------------------------


def test_a_value_feeds_a_backward_through_operations_moves_writes_and_modules(build):
    rows = [tensor(number) for number in range(8)]
    facts = build(
        *rows,
        op(1, (0,), (1,)),
        sent(2, 1, 2),
        op(3, (3, 2), (3,), changed=(Change(3, 0, 1),)),
        ModuleCall(serial=4, module=0, end=5, inputs=(3,), outputs=(4,)),
        backward(6, 4),
        op(8, (5,), (6,)),
    )
    assert facts.devices.feeds_backward(0)
    assert not facts.devices.feeds_backward(5)


def hop_rows(*extra):
    """Predictions 1 move to the GPU as 2, meet labels 3 there and become the loss 4."""
    rows = (tensor(1), tensor(2, GPU), tensor(3, GPU), tensor(4, GPU, shape=()), tensor(5, GPU))
    return (*rows, sent(1, 1, 2), op(2, (2, 3), (4,)), backward(9, 4), *extra)


def test_predictions_that_only_become_a_loss_are_reduced(build):
    facts = build(*hop_rows())
    reduction = facts.devices.reduction(facts.devices.transfers[0])
    assert reduction is not None
    assert reduction.losses == (4,)
    assert reduction.others == (3,)
    assert [event.serial for event in reduction.backwards] == [9]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param((tensor(6, GPU, parameter=True), op(3, (2, 6), (5,))), id="a-parameter"),
        pytest.param((op(3, (2,), (5,), name="Straight.apply"),), id="a-custom-function"),
        pytest.param((op(3, (2,), (5,)), sent(4, 5, 6, GPU, CPU), tensor(6)), id="goes-on"),
        pytest.param((op(3, (2,), (5,)), backward(7, 5)), id="a-backward-from-many"),
        pytest.param((ModuleCall(serial=3, module=0, end=4, inputs=(2,)),), id="an-unseen-module"),
    ],
)
def test_predictions_that_serve_for_more_are_not(build, extra):
    facts = build(*hop_rows(*extra))
    assert facts.devices.reduction(facts.devices.transfers[0]) is None


def test_predictions_that_reach_no_backward_are_not(build):
    facts = build(tensor(1), tensor(2, GPU), tensor(4, GPU, shape=()), sent(1, 1, 2), op(2, (2,), (4,)))
    assert facts.devices.reduction(facts.devices.transfers[0]) is None


def test_memory_read_later_is_used_later(build):
    read = HostRead(serial=5, tensor=Use(1, 0, requires_grad=False), method="item", device=CPU, bytes=4)
    facts = build(tensor(0), tensor(1, storage=0), tensor(2), op(1, (0,), (2,)), read)
    assert facts.devices.used_after(0, 1)
    assert not facts.devices.used_after(0, 5)
    assert not facts.devices.used_after(2, 0)


# --- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (96, "96 bytes"),
        (1000, "1000 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (4 * 2**20, "4 MiB"),
        (2**43, "8192 GiB"),
    ],
)
def test_sizes_are_read_easily(count, words):
    assert sized(count) == words


def steps(number, *, crashed=False):
    """Full steps of one backward each; the last may end in an error."""
    rows = []
    for step in range(number):
        rows.append(StepBoundary(serial=10 * step, reason="optimizer", after=10 * step - 1, level="full"))
        rows.append(backward(10 * step + 1, 1))
    if crashed:
        rows.append(ScriptError(serial=10 * number - 5, type="RuntimeError", message=""))
    return rows


def test_what_recurs_is_a_habit(build):
    three, one, crashed = build(*steps(3)), build(*steps(1)), build(*steps(2, crashed=True))
    assert recurring({0, 1}, three)
    assert not recurring({0}, three)
    assert recurring({0}, one)
    assert recurring({0}, crashed)
