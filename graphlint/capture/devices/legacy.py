"""The old tensor types by name, `torch.cuda.FloatTensor` and its kin; imports torch alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

NAMES: Mapping[str, torch.dtype] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class CudaTensorType:
    """Stands for `torch.cuda.FloatTensor` and its kin: makes tensors, and answers `isinstance`."""

    def __init__(
        self,
        name: str,
        place: Callable[[torch.Tensor], torch.Tensor],
        device_of: Callable[[torch.Tensor], str],
    ) -> None:
        self.dtype = NAMES[name]
        self.is_cuda = True
        self.layout = torch.strided
        self.__name__ = name
        self.__module__ = "torch.cuda"
        self._place = place
        self._device_of = device_of

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns a new tensor on the current device, made as the CPU type of the same name makes one."""
        kwargs.pop("device", None)
        return self._place(getattr(torch, self.__name__)(*args, **kwargs))

    def __instancecheck__(self, instance: object) -> bool:
        """Tells whether `instance` is a tensor of this type on a GPU."""
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is self.dtype
            and self._device_of(instance).startswith("cuda")
        )

    def __repr__(self) -> str:
        return f"<class 'torch.cuda.{self.__name__}'>"


def parse_type(wanted: Any) -> tuple[bool, torch.dtype] | None:
    """Returns (whether on a GPU, dtype) of an old type or its name, None for anything else."""
    if isinstance(wanted, CudaTensorType):
        return True, wanted.dtype
    if isinstance(wanted, str):
        name = wanted.rpartition(".")[2]
        if name not in NAMES or not wanted.startswith("torch."):
            return None
        return wanted.startswith("torch.cuda."), NAMES[name]
    name = getattr(wanted, "__name__", "")
    if name in NAMES and wanted is getattr(torch, name):
        return False, NAMES[name]
    return None
