"""Simulated devices: a training script on the CPU that believes in its GPUs; imports torch and `modes`.

Where to look: `machine` names the devices, `labels` says where a storage is, `mode` labels what each call
makes, `moves` and `answers` handle the calls that speak of devices, `mixing` refuses what a GPU refuses,
and `cuda`, `autograd`, `checkpoints`, `library` patch what a function mode can't see.

Not simulated: `torch.device(0)` (torch itself refuses it without a GPU; `"cuda:0"` and `.to(0)` are
fine), the `.device` of a storage, `torch.Stream` and `torch.Event`, CUDA graphs, NCCL, and reduced
precision: `autocast` on a GPU leaves the numbers in float32. A gradient that the engine hands to a hook
of a bare `grad_fn`, and that the hook keeps, counts as being on the CPU. Errors that torch words inside
the engine name CPU tensor types.
"""

from graphlint.capture.devices.simulated import SimulatedDevices

__all__ = ["SimulatedDevices"]
