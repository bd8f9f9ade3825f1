from graphlint.record.events import Backward, OptimizerStep, ZeroGrad
from graphlint.record.tables import Optimizer


def backward(serial: int, **facts: object) -> Backward:
    facts = {"call": "Tensor.backward", "reached": (0,), **facts}
    return Backward(serial=serial, roots=(), end=serial, **facts)


def test_the_life_of_a_gradient_in_time_order(build, tensor):
    facts = build(
        tensor(0),
        tensor(1),
        Optimizer(id=0, type="SGD", groups=((0, 1),)),
        ZeroGrad(serial=1, cleared=(0,)),
        backward(2),
        OptimizerStep(serial=3, optimizer=0, without_grad=(1,), end=4),
    )
    assert [moment.kind for moment in facts.gradients.life(0)] == ["cleared", "filled", "used"]
    assert facts.gradients.life(1) == ()
    assert facts.gradients.next(0, 2).kind == "used"


def test_a_closure_s_backward_comes_before_its_use(build, tensor):
    step = OptimizerStep(serial=1, optimizer=0, closure=True, end=5)
    facts = build(tensor(0), Optimizer(id=0, type="LBFGS", groups=((0,),)), step, backward(3))
    assert [moment.kind for moment in facts.gradients.life(0)] == ["filled", "used"]


def test_what_fills_nothing_is_no_moment(build, tensor):
    facts = build(tensor(0), backward(1, call="autograd.grad"), backward(2, error="no"))
    assert facts.gradients.life(0) == ()


def test_who_holds_a_parameter(build, tensor):
    rows = (Optimizer(id=0, type="SGD", groups=((0,),)), Optimizer(id=1, type="Adam", groups=((1,), (0,))))
    facts = build(tensor(0), tensor(1), *rows)
    assert facts.gradients.optimizers(0) == (0, 1)
    assert facts.gradients.parameters(1) == (1, 0)
