"""Gradients being clipped: what was given, what held a gradient, and under which names it is seen."""

import warnings

import pytest
import torch
from torch.nn import utils
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

from graphlint.capture.taps.clipping import inner_cell
from graphlint.record.events import GradientClip


def with_gradient(*values: float) -> torch.nn.Parameter:
    weight = torch.nn.Parameter(torch.zeros(len(values)))
    weight.grad = torch.tensor(values)
    return weight


CALLS = {
    "imported before": lambda p: clip_grad_norm_(p, 1.0),
    "the module's": lambda p: utils.clip_grad_norm_(p, max_norm=1.0),
    "where it is defined": lambda p: clip_grad.clip_grad_norm_(parameters=p, max_norm=1.0),
    "by a norm known before": lambda p: utils.clip_grads_with_norm_(p, 1.0, torch.tensor(5.0)),
    "by value": lambda p: clip_grad_value_(p, 1.0),
    "by value, by keyword": lambda p: utils.clip_grad_value_(parameters=p, clip_value=1.0),
}


@pytest.mark.parametrize("level", ["full", "watch"])
@pytest.mark.parametrize("name", CALLS)
def test_however_it_is_called(record, events, level, name) -> None:
    full, empty = with_gradient(3.0, 4.0), torch.nn.Parameter(torch.zeros(1))
    plain = with_gradient(3.0, 4.0)
    CALLS[name](iter([plain]))
    trace = record(lambda: CALLS[name](iter([full, empty])), level)
    (event,) = events(trace, GradientClip)
    assert event.call == ("clip_grad_value_" if "value" in name else "clip_grad_norm_")
    first, second = event.parameters
    assert [trace.tensors[number].shape for number in (first, second)] == [(2,), (1,)]
    assert (event.with_grad, event.limit) == ((first,), 1.0)
    assert torch.equal(full.grad, plain.grad)


@pytest.mark.parametrize("limit", [float("inf"), torch.tensor(float("nan"))])
def test_a_limit_that_is_none(record, events, limit) -> None:
    weight = with_gradient(1.0)
    (event,) = events(record(lambda: clip_grad_norm_([weight], limit)), GradientClip)
    assert event.limit is None


def test_one_tensor_and_a_limit_in_a_tensor(record, events) -> None:
    weight = with_gradient(2.0)
    (event,) = events(record(lambda: clip_grad_norm_(weight, torch.tensor(0.5))), GradientClip)
    assert (len(event.parameters), event.limit) == (1, 0.5)
    assert weight.grad.item() == pytest.approx(0.5)


def test_a_norm_alone_is_no_clip(record, events) -> None:
    weight = with_gradient(2.0)
    assert events(record(lambda: utils.get_total_norm([weight.grad])), GradientClip) == []


def test_the_site_is_the_users(record, events, line_of) -> None:
    weight = with_gradient(2.0)

    def work() -> None:
        clip_grad_norm_([weight], 1.0)  # here

    trace = record(work)
    (event,) = events(trace, GradientClip)
    assert trace.sites[event.site].frames[0].line == line_of("here")


def test_an_empty_generator_still_warns_at_the_users_line(record) -> None:
    def work() -> None:
        clip_grad_norm_((p for p in ()), 1.0)

    with pytest.warns(UserWarning, match="empty generator") as caught:
        record(work)
    assert [warning.filename for warning in caught] == [__file__]


def test_what_is_no_leaf_is_not_asked_for_its_gradient(record, events) -> None:
    made = with_gradient(1.0) * 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (event,) = events(record(lambda: clip_grad_norm_([made], 1.0), "watch"), GradientClip)
    assert event.with_grad == ()
    assert not [warning for warning in caught if "graphlint" in warning.filename]


def test_a_clip_that_raises(record, events) -> None:
    empty = torch.nn.Parameter(torch.zeros(1))

    def work() -> None:
        with pytest.raises(RuntimeError):
            clip_grad_value_([empty], 1.0)

    (event,) = events(record(work), GradientClip)
    assert event.with_grad == ()
    assert "empty" in event.error


def test_a_norm_that_is_not_finite_is_clipped_by_nothing(record, events) -> None:
    weight = with_gradient(float("nan"))

    def work() -> None:
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)

    assert events(record(work), GradientClip) == []


def test_steps_that_clip_alike_are_folded(record, alone) -> None:
    weight, optimizer = alone()

    def work() -> None:
        for step in range(8):
            optimizer.zero_grad()
            (weight * 2).sum().backward()
            clip_grad_norm_([weight], 1.0 / (step + 1))
            optimizer.step()

    trace = record(work, "watch")
    assert sum(isinstance(event, GradientClip) for event in trace.events) < 4


def test_a_function_without_the_closure_has_no_cell() -> None:
    assert inner_cell(clip_grad_norm_) is not None
    assert inner_cell(len) is None
    assert inner_cell(with_gradient) is None


def test_a_plain_function_is_replaced_by_name(record, events, monkeypatch) -> None:
    plain = clip_grad._clip_grads_with_norm_.__wrapped__
    monkeypatch.setattr(clip_grad, "_clip_grads_with_norm_", torch.no_grad()(plain))
    weight = with_gradient(3.0)
    (event,) = events(record(lambda: clip_grad_norm_([weight], 1.0)), GradientClip)
    assert event.with_grad == (0,)


class Once:
    """Gives its parameters to whoever asks first, and counts the askers."""

    def __init__(self, *parameters: torch.nn.Parameter) -> None:
        self.left = list(parameters)
        self.asked = 0

    def __iter__(self):
        self.asked += 1
        while self.left:
            yield self.left.pop(0)


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_a_collection_of_the_users_is_gone_through_once(record, events, clip) -> None:
    given = Once(with_gradient(3.0, 4.0), with_gradient(5.0))
    (event,) = events(record(lambda: clip(given, 1.0)), GradientClip)
    assert given.asked == 1
    assert len(event.parameters) == len(event.with_grad) == 2


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
@pytest.mark.parametrize("given", [5, None, [1, 2], "ab", {"a": 1}])
def test_what_is_no_parameter_fails_as_it_does_otherwise(record, clip, given) -> None:
    with pytest.raises((TypeError, AttributeError)) as plain:
        clip(given, 1.0)

    def work() -> None:
        with pytest.raises(type(plain.value)) as caught:
            clip(given, 1.0)
        assert str(caught.value) == str(plain.value)

    trace = record(work)
    assert not [tap.fault for tap in trace.end.taps if tap.fault]


def test_what_a_generator_raises_passes_and_what_it_gave_is_noted(record, events) -> None:
    weight = with_gradient(3.0)

    def broken():
        yield weight
        raise KeyError("no more")

    def work() -> None:
        with pytest.raises(KeyError):
            clip_grad_value_(broken(), 1.0)

    (event,) = events(record(work), GradientClip)
    assert len(event.parameters) == 1
    assert event.error is not None
