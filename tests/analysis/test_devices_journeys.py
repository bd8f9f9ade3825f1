"""Journeys of values: what keeps a value, what ends it, and what coming back and being sent again mean."""

import pytest

from graphlint.record.events import Change, HostRead, ModuleCall, Op, OptimizerStep, Transfer, Use
from graphlint.record.tables import Module, Parameter, Tensor

CPU, GPU = "cpu", "cuda:0"


def tensor(number, device=CPU, *, storage=None, shape=(4,), parameter=False):
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


def sent(serial, source, result, to=GPU, *, version=0, method="to", dtype_changed=False, noop=False):
    return Transfer(
        serial=serial,
        source=Use(source, version, requires_grad=False),
        result=result,
        from_device=to if noop else CPU if to == GPU else GPU,
        to_device=to,
        bytes=0 if noop else 16,
        method=method,
        dtype_changed=dtype_changed,
        noop=noop,
    )


def op(serial, inputs=(), outputs=(), *, changed=(), name="torch.add", call=None):
    uses = tuple(Use(number, 0, requires_grad=False) for number in inputs)
    return Op(serial=serial, name=name, inputs=uses, outputs=outputs, changed=changed, call=call)


def test_a_value_that_comes_back_is_a_return(build):
    facts = build(tensor(0), tensor(1, GPU), tensor(2), sent(1, 0, 1), sent(2, 1, 2, CPU))
    out, back = facts.devices.journeys.arrivals
    assert (out.earlier, out.returned) == (None, False)
    assert back.returned
    assert back.earlier is not None
    assert [stop.tensor for stop in back.stop.route()] == [2, 1, 0]


def test_a_value_sent_again_did_not_come_back(build):
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), sent(1, 0, 1), sent(2, 0, 2))
    again = facts.devices.journeys.arrivals[1]
    assert again.earlier is not None
    assert (again.earlier.tensor, again.returned) == (1, False)


@pytest.mark.parametrize("storage", [0, 7])
def test_only_views_of_all_elements_keep_the_value(build, storage):
    view = tensor(3, storage=storage)
    facts = build(
        tensor(0), tensor(1, GPU), tensor(2, GPU), view, sent(1, 0, 1), op(2, (0,), (3,)), sent(3, 3, 2)
    )
    again = facts.devices.journeys.arrivals[1]
    assert (again.earlier is not None) == (storage == 0)


def test_a_slice_is_a_value_of_its_own(build):
    base = tensor(0, shape=(8,))
    slices = (tensor(3, storage=0), tensor(4, storage=0))
    facts = build(
        base,
        *slices,
        tensor(1, GPU),
        tensor(2, GPU),
        op(1, (0,), (3,)),
        sent(2, 3, 1),
        op(3, (0,), (4,)),
        sent(4, 4, 2),
    )
    assert facts.devices.journeys.arrivals[1].earlier is None


def test_a_value_that_is_changed_in_place_is_new(build):
    change = op(2, (0,), (0,), changed=(Change(0, 0, 1),))
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), sent(1, 0, 1), change, sent(3, 0, 2, version=1))
    assert facts.devices.journeys.arrivals[1].earlier is None


def test_a_change_through_an_alias_with_its_own_counter_counts(build):
    alias = op(2, (0,), (3,))
    write = op(3, (3,), (3,), changed=(Change(3, 0, 1),))
    rows = (tensor(0), tensor(1, GPU), tensor(2, GPU), tensor(3, storage=0))
    facts = build(*rows, sent(1, 0, 1), alias, write, sent(4, 0, 2))
    assert facts.devices.journeys.arrivals[1].earlier is None


def test_a_change_that_was_not_recorded_shows_in_the_version(build):
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), sent(1, 0, 1), sent(2, 0, 2, version=5))
    assert facts.devices.journeys.arrivals[1].earlier is None


def test_a_copy_that_was_written_is_no_copy_any_more(build):
    write = op(2, (1,), (1,), changed=(Change(1, 0, 1),))
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), sent(1, 0, 1), write, sent(3, 0, 2))
    assert facts.devices.journeys.arrivals[1].earlier is None


def test_a_step_of_an_optimizer_changes_the_value(build):
    step = OptimizerStep(serial=2, optimizer=0, changed=(Change(0, 0, 1),), end=3)
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), sent(1, 0, 1), step, sent(4, 0, 2))
    assert facts.devices.journeys.arrivals[1].earlier is None


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_change_in_training_though_no_version_tells(build, training):
    rows = (
        tensor(0),
        tensor(1, GPU),
        tensor(2, GPU),
        tensor(3),
        Module(id=0, type="BatchNorm1d", root=0),
        Parameter(tensor=0, module=0, name="running_mean", buffer=True),
        ModuleCall(serial=2, module=0, end=4, training=training),
        op(3, (3, 0), (), name="torch.nn.functional.batch_norm", call=2),
    )
    facts = build(*rows, sent(1, 0, 1), sent(5, 0, 2))
    assert (facts.devices.journeys.arrivals[1].earlier is None) == training


def test_a_conversion_ends_the_value(build):
    facts = build(tensor(0), tensor(1, GPU), tensor(2), sent(1, 0, 1, dtype_changed=True), sent(2, 1, 2, CPU))
    (back,) = facts.devices.journeys.arrivals
    assert back.earlier is None


def test_copying_into_a_tensor_changes_it(build):
    into = sent(2, 3, 1, method="copy_")
    facts = build(tensor(0), tensor(1, GPU), tensor(2, GPU), tensor(3), sent(1, 0, 1), into, sent(3, 0, 2))
    assert facts.devices.journeys.arrivals[2].earlier is None


def test_a_no_op_is_no_arrival(build):
    facts = build(tensor(0), sent(1, 0, 0, CPU, noop=True))
    assert facts.devices.journeys.arrivals == ()
    assert facts.devices.journeys.arrival(1) is None


def test_memory_that_python_may_write_is_exposed(build):
    read = HostRead(serial=3, tensor=Use(2, 0, requires_grad=False), method="numpy", device=CPU, bytes=16)
    facts = build(
        *(tensor(number) for number in range(5)),
        tensor(5, storage=2),
        op(1, (), (1,)),
        op(2, (), (2,)),
        read,
        op(4, (), (3,), name="torch.from_numpy"),
        op(5, (2,), (5,)),
        Parameter(tensor=4, module=0, name="table", buffer=True),
    )
    exposed = facts.devices.journeys.exposed
    assert [exposed(number) for number in range(6)] == [True, False, True, True, False, True]
