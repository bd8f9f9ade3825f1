"""What is told of a tensor's values, for every kind of tensor that a gradient may be."""

import pytest
import torch

from graphlint.capture.extents import extent_of, worst

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("values", "extent"),
    [
        ([0.0, 0.0], "zero"),
        ([-0.0, 0.0], "zero"),
        ([1.0, -1.0], "finite"),
        ([0.0, 2.0], "finite"),
        ([1.0, NAN], "nan"),
        ([INF, NAN], "nan"),
        ([INF, 1.0], "inf"),
        ([INF, -INF], "inf"),
        ([-INF, 0.0], "inf"),
    ],
)
def test_values(dtype: torch.dtype, values: list[float], extent: str) -> None:
    assert extent_of(torch.tensor(values, dtype=dtype)) == extent


def test_a_sum_that_overflows_is_no_infinity() -> None:
    assert extent_of(torch.full((8,), 60_000.0, dtype=torch.float16)) == "finite"
    assert extent_of(torch.full((8,), 3e38)) == "finite"


def test_small_values_are_not_taken_for_zero() -> None:
    assert extent_of(torch.tensor([1e-45, -1e-45])) == "finite"
    assert extent_of(torch.tensor([1e-30])) == "finite"


def test_other_kinds_of_tensor() -> None:
    rows, values = torch.tensor([[0, 2]]), torch.tensor([1.0, NAN])
    assert extent_of(torch.sparse_coo_tensor(rows, values, (4,), check_invariants=True)) == "nan"
    empty = torch.sparse_coo_tensor(rows[:, :0], values[:0], (4,), check_invariants=True)
    assert extent_of(empty) is None
    assert extent_of(torch.tensor([1 + 2j, complex(0, INF)])) == "inf"
    assert extent_of(torch.tensor([1 + 2j]).conj()) == "finite"
    assert extent_of(torch.tensor([1, 2])) is None
    assert extent_of(torch.tensor([True])) is None
    assert extent_of(torch.zeros(0)) is None
    assert extent_of(torch.zeros(2, device="meta")) is None
    assert extent_of(torch.zeros(3).expand(5, 3)) == "zero"
    assert extent_of(torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn)) == "nan"
    assert extent_of(torch.nn.Parameter(torch.ones(2))) == "finite"


def test_a_subclass_with_code_of_its_own_is_left_alone() -> None:
    class Watching(torch.Tensor):
        pass

    assert extent_of(torch.ones(2).as_subclass(Watching)) is None


def test_nothing_is_done_under_a_dispatch_mode_of_the_user() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(2)
    with Counting():
        assert extent_of(tensor) is None
    assert seen == []


def test_no_trace_is_left() -> None:
    weights = torch.ones(3, requires_grad=True)
    product = weights * 2
    state, version = torch.get_rng_state(), product._version
    number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    assert extent_of(product) == "finite"
    assert extent_of(weights.detach() * 0) == "zero"
    assert torch.autograd._get_sequence_nr() == number  # type: ignore[attr-defined]
    assert product._version == version
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_the_worst_of_several() -> None:
    assert worst([]) is None
    assert worst([None, "zero"]) == "zero"
    assert worst(["zero", "finite", None]) == "finite"
    assert worst(["inf", "finite"]) == "inf"
    assert worst(["inf", "nan", "zero"]) == "nan"
