"""Modes are put in and taken out without disturbing those of torch and of the user."""

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from graphlint.capture.modes import insert_mode, installed_modes, remove_mode


class Plain(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Low(Plain):
    pass


def test_below_the_users_modes() -> None:
    own, first, second = Plain(), Plain(), Plain()
    with first, second:
        insert_mode(own)
        assert installed_modes() == [own, first, second]
        assert remove_mode(own)
        assert installed_modes() == [first, second]
        assert not remove_mode(own)


def test_above_the_default_device_and_the_low_modes() -> None:
    own, low, users = Plain(), Low(), Plain()
    torch.set_default_device("cpu")
    try:
        (default,) = installed_modes()
        with low, users:
            insert_mode(own, above=(DeviceContext, Low))
            assert installed_modes() == [default, low, own, users]
            remove_mode(own)
    finally:
        torch.set_default_device(None)
    assert installed_modes() == []


def test_a_device_block_is_the_users() -> None:
    own = Plain()
    with torch.device("cpu"):
        (block,) = installed_modes()
        insert_mode(own, above=(DeviceContext,))
        assert installed_modes() == [own, block]
        remove_mode(own)
        assert installed_modes() == [block]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_taken_out_wherever_it_lies(depth: int) -> None:
    own = Plain()
    users = [Plain(), Plain()]
    modes = [*users[:depth], own, *users[depth:]]
    for mode in modes:
        mode.__enter__()
    remove_mode(own)
    assert _get_current_function_mode_stack() == users
    for mode in reversed(users):
        mode.__exit__(None, None, None)
