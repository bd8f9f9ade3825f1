from graphlint.record.events import BatchDraw, Change, HostRead, ModuleCall, Op, Transfer, Use
from graphlint.record.tables import Module, Parameter

GRAD = True


def op(serial: int, inputs: tuple[int, ...], outputs: tuple[int, ...], **facts: object) -> Op:
    uses = tuple(Use(tensor, 0, not GRAD) for tensor in inputs)
    grads = tuple(False for _ in outputs)
    return Op(serial=serial, name="torch.add", inputs=uses, outputs=outputs, output_grads=grads, **facts)


def test_values_flow_through_operations_and_moves(build, tensor):
    moved = Transfer(
        serial=2,
        source=Use(1, 0, not GRAD),
        result=2,
        from_device="cpu",
        to_device="cuda:0",
        bytes=4,
        method="to",
    )
    facts = build(*map(tensor, range(4)), op(1, (0,), (1,)), moved, op(3, (2,), (3,)))
    assert facts.values.flow(3, 9).tensors == {0, 1, 2, 3}
    assert facts.values.depends(3, 9, on=[0])
    assert not facts.values.depends(0, 9, on=[3])


def test_what_happened_later_is_not_upstream(build, tensor):
    later = op(5, (2, 1), (1,), changed=(Change(1, 0, 1),))
    facts = build(*map(tensor, range(4)), op(1, (0,), (1,)), op(3, (1,), (3,)), later)
    assert not facts.values.depends(3, 9, on=[2])
    assert facts.values.depends(1, 9, on=[2])
    assert not facts.values.depends(1, 4, on=[2])


def test_a_write_through_a_view_reaches_its_base(build, tensor):
    rows = (tensor(0), tensor(1), tensor(2, storage=1), tensor(3))
    view = op(2, (1,), (2,))
    write = op(3, (2, 0), (2,), changed=(Change(2, 0, 1),))
    facts = build(*rows, op(1, (), (1,)), view, write, op(4, (1,), (3,)))
    assert facts.values.depends(3, 9, on=[0])


def test_a_value_that_went_through_python_flows_on(build, tensor):
    read = HostRead(serial=2, tensor=Use(0, 0, GRAD), method="item", device="cpu", bytes=4)
    facts = build(tensor(0), tensor(1), read, op(3, (), (1,), host_inputs=(2,)))
    assert facts.values.depends(1, 9, on=[0])
    assert 1 not in facts.values.flow(1, 9).orphans


def test_a_module_call_links_only_what_no_operation_made(build, tensor):
    call = ModuleCall(serial=1, module=0, end=4, inputs=(0,), outputs=(2, 3))
    rows = (Module(id=0, type="Net", root=0), Parameter(tensor=9, module=0, name="weight"))
    facts = build(*map(tensor, (0, 1, 2, 3, 9)), *rows, call, op(2, (1,), (2,)))
    assert facts.values.flow(2, 9).tensors == {1, 2}
    assert facts.values.flow(3, 9).tensors == {0, 3, 9}


def test_a_tensor_wrapped_anew_hangs_on_the_memory_it_shares(build, tensor):
    facts = build(tensor(0), tensor(1, storage=5), tensor(2, storage=5), op(1, (0,), (1,)))
    assert facts.values.depends(2, 9, on=[0])


def test_a_tensor_from_nowhere_is_an_orphan_unless_it_was_given(build, tensor):
    drawn = BatchDraw(serial=0, loader=0, tensors=(0,))
    facts = build(*map(tensor, range(3)), drawn, op(2, (0, 1), (2,)))
    assert facts.values.flow(2, 9).orphans == {1}


def test_changes_of_a_memory_between_two_moments(build, tensor):
    write = op(3, (0,), (0,), changed=(Change(0, 0, 1),))
    facts = build(tensor(0, storage=4), write)
    assert facts.values.changes(4, 1, 9) == (write,)
    assert facts.values.changes(4, 3, 9) == ()
