"""The journeys of values between devices: which tensors hold one value, where, and what brought it there.

May import `record` only. A value is the content of a tensor at one version. It survives moves, detaching and
views that keep every element; an operation that computes, or an in-place change, ends it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from graphlint.record.events import HostRead, ModuleCall, Op, OptimizerStep, Transfer, Use
from graphlint.record.identity import Serial, StorageId, TensorId
from graphlint.record.trace import Trace

_WRITES_STATISTICS = frozenset(
    {
        "torch.batch_norm",
        "torch.instance_norm",
        "torch.nn.functional.batch_norm",
        "torch.nn.functional.instance_norm",
    }
)
"""Functions of torch that update running statistics without raising a version counter."""

_SHARES_PYTHON_MEMORY = frozenset(
    {"torch.from_numpy", "torch.as_tensor", "torch.asarray", "torch.frombuffer", "torch.from_dlpack"}
)
"""Functions of torch whose result may lie in memory that Python writes unseen."""

_REPLACES_MEMORY = frozenset({"torch.Tensor.data.__set__", "torch.Tensor.set_"})


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """A value on a device, as one tensor.

    Attributes:
        device: where.
        tensor: the tensor that holds the value there.
        transfer: the move that brought it; None where the value was first met.
        previous: the stop that it was moved from; None where it was first met.
        epoch: how often its memory had been written by then.
    """

    device: str
    tensor: TensorId
    transfer: Transfer | None
    previous: "Stop | None"
    epoch: int

    def route(self) -> Iterator["Stop"]:
        """Yields this stop and those before it, back to where the value was first met."""
        stop: Stop | None = self
        while stop is not None:
            yield stop
            stop = stop.previous


@dataclass(frozen=True, slots=True)
class Arrival:
    """A real move of a value.

    Attributes:
        transfer: the move.
        stop: where the value is after it.
        earlier: a stop of the same value on the same device that was still good when the move was made.
        returned: whether the value set out from `earlier`: it comes back. Else it was sent there before.
    """

    transfer: Transfer
    stop: Stop
    earlier: Stop | None
    returned: bool


@dataclass(slots=True)
class _Standing:
    """What a tensor holds: a stop of a value; good while neither version nor epoch moved on."""

    value: "_Value"
    stop: Stop
    version: int | None


@dataclass(slots=True, eq=False)
class _Value:
    stops: list[Stop] = field(default_factory=list)


class Journeys:
    """All journeys of a trace, from one walk over its events."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def arrivals(self) -> tuple[Arrival, ...]:
        """The real moves whose values kept their content, in time order."""
        return tuple(self._walker.arrivals)

    def arrival(self, transfer: Serial) -> Arrival | None:
        """Returns the arrival that a transfer brought about; None for a no-op or a conversion."""
        return self._by_serial.get(transfer)

    def exposed(self, tensor: TensorId) -> bool:
        """Tells whether Python could write the tensor's memory without torch noticing.

        So it could where the memory was handed to or taken from Python, and where nobody knows who made it.
        """
        row = self._trace.tensors.get(tensor)
        if row is None or row.storage in self._walker.exposed:
            return True
        return row.storage not in self._walker.made

    @cached_property
    def _by_serial(self) -> dict[Serial, Arrival]:
        return {arrival.transfer.serial: arrival for arrival in self.arrivals}

    @cached_property
    def _walker(self) -> "_Walker":
        walker = _Walker(self._trace)
        for event in self._trace.events:
            match event:
                case Op():
                    walker.operation(event)
                case Transfer():
                    walker.transfer(event)
                case OptimizerStep():
                    for change in event.changed:
                        walker.rewritten(change.tensor)
                case HostRead() if event.method == "numpy":
                    walker.expose(event.tensor.tensor)
                case _:
                    pass
        return walker


class _Walker:
    """The state of the walk: which value each tensor holds."""

    def __init__(self, trace: Trace) -> None:
        self._tensors = trace.tensors
        self._standing: dict[TensorId, _Standing] = {}
        self._epochs: dict[StorageId, int] = {}
        self._buffers = frozenset(place.tensor for place in trace.parameters if place.buffer)
        self._evaluating = frozenset(
            event.serial for event in trace.events if isinstance(event, ModuleCall) and not event.training
        )
        self.arrivals: list[Arrival] = []
        self.exposed: set[StorageId] = set()
        self.made = {
            row.storage for row in trace.tensors.values() if row.parameter or row.id in self._buffers
        }

    def operation(self, op: Op) -> None:
        """Follows an operation: its inputs stand, views share, what it changed is new."""
        held = [self._stand(use) for use in op.inputs]
        if op.error is not None:
            return
        inputs = {use.tensor for use in op.inputs}
        for output in op.outputs:
            if output not in inputs:
                self._made(op, output, held)
        for change in op.changed:
            self.rewritten(change.tensor)
        if op.name in _REPLACES_MEMORY and op.inputs:
            self.rewritten(op.inputs[0].tensor)
        if op.name in _WRITES_STATISTICS and op.call not in self._evaluating:
            for tensor in inputs & self._buffers:
                self.rewritten(tensor)

    def _made(self, op: Op, output: TensorId, held: list[_Standing]) -> None:
        if not op.inputs and op.name in _SHARES_PYTHON_MEMORY:
            self.expose(output)
        self._standing.pop(output, None)
        row = self._tensors.get(output)
        if row is None:
            return
        if all(self._storage(use.tensor) != row.storage for use in op.inputs):
            self.made.add(row.storage)
        for standing in held:
            source = self._tensors.get(standing.stop.tensor)
            if source is not None and (source.storage, source.bytes) == (row.storage, row.bytes):
                self._standing[output] = _Standing(standing.value, standing.stop, None)
                return

    def transfer(self, transfer: Transfer) -> None:
        """Follows a move: a real one that doesn't convert gives the value another stop."""
        source = self._stand(transfer.source)
        if transfer.noop:
            return
        if transfer.method == "copy_":
            self.rewritten(transfer.result)
        self._standing.pop(transfer.result, None)
        row = self._tensors.get(transfer.result)
        if row is not None:
            self.made.add(row.storage)
        if transfer.dtype_changed:
            return
        device = row.device if row is not None else transfer.to_device
        earlier = next((stop for stop in source.value.stops if self._good_on(stop, device)), None)
        stop = Stop(device, transfer.result, transfer, source.stop, self._epoch(transfer.result))
        returned = earlier is not None and any(passed is earlier for passed in source.stop.route())
        source.value.stops.append(stop)
        self._standing[transfer.result] = _Standing(source.value, stop, None)
        self.arrivals.append(Arrival(transfer, stop, earlier, returned))

    def _good_on(self, stop: Stop, device: str) -> bool:
        if stop.device != device or stop.epoch != self._epoch(stop.tensor):
            return False
        standing = self._standing.get(stop.tensor)
        return standing is not None and standing.stop is stop

    def rewritten(self, tensor: TensorId) -> None:
        """Notes that a tensor's memory was written: whatever lies in it is a new value."""
        row = self._tensors.get(tensor)
        if row is not None:
            self._epochs[row.storage] = self._epochs.get(row.storage, 0) + 1
        self._standing.pop(tensor, None)

    def expose(self, tensor: TensorId) -> None:
        """Notes that Python holds the tensor's memory too."""
        row = self._tensors.get(tensor)
        if row is not None:
            self.exposed.add(row.storage)

    def _stand(self, use: Use) -> _Standing:
        """Returns what a tensor holds when it is read; a value of its own when that isn't known."""
        standing = self._standing.get(use.tensor)
        good = standing is not None and self._epoch(use.tensor) == standing.stop.epoch
        if standing is not None and good and standing.version in {None, use.version}:
            standing.version = use.version
            return standing
        row = self._tensors.get(use.tensor)
        stop = Stop(
            device=row.device if row is not None else "",
            tensor=use.tensor,
            transfer=None,
            previous=None,
            epoch=self._epoch(use.tensor),
        )
        standing = _Standing(_Value([stop]), stop, use.version)
        self._standing[use.tensor] = standing
        return standing

    def _storage(self, tensor: TensorId) -> StorageId | None:
        row = self._tensors.get(tensor)
        return row.storage if row is not None else None

    def _epoch(self, tensor: TensorId) -> int:
        storage = self._storage(tensor)
        return self._epochs.get(storage, 0) if storage is not None else 0
