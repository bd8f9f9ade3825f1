"""Values that are read by the user's code, and those that torch reads for itself."""

import logging

import numpy as np
import pytest
import torch

from graphlint.record.events import HostRead

READS = {
    "item": lambda t: t.item(),
    "tolist": lambda t: t.tolist(),
    "float": lambda t: float(t),  # noqa: PLW0108 - in a frame of the user's
    "bool": lambda t: 1 if t else 0,
    "format": lambda t: f"{t:.2f}",
    "repr": lambda t: repr(t),  # noqa: PLW0108
    "numpy": lambda t: t.numpy(),
    "array": lambda t: np.asarray(t),  # noqa: PLW0108
    "contains": lambda t: 1.0 in t.view(1),
}


@pytest.mark.parametrize("method", READS)
def test_the_users_reads(record, events, method) -> None:
    value = torch.tensor(2.0)
    found = events(record(lambda: READS[method](value)), HostRead)
    assert [(event.method, event.by_torch) for event in found] == [(method, False)]


def test_a_logger_reads_for_the_user(record, events, caplog) -> None:
    value = torch.tensor(2.0)

    def work() -> None:
        with caplog.at_level(logging.INFO):
            logging.getLogger("of the script").info("%s", value)

    found = events(record(work), HostRead)
    assert found
    assert not any(event.by_torch for event in found)


def test_a_scaler_reads_for_itself(record, events, alone) -> None:
    weight, optimizer = alone()
    scaler = torch.amp.GradScaler("cpu")

    def work() -> None:
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    found = events(record(work), HostRead)
    assert found
    assert all(event.by_torch for event in found)


def test_a_norm_that_must_be_finite_is_read_by_torch(record, events, alone) -> None:
    weight, _ = alone()

    def work() -> None:
        weight.sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)

    assert {event.by_torch for event in events(record(work), HostRead)} == {True}
