"""Devices of the two networks, and how a batch gets to them; imports `errors` and torch.

A tensor is copied without waiting in one case only: from the host's memory to a GPU. The other way round the
host could read the copy before it has arrived.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from graphlint.errors import UsageError


def usable_device(name: str | torch.device) -> torch.device:
    """Returns the device with its index ("cuda" becomes "cuda:0"), after a tensor was made on it.

    Raises:
        UsageError: there is no such device on this machine, or it holds no values.
    """
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"no device {name} on this machine; there is {_present()}") from error
    if device.type == "meta":
        raise UsageError("the meta device holds no values to train on")
    return device


def _present() -> str:
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return ", ".join(names)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device: itself where it is there already, else one copy.

    The copy keeps the graph. From the host to a GPU it is queued behind the work of that GPU, so whatever
    reads it there waits for it; out of pinned memory the host goes on meanwhile.
    """
    if tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=tensor.device.type == "cpu" and device.type == "cuda")


def pins_memory(*devices: torch.device) -> bool:
    """Whether batches should be drawn into pinned memory: one of the devices is a GPU that copies from it."""
    return torch.cuda.is_available() and any(device.type == "cuda" for device in devices)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch to one thread of the CPU: for networks as small as the digits', a second mostly waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
