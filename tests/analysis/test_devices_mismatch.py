"""Mismatches where little is known: only the line's variables, or an error that is about something else."""

import pytest

from graphlint.analysis.devices_mismatch import find_mismatch
from graphlint.record.events import Operand, ScriptError
from graphlint.record.tables import Frame

LINE = Frame("train.py", 7, "train", 1)
SAYS_SO = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def error(message, *operands):
    return ScriptError(serial=9, type="RuntimeError", message=message, frames=(LINE,), operands=operands)


def test_the_variables_of_the_line_are_all_that_is_known(build):
    operands = (
        Operand("scale", "cpu", ()),
        Operand("x", "cpu", (4, 8)),
        Operand("net's parameters", "cuda:0", ()),
    )
    found = find_mismatch(build(error(SAYS_SO, *operands)))
    assert found is not None
    assert (found.raised, found.blamed, found.wanted, found.holder) == (LINE, LINE, "cuda:0", None)
    assert [(left.name, left.device) for left in found.left] == [("x", "cpu")]


def test_a_model_is_left_behind_where_no_variable_is(build):
    operands = (Operand("x", "cuda:0", (4, 8)), Operand("net's parameters", "cpu", ()))
    found = find_mismatch(build(error(SAYS_SO, *operands)))
    assert found is not None
    assert [left.name for left in found.left] == ["net's parameters"]


@pytest.mark.parametrize(
    ("message", "about_devices"),
    [
        (SAYS_SO, True),
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", True),
        (
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
            False,
        ),
        ("Input type (float) and bias type (c10::Half) should be the same", False),
        ("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)", False),
    ],
)
def test_only_an_error_about_devices_is_one(build, message, about_devices):
    operands = (Operand("x", "cpu", (4, 8)), Operand("y", "cuda:0", (4, 8)))
    assert (find_mismatch(build(error(message, *operands))) is not None) == about_devices


@pytest.mark.parametrize(
    "operands",
    [(), (Operand("x", "cpu", (4,)),), (Operand("x", "cuda:0", (4,)), Operand("y", "cuda:0", (4,)))],
)
def test_variables_on_one_device_explain_nothing(build, operands):
    assert find_mismatch(build(error(SAYS_SO, *operands))) is None


def test_a_run_that_ended_well_has_no_mismatch(build):
    assert find_mismatch(build()) is None
