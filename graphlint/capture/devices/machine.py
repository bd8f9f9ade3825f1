"""The simulated machine: which devices there are and which is current; imports errors and torch."""

import re
import threading
from collections.abc import Sequence
from typing import Any

import torch

from graphlint.errors import UsageError

_NAME = re.compile(r"cuda(?::(\d{1,2}))?")
_BAD_ORDINAL = (
    "CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def parse_names(names: Sequence[str]) -> int:
    """Returns how many devices `names` ask for.

    "cuda" is "cuda:0", and a machine that has "cuda:1" has "cuda:0" too.

    Raises:
        UsageError: There is no name, or one is not the name of a CUDA device.
    """
    right = 'right are "cuda" (the same as "cuda:0"), "cuda:1", "cuda:2" and so on'
    if isinstance(names, str):
        raise UsageError(
            f"simulated devices are given as a list of names, not as the text {names!r}; {right}"
        )
    if not names:
        raise UsageError(f"no device to simulate was named; {right}")
    count = 0
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            raise UsageError(f"can't simulate a device named {name!r}; {right}")
        count = max(count, int(match.group(1) or 0) + 1)
    return count


class Machine(threading.local):
    """The devices of one simulation, and which of them is current: a thing of each thread, as in CUDA."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0

    def name(self, device: Any) -> str:
        """Returns what a device argument means: "cuda:0" for "cuda", torch.device("cuda") or 0; "cpu".

        Raises:
            RuntimeError: As torch words it: not a device, or a GPU that the machine lacks.
        """
        if isinstance(device, int):
            index = self.current if device == -1 else device
        else:
            parsed = device if isinstance(device, torch.device) else torch.device(device)
            if parsed.type != "cuda":
                return parsed.type
            number: int | None = parsed.index
            index = self.current if number is None else number
        self.check(index)
        return f"cuda:{index}"

    def index(self, device: Any = None) -> int:
        """Returns the number of a GPU given as anything that `torch.cuda` takes; the current one for None."""
        if device is None:
            return self.current
        name = self.name(device)
        if not name.startswith("cuda:"):
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return int(name.removeprefix("cuda:"))

    def check(self, index: int) -> None:
        """Raises torch's own error when the machine has no GPU of that number."""
        if not 0 <= index < self.count:
            raise getattr(torch, "AcceleratorError", RuntimeError)(_BAD_ORDINAL)
