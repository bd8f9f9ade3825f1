"""Which of torch's layers compute something else in train mode than in eval mode.

May import torch. What a user's own module makes of its mode isn't known.
"""

from typing import Literal

import torch
from torch import nn


def depends_on_mode(module: nn.Module) -> Literal["dropout", "statistics"] | None:
    """Returns what a module does in train mode alone; None where both modes are alike, or not known."""
    if isinstance(module, (nn.modules.batchnorm._NormBase)):
        # Without running statistics of its own it goes by the batch in both modes.
        return "statistics" if isinstance(_own(module, "running_mean"), torch.Tensor) else None
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "dropout" if _positive(_own(module, "p")) else None
    if isinstance(module, nn.RNNBase):
        layers = _own(module, "num_layers")
        deep = isinstance(layers, int) and layers > 1
        return "dropout" if deep and _positive(_own(module, "dropout")) else None
    if isinstance(module, nn.MultiheadAttention):
        return "dropout" if _positive(_own(module, "dropout")) else None
    return None


def _own(module: nn.Module, name: str) -> object:
    """Returns an attribute or buffer that a module keeps itself; runs no code of the user's."""
    held = vars(module)
    return held.get(name, (held.get("_buffers") or {}).get(name))


def _positive(rate: object) -> bool:
    return isinstance(rate, (int, float)) and rate > 0
