"""Facts about lines that raised, the user's and graphlint's own; may import `identity` and `base` only."""

import msgspec

from graphlint.record.base import Event
from graphlint.record.identity import TensorId


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that was in reach of a line that raised: the variable's name, where it was, its shape."""

    name: str
    device: str
    shape: tuple[int, ...]
    tensor: TensorId | None = None


class CaptureFault(Event, frozen=True, kw_only=True, tag="capture-fault"):
    """A fault of graphlint's own in a tap, which then disarmed itself; training went on."""

    tap: str
    message: str
    traceback: str
