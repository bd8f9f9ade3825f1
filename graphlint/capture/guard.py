"""Keeps a fault of graphlint's own away from the training: the one place that catches everything.

May import `record`, `capture.recorder` and `capture.messages`. A tap whose own code fails is not run again;
the fault is recorded, and the rules that needed the tap say that they were not checked.
"""

import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from graphlint.capture.messages import kind_of, message_of
from graphlint.capture.recorder import Recorder
from graphlint.record.faults import CaptureFault
from graphlint.record.header import Capability, TapReport

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Runs the taps' own code, never the user's.

    Function modes and tensor subclasses are off meanwhile: reading a tensor's attributes must neither record
    itself nor run the user's overrides.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._faults: dict[Capability, str] = {}
        self._armed: set[Capability] = set()

    def arm(self, capability: Capability) -> None:
        """Notes that a tap is in place."""
        self._armed.add(capability)

    def failed(self, capability: Capability) -> bool:
        """Tells whether the tap disarmed itself."""
        return capability in self._faults

    def run(
        self, capability: Capability, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Returns what `function` returns; None when it fails now or has failed before."""
        if capability in self._faults:
            return None
        try:
            with torch._C.DisableTorchFunction():
                return function(*args, **kwargs)
        except Exception as fault:  # noqa: BLE001 - whatever goes wrong in a tap, training must go on
            self._note(capability, fault)
            return None

    def _note(self, capability: Capability, fault: Exception) -> None:
        message = f"{kind_of(fault)}: {message_of(fault)}"
        self._faults[capability] = message
        self._recorder.emit(
            CaptureFault(
                serial=self._recorder.next_serial(),
                tap=capability,
                message=message,
                traceback="".join(traceback.format_exception(fault)),
            )
        )

    def reports(self, capabilities: tuple[Capability, ...]) -> tuple[TapReport, ...]:
        """Returns what became of each tap."""
        return tuple(
            TapReport(capability=name, armed=name in self._armed, fault=self._faults.get(name))
            for name in capabilities
        )
