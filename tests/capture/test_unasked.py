"""What objects hold is read without running a line of theirs."""

import functools
import importlib.util
import sys
import types
from collections import deque
from typing import Any

import pytest
import torch

from graphlint.capture.unasked import (
    attributes_of,
    bases_of,
    bound_by,
    gradient_of,
    graph_of,
    is_parameter,
    library_of,
    maxlen_of,
    names_defined_by,
)


def shout(*_: Any) -> Any:
    raise AssertionError("the user's code was run")


class Asked:
    """Answers for its attributes itself."""

    def __init__(self) -> None:
        vars(self)["held"] = 1

    __getattr__ = __setattr__ = shout


class Guarded:
    def __init__(self) -> None:
        object.__setattr__(self, "held", 1)

    __getattribute__ = shout


class Computed:
    """Has no dict of its own under that name."""

    __dict__ = property(shout)  # type: ignore[assignment]
    __class__ = property(shout)  # type: ignore[assignment]


class Meta(type):
    __getattribute__ = __subclasscheck__ = __instancecheck__ = shout


class OfMeta(metaclass=Meta):
    held = 1


class Slotted:
    __slots__ = ("held",)


@pytest.mark.parametrize("made", [Asked, Guarded])
def test_attributes_of_objects(made) -> None:
    assert attributes_of(made()) == {"held": 1}


@pytest.mark.parametrize("made", [Computed, Slotted, object, int, list])
def test_objects_without_a_dict_of_their_own(made) -> None:
    assert dict(attributes_of(made())) == {}


def test_classes_and_modules() -> None:
    assert attributes_of(OfMeta)["held"] == 1
    assert names_defined_by(OfMeta)["held"] == 1
    assert bases_of(OfMeta) == (OfMeta, object)
    assert library_of(OfMeta) == __name__.partition(".")[0]
    assert library_of(int) == "builtins"
    assert library_of(type("Odd", (), {"__module__": None})) == ""
    module = types.ModuleType("some")
    module.held = 1  # type: ignore[attr-defined]
    assert attributes_of(module)["held"] == 1


def test_a_module_that_loads_when_it_is_asked_stays_unloaded() -> None:
    spec = importlib.util.find_spec("this")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "__spec__" in attributes_of(module)
    assert "this" not in sys.modules
    assert type(module) is not types.ModuleType


def test_subclasses_of_the_library() -> None:
    class Bound(functools.partial):  # type: ignore[type-arg]
        func = args = keywords = property(shout)  # type: ignore[assignment]

    class Row(deque):  # type: ignore[type-arg]
        maxlen = property(shout)  # type: ignore[assignment]

    assert bound_by(Bound(print, 1, end="")) == (print, 1, "")
    assert maxlen_of(Row([1], 3)) == 3


class Tensor(torch.Tensor):
    __getattr__ = shout
    grad_fn = property(shout)  # type: ignore[assignment]


def test_tensors() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    own = torch.nn.Parameter(torch.ones(1).as_subclass(Tensor))
    assert [is_parameter(one) for one in (weight, own, torch.ones(1))] == [True, True, False]
    assert not is_parameter(torch.ones(1).as_subclass(Tensor))
    with torch._C.DisableTorchFunction():
        product = own * weight
        product.sum().backward()
        assert graph_of(product) is not None
        assert graph_of(product.as_subclass(Tensor)) is not None
    assert graph_of(own) is None
    assert torch.equal(gradient_of(weight), torch.ones(1))
