"""The context in which a script believes in its GPUs; imports torch and the other device modules."""

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch
from torch.utils._device import DeviceContext

from graphlint.capture.devices import answers, moves
from graphlint.capture.devices.autograd import patch_autograd
from graphlint.capture.devices.checkpoints import patch_checkpoints
from graphlint.capture.devices.cuda import patch_cuda
from graphlint.capture.devices.labels import LabelTable
from graphlint.capture.devices.library import patch_library
from graphlint.capture.devices.machine import Machine, parse_names
from graphlint.capture.devices.mode import SimulationMode
from graphlint.capture.devices.patches import Patches
from graphlint.capture.modes import insert_mode, remove_mode
from graphlint.errors import UsageError


class SimulatedDevices:
    """Makes the code of its block believe in CUDA devices; everything runs on the CPU.

    Values, random numbers and gradients are those of the same code with every device replaced by the CPU.
    Everything that is put in place is taken away at the end, also when entering fails half way.

    Raises:
        UsageError: A name isn't one of a CUDA device, or the context is entered twice.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._machine = Machine(parse_names(names))
        self._stack: ExitStack | None = None
        self._table = LabelTable()
        self._mode = SimulationMode(self._table, self._machine, {**moves.handlers(), **answers.handlers()})

    @property
    def mode(self) -> SimulationMode:
        """The function mode that lies near the bottom of the stack during the block."""
        return self._mode

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the simulated devices."""
        return tuple(f"cuda:{index}" for index in range(self._machine.count))

    def label(self, tensor: torch.Tensor) -> str:
        """Returns where the script believes `tensor` to be: "cuda:0", "cpu", "meta"; about 1 us."""
        return self._mode.device_of(tensor)

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise UsageError("these simulated devices are in use already; make new ones for a new block")
        # The first optimizer imports it, and it keeps what it finds in torch.cuda: let that be real.
        importlib.import_module("torch._dynamo")
        with ExitStack() as stack:
            stack.callback(self._table.clear)
            stack.callback(self._mode.close)
            _keep_defaults(stack)
            # What would be compiled for a GPU runs as written: Dynamo can't trace through the simulation.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            patches = Patches(stack)
            patch_cuda(patches, self._mode)
            patch_checkpoints(patches, self._mode)
            patch_autograd(patches, self._mode)
            patch_library(patches, self._mode)
            self._mode.open()
            stack.callback(remove_mode, self._mode)
            insert_mode(self._mode, above=(DeviceContext,))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, traceback)


def _keep_defaults(stack: ExitStack) -> None:
    """Puts torch's default device back at the end, where the script has made it a simulated one."""
    before = _default_context_device()

    def restore() -> None:
        now = _default_context_device()
        if now is not None and now.type == "cuda":
            torch.set_default_device(before)

    stack.callback(restore)


def _default_context_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device
