"""A moving average of the generator's weights, which samples better than the weights do; imports torch."""

import copy

import torch
from torch import nn

_WARM_UP = 10


class GeneratorAverage:
    """An exponential moving average of a module's parameters, on the module's device.

    `torch.optim.swa_utils.AveragedModel` counts its updates in a tensor and reads it at each one, which makes
    the host wait for a GPU at every step; here the count is an int.

    Attributes:
        module: a copy of the module that holds the averages, in eval mode, with no gradients.
        updates: how many there were.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self.module = copy.deepcopy(module).eval().requires_grad_(False)  # noqa: FBT003 - torch's signature
        self.updates = 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Moves the averages towards the module's parameters, and copies its buffers.

        The first updates weigh more, so that the random initial weights are soon forgotten.
        """
        self.updates += 1
        decay = min(self._decay, (1 + self.updates) / (_WARM_UP + self.updates))
        for average, weight in zip(self.module.parameters(), module.parameters(), strict=True):
            average.lerp_(weight, 1.0 - decay)
        for kept, buffer in zip(self.module.buffers(), module.buffers(), strict=True):
            kept.copy_(buffer)
