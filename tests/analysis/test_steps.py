from graphlint.record.events import Backward, BatchDraw, OptimizerStep, Repeat, ScriptError, StepBoundary


def boundary(serial: int, after: int, level: str = "full") -> StepBoundary:
    return StepBoundary(serial=serial, reason="batch", after=after, level=level)


def backward(serial: int) -> Backward:
    return Backward(serial=serial, call="Tensor.backward", roots=(), end=serial)


def test_a_segment_without_training_is_no_step(build):
    facts = build(
        BatchDraw(serial=0, loader=0),
        boundary(2, 1),
        backward(3),
        boundary(5, 4),
        BatchDraw(serial=6, loader=0),
    )
    assert facts.steps.count == 1
    assert facts.steps.step_of(3) == 0
    assert facts.steps.step_of(0) is None
    assert facts.steps.step_of(6) is None


def test_a_boundary_known_in_hindsight_takes_effect_after_its_after(build):
    facts = build(
        boundary(0, -1), backward(1), backward(3), boundary(5, 2), OptimizerStep(serial=6, optimizer=0, end=6)
    )
    assert [facts.steps.step_of(serial) for serial in (1, 3, 6)] == [0, 1, 1]


def test_repeats_that_follow_are_covered_by_the_step_before_them(build):
    facts = build(
        boundary(0, -1),
        backward(1),
        boundary(3, 2),
        backward(4),
        Repeat(serial=6, like=3, count=7),
        boundary(8, 7),
        backward(9),
    )
    assert facts.steps.count == 10
    assert facts.steps.last_step(1) == 0
    assert facts.steps.last_step(4) == 8
    assert facts.steps.repeats(4) == 7
    assert facts.steps.step_of(9) == 9


def test_repeats_of_an_older_step_count_but_do_not_lengthen_it(build):
    facts = build(
        boundary(0, -1),
        backward(1),
        boundary(3, 2),
        backward(4),
        Repeat(serial=6, like=0, count=1),
        Repeat(serial=7, like=3, count=1),
    )
    assert facts.steps.count == 4
    assert (facts.steps.last_step(1), facts.steps.repeats(1)) == (0, 1)
    assert (facts.steps.last_step(4), facts.steps.repeats(4)) == (1, 1)


def test_a_run_that_ends_by_an_error_inside_a_step_has_that_step(build):
    error = ScriptError(serial=4, type="ValueError", message="no")
    assert build(boundary(0, -1), backward(1), boundary(3, 2), error).steps.step_of(4) == 1
    assert build(boundary(0, -1), error).steps.count == 0


def test_an_empty_trace_has_no_steps(build):
    facts = build()
    assert facts.steps.count == 0
    assert facts.steps.of(0) is None
