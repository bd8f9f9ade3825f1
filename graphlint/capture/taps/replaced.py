"""Finds the function of torch that a call entered where the script has put its own in that function's place.

A Python function of torch that meets a function mode hands on what its name stands for by then. With a
function of the script's there, which has just called torch's, that would run the script's a second time.
"""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.overrides import handle_torch_function


class Originals:
    """Torch's own functions by their code, as they stood when this object was made."""

    def __init__(self) -> None:
        self._by_code: dict[CodeType, FunctionType] = {}
        for owner in (torch.Tensor, torch.nn.functional, torch.functional):
            for function in _functions_of(owner):
                self._by_code[function.__code__] = function

    def entered(self, function: Any) -> Any:
        """Returns the function whose frame called torch's dispatcher; called by the mode's own method."""
        if type(function) is FunctionType and function.__code__ in self._by_code:
            return function
        dispatcher = sys._getframe(2)
        if dispatcher.f_code is not handle_torch_function.__code__ or dispatcher.f_back is None:
            return function
        return self._by_code.get(dispatcher.f_back.f_code, function)


def _functions_of(owner: Any) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        if type(value) is FunctionType:
            yield value
