"""Simulated devices: a training script on the CPU that believes in its GPUs; imports torch and `modes`."""

from graphlint.capture.devices.simulated import SimulatedDevices

__all__ = ["SimulatedDevices"]
