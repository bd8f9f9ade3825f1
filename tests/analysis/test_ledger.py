from graphlint.record.events import (
    Backward,
    Change,
    GradRead,
    GradWrite,
    Op,
    OptimizerStep,
    Repeat,
    ScalerCall,
    StepBoundary,
    Use,
    ZeroGrad,
)
from graphlint.record.tables import Optimizer

SGD = Optimizer(id=0, type="SGD", groups=((0,),))


READ = Use(tensor=1, version=0, requires_grad=False)


def backward(serial: int, **facts: object) -> Backward:
    facts = {"call": "Tensor.backward", "reached": (0,), "end": serial, **facts}
    return Backward(serial=serial, roots=(), **facts)


def step(serial: int, **facts: object) -> OptimizerStep:
    facts = {"changed": (Change(0, serial, serial + 1),), "end": serial, "optimizer": 0, **facts}
    return OptimizerStep(serial=serial, **facts)


def held(use):
    """Returns the serials of the backwards that a step found, each with those of the steps before it."""
    return [
        (one.portion.source and one.portion.source.serial, [before.serial for before in one.before])
        for one in use.held.get(0, ())
    ]


def test_a_step_finds_what_was_added_since_it_was_cleared(build, tensor):
    events = backward(1), step(2), ZeroGrad(serial=3, cleared=(0,)), backward(4), step(5)
    first, second = build(tensor(0), SGD, *events).ledger.uses
    assert held(first) == [(1, [])]
    assert held(second) == [(4, [])]
    assert second.previous is first.step
    assert second.filled


def test_what_was_not_cleared_is_found_again(build, tensor):
    events = backward(1), step(2), backward(3, accumulated=(0,)), step(4)
    _, second = build(tensor(0), SGD, *events).ledger.uses
    assert held(second) == [(1, [2]), (3, [])]


def test_the_record_is_right_where_something_was_cleared_unseen(build, tensor):
    events = backward(1), step(2), backward(3), step(4), step(5, changed=(), without_grad=(0,))
    _, second, third = build(tensor(0), SGD, *events).ledger.uses
    assert held(second) == [(3, [])]
    assert (held(third), third.filled) == ([], False)


def test_a_gradient_that_nobody_was_seen_to_fill(build, tensor):
    (use,) = build(tensor(0), SGD, step(1)).ledger.uses
    assert held(use) == [(None, [])]


def test_zeros_hold_nothing(build, tensor):
    events = backward(1), ZeroGrad(serial=2, cleared=(0,), set_to_none=False), step(3)
    (use,) = build(tensor(0), SGD, *events).ledger.uses
    assert (held(use), use.filled) == ([], True)
    assert [[p.source.serial for p in clearing.unused] for clearing in use.cleared] == [[1]]


def test_a_step_that_a_scaler_left_out_has_used_its_gradients(build, tensor):
    skip = ScalerCall(serial=2, scaler=0, method="skipped", optimizer=0)
    facts = build(tensor(0), SGD, backward(1), skip, ZeroGrad(serial=3, cleared=(0,)))
    assert facts.ledger.clearings == ()


def test_a_closure_has_shown_its_gradients_to_the_step(build, tensor):
    inside = ZeroGrad(serial=2, cleared=()), backward(3), ZeroGrad(serial=4, cleared=(0,)), backward(5)
    facts = build(tensor(0), SGD, *inside, step(1, closure=True, end=6))
    (use,) = facts.ledger.uses
    assert (held(use), use.cleared) == ([(5, [])], ())


def test_a_gradient_made_by_hand_replaces_what_was_there(build, tensor):
    facts = build(tensor(0), tensor(1), SGD, backward(1), GradWrite(serial=2, tensor=0, grad=1), step(3))
    assert held(facts.ledger.uses[0]) == [(None, [])]


def change(serial: int, name: str) -> Op:
    return Op(serial=serial, name=name, inputs=(READ,), outputs=(1,), changed=(Change(1, 0, 1),))


def test_a_gradient_that_is_scaled_is_what_it_was_until_it_is_used(build, tensor):
    read = GradRead(serial=2, tensor=0, grad=1)
    rows = tensor(0), tensor(1), SGD, backward(1), read
    clipped = build(*rows, change(3, "torch.Tensor.mul_"), step(4))
    assert held(clipped.ledger.uses[0]) == [(1, [])]
    worn = build(*rows, step(3), change(4, "torch.Tensor.mul_"), backward(5, accumulated=(0,)), step(6))
    assert held(worn.ledger.uses[1]) == [(None, []), (5, [])]


def test_folded_steps_are_played_again(build, tensor):
    start = StepBoundary(serial=0, reason="batch", after=-1, level="watch")
    first = backward(1), step(2)
    other = StepBoundary(serial=3, reason="batch", after=2, level="watch")
    clearing = (
        ZeroGrad(serial=4, cleared=(0,)),
        backward(5),
        ZeroGrad(serial=6, cleared=(0,)),
        step(7, changed=()),
    )
    repeat = Repeat(serial=8, like=0, count=5)
    last = StepBoundary(serial=9, reason="batch", after=8, level="watch")
    facts = build(
        tensor(0),
        SGD,
        start,
        *first,
        other,
        *clearing,
        repeat,
        last,
        backward(10, accumulated=(0,)),
        step(11),
    )
    assert [serial for serial, before in held(facts.ledger.uses[-1]) if before] == [1]
    assert not facts.ledger.seen(1, 11)
    assert facts.ledger.sightings(facts.ledger.uses[0].step) == 6


def test_what_is_copied_and_what_is_only_measured(build, tensor):
    read = GradRead(serial=2, tensor=0, grad=1)
    norm = Op(serial=3, name="torch.Tensor.norm", inputs=(READ,), outputs=(2,))
    copy = Op(serial=5, name="torch.Tensor.clone", inputs=(READ,), outputs=(3,))
    rows = tensor(0, shape=(4,)), tensor(1, shape=(4,)), tensor(2, shape=()), tensor(3, shape=(4,)), SGD
    ledger = build(*rows, backward(1), read, norm, copy).ledger
    assert not ledger.taken(0, 1, 4)
    assert ledger.taken(0, 1, 6)
    assert ledger.looked_at == {0}


def test_what_happens_in_a_hook_of_a_backward(build, tensor):
    ledger = build(
        tensor(0), SGD, backward(1, end=5), backward(2, nested=True, end=3), step(4), step(6)
    ).ledger
    assert (ledger.inside_backward(4), ledger.inside_backward(6)) == (True, False)
    inner = ledger.uses[0].held[0][-1].portion.source
    assert (inner.serial, ledger.outermost(inner).serial) == (2, 1)
    assert [one.serial for one in ledger.steps_on(ledger.outermost(inner))] == [4, 6]
