"""Every random state that a training step may draw from, so that a resumed run draws what comes next.

Imports torch, and NumPy where something else has.
"""

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


def random_state(devices: Iterable[torch.device]) -> dict[str, Any]:
    """Returns the states of Python's, NumPy's and torch's generators, as plain values and tensors on the CPU.

    NumPy's is None where nothing has imported it.

    Args:
        devices: those that the training uses; of others nothing is kept.
    """
    gpus = {str(device): torch.cuda.get_rng_state(device) for device in _gpus(devices)}
    return {"python": random.getstate(), "numpy": _numpy_state(), "cpu": torch.get_rng_state(), "cuda": gpus}


def restore_random_state(state: dict[str, Any], devices: Iterable[torch.device]) -> None:
    """Puts the generators back to what `random_state` returned, for the devices that it names."""
    version, words, gaussian = state["python"]
    random.setstate((version, tuple(words), gaussian))
    torch.set_rng_state(state["cpu"])
    for device in _gpus(devices):
        if str(device) in state["cuda"]:
            torch.cuda.set_rng_state(state["cuda"][str(device)], device)
    if state["numpy"] is not None:
        import numpy as np

        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002 - the global one


def _gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    return [device for device in dict.fromkeys(devices) if device.type == "cuda"]


def _numpy_state() -> tuple[str | int | float | list[int], ...] | None:
    if "numpy" not in sys.modules:
        return None
    import numpy as np

    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one
    return (str(kind), [int(key) for key in keys], *rest)
