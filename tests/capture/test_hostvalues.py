"""Values that left torch are known again by the very object."""

import numpy as np
import torch

from graphlint.capture import hostvalues
from graphlint.capture.hostvalues import HostValues


def test_the_same_float_and_not_an_equal_one() -> None:
    values = HostValues()
    value = torch.ones(1).item()
    values.remember(value, 7)
    assert values.find((value,)) == (7,)
    assert values.find(([1, (value,)],)) == (7,)
    assert values.find((float("1.0"),)) == ()


def test_small_integers_are_not_told_apart() -> None:
    values = HostValues()
    values.remember(3, 7)
    values.remember(True, 8)  # noqa: FBT003
    assert values.find((3, True)) == ()


def test_arrays_are_not_kept_alive() -> None:
    values = HostValues()
    array = np.ones(2)
    values.remember(array, 7)
    assert values.find((array,)) == (7,)
    ((reference, _),) = values._arrays.values()
    del array
    assert reference() is None


def test_what_is_held_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(hostvalues, "_MAX_HELD", 10)
    values = HostValues()
    held = [float(number) + 0.5 for number in range(50)]
    for number, value in enumerate(held):
        values.remember(value, number)
    assert len(values._held) == 10
    assert values.find((held[0],)) == ()
    assert values.find((held[-1],)) == (49,)
