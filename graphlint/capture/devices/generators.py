"""Random generators that say they are on a simulated device; imports torch and `machine`."""

from typing import Any

import torch

from graphlint.capture.devices.machine import Machine


def make_generator_type(machine: Machine) -> type[torch.Generator]:
    """Returns the class that stands in for `torch.Generator`.

    It makes plain generators for the CPU, and for a GPU generators that draw what a CPU generator of the
    same seed draws. Every generator of torch's own is an instance of it too.
    """
    real: Any = torch.Generator

    class _GeneratorType(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

    class Generator(real, metaclass=_GeneratorType):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            name = machine.name(device)
            if not name.startswith("cuda"):
                return real(device)
            made = real.__new__(cls, "cpu")
            made._simulated_device = torch.device(name)
            return made

        @property
        def device(self) -> torch.device:
            device: torch.device = self._simulated_device
            return device

    Generator.__qualname__ = real.__qualname__
    Generator.__module__ = real.__module__
    return Generator
