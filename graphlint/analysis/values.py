"""The value graph: which tensor was computed from which, through memory and through Python too.

May import `record` and `analysis.names` only. Recorded at the full level only; a question about a tensor
of a watched step finds nothing, which the caller must not take for "no values flow".
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from graphlint.record.events import (
    Backward,
    BatchDraw,
    HostRead,
    ModuleCall,
    Op,
    OptimizerStep,
    Transfer,
    Use,
)
from graphlint.record.identity import ModuleId, Serial, StorageId, TensorId
from graphlint.record.trace import Trace

ASSIGNMENT = "torch.Tensor.data.__set__"
"""How the record calls `tensor.data = other`, which gives the tensor other memory."""

Producer = Op | Transfer | ModuleCall | Backward
"""An event that made a tensor, or changed it in place."""


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that an event read, and how.

    `host` tells that the value went through Python; `alias` that the event reads it as memory it shares.
    """

    tensor: TensorId
    serial: Serial
    requires_grad: bool
    host: HostRead | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A way by which a tensor has its value: an event and the tensors that it read.

    `event` is None where a tensor that nobody made shares its memory with one that somebody did: it was
    wrapped anew.
    """

    event: Producer | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """The part of the value graph upstream of a tensor.

    Attributes:
        tensor: where the walk began.
        tensors: every tensor upstream, itself included.
        links: the links upstream, each with the tensor that it leads to.
        orphans: tensors upstream of which the record doesn't say how they were made; parameters, buffers
            and batches left out.
    """

    tensor: TensorId
    tensors: frozenset[TensorId]
    links: tuple[tuple[TensorId, Link], ...]
    orphans: frozenset[TensorId]


class Values:
    """The value graph of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def producers(self, tensor: TensorId, before: Serial) -> tuple[Producer, ...]:
        """Returns the events up to `before` that made the tensor or wrote to its memory, in time order."""
        return tuple(self._producers(tensor, before))

    def makers(self, tensor: TensorId) -> tuple[Producer, ...]:
        """Returns the events whose result the tensor is, at any time."""
        return tuple(self._made.get(tensor, ()))

    def same_memory(self, one: TensorId, other: TensorId) -> bool:
        """Tells whether two tensors are of one shape and lie in the same storage."""
        rows = self._trace.tensors.get(one), self._trace.tensors.get(other)
        if rows[0] is None or rows[1] is None:
            return False
        return rows[0].storage == rows[1].storage and rows[0].shape == rows[1].shape

    def producer(self, tensor: TensorId, before: Serial) -> Producer | None:
        """Returns the last event up to `before` that made the tensor or wrote to its memory."""
        found = self.producers(tensor, before)
        return found[-1] if found else None

    def consumers(self, tensor: TensorId) -> tuple[Op | Transfer | HostRead, ...]:
        """Returns the events that read the tensor, in time order."""
        return tuple(self._consumers.get(tensor, ()))

    def storage(self, tensor: TensorId) -> StorageId | None:
        """Returns the memory that a tensor lies in."""
        row = self._trace.tensors.get(tensor)
        return row.storage if row is not None else None

    def sharers(self, tensor: TensorId) -> tuple[TensorId, ...]:
        """Returns all tensors that lie in the same memory, itself included."""
        storage = self.storage(tensor)
        return tuple(self._by_storage.get(storage, ())) if storage is not None else (tensor,)

    def writes(self, storage: StorageId) -> tuple[Op, ...]:
        """Returns the events that changed a tensor in this memory in place, in time order."""
        return tuple(self._writes.get(storage, ()))

    def changes(self, storage: StorageId, after: Serial, before: Serial) -> tuple[Op | OptimizerStep, ...]:
        """Returns what changed this memory in place between two serials, optimizer steps included."""
        found = [*self._writes.get(storage, ()), *self._steps.get(storage, ())]
        return tuple(sorted((e for e in found if after < e.serial < before), key=lambda event: event.serial))

    def flow(self, tensor: TensorId, before: Serial) -> Flow:
        """Returns everything that the tensor's value at `before` was computed from."""
        links: list[tuple[TensorId, Link]] = []
        latest: dict[TensorId, Serial] = {}
        waiting = [(tensor, before)]
        while waiting:
            current, at = waiting.pop()
            if latest.get(current, Serial(-1)) >= at:
                continue
            seen = latest.get(current, Serial(-1))
            latest[current] = at
            for link in self._links(current, at, seen):
                links.append((current, link))
                waiting.extend((source.tensor, source.serial) for source in link.sources)
        made = {result for result, _ in links} | self._given
        return Flow(tensor, frozenset(latest), tuple(links), frozenset(latest) - made)

    def depends(self, tensor: TensorId, before: Serial, on: Iterable[TensorId]) -> bool:
        """Tells whether the tensor's value at `before` was computed from any of `on`."""
        return not self.flow(tensor, before).tensors.isdisjoint(on)

    def sources(self, event: Producer) -> tuple[Source, ...]:
        """Returns what an event read."""
        match event:
            case Op():
                used = [Source(use.tensor, event.serial, use.requires_grad) for use in event.inputs]
                return (*used, *self._from_host(event))
            case Transfer():
                return (Source(event.source.tensor, event.serial, event.source.requires_grad),)
            case ModuleCall():
                return tuple(self._module_sources(event))
            case Backward():
                return tuple(
                    Source(tensor, event.serial, requires_grad=True)
                    for tensor in (*event.roots, *event.targets)
                )

    def _from_host(self, event: Op) -> Iterator[Source]:
        for serial in event.host_inputs:
            read = self._host_reads.get(serial)
            if read is not None:
                yield Source(read.tensor.tensor, read.serial, read.tensor.requires_grad, host=read)

    def _module_sources(self, call: ModuleCall) -> Iterator[Source]:
        for tensor in (*call.inputs, *self.module_parameters(call.module)):
            row = self._trace.tensors.get(tensor)
            yield Source(tensor, call.serial, row.requires_grad if row is not None else False)

    def module_parameters(self, module: ModuleId) -> Iterator[TensorId]:
        """Yields the parameters of a module and of those below it, buffers left out."""
        row = self._trace.modules.get(module)
        if row is None:
            return
        prefix = f"{row.path}." if row.path else ""
        for place in self._trace.parameters:
            owner = self._trace.modules.get(place.module)
            if owner is None or place.buffer:
                continue
            below = owner.root == row.root and (owner.path.startswith(prefix) or not prefix)
            if place.module == module or below:
                yield place.tensor

    def _links(self, tensor: TensorId, at: Serial, seen: Serial) -> Iterator[Link]:
        """Yields the links of a tensor later than `seen` and up to `at`."""
        made = False
        for event in self._producers(tensor, at):
            made = True
            if event.serial > seen:
                yield Link(event, self.sources(event))
        if made or seen >= 0 or tensor in self._parameter_tensors:
            return
        shared = [
            Source(other, at, self._requires_grad(other, at))
            for other in self.sharers(tensor)
            if other != tensor and self._exists(other, at)
        ]
        if shared:
            yield Link(None, tuple(shared))

    def _producers(self, tensor: TensorId, at: Serial) -> Iterator[Producer]:
        own = self._made.get(tensor, [])
        storage = self.storage(tensor)
        writes = self._writes.get(storage, []) if storage is not None else []
        events: dict[Serial, Producer] = {event.serial: event for event in own if event.serial <= at}
        if own or tensor not in self._parameter_tensors:
            first = own[0].serial if own else Serial(-1)
            events.update({w.serial: w for w in writes if first <= w.serial <= at})
        yield from (events[serial] for serial in sorted(events))

    def _exists(self, tensor: TensorId, at: Serial) -> bool:
        made = self._made.get(tensor)
        return tensor in self._parameter_tensors or (made is not None and made[0].serial <= at)

    def _requires_grad(self, tensor: TensorId, at: Serial) -> bool:
        row = self._trace.tensors.get(tensor)
        uses = self._uses.get(tensor, [])
        place = bisect_right(uses, at, key=lambda use: use[0]) - 1
        if place >= 0:
            return uses[place][1]
        return row.requires_grad if row is not None else False

    def requires_grad(self, tensor: TensorId, at: Serial) -> bool:
        """Tells whether a tensor wanted gradients when it was last seen up to `at`."""
        return self._requires_grad(tensor, at)

    @cached_property
    def _parameter_tensors(self) -> frozenset[TensorId]:
        held = {place.tensor for place in self._trace.parameters if not place.buffer}
        held.update(t for o in self._trace.optimizers.values() for group in o.groups for t in group)
        return frozenset(held)

    @cached_property
    def _given(self) -> frozenset[TensorId]:
        """The tensors that nothing in the step had to make: parameters, buffers, batches."""
        held = {place.tensor for place in self._trace.parameters} | self._parameter_tensors
        drawn = (e.tensors for e in self._trace.events if isinstance(e, BatchDraw))
        return frozenset(held.union(*drawn))

    @cached_property
    def _by_storage(self) -> dict[StorageId, list[TensorId]]:
        found: dict[StorageId, list[TensorId]] = {}
        for row in self._trace.tensors.values():
            found.setdefault(row.storage, []).append(row.id)
        return found

    @cached_property
    def _host_reads(self) -> dict[Serial, HostRead]:
        return {event.serial: event for event in self._trace.events if isinstance(event, HostRead)}

    @cached_property
    def _uses(self) -> dict[TensorId, list[tuple[Serial, bool]]]:
        """When each tensor was seen, and whether it wanted gradients then."""
        seen: dict[TensorId, list[tuple[Serial, bool]]] = {}

        def note(serial: Serial, use: Use) -> None:
            seen.setdefault(use.tensor, []).append((serial, use.requires_grad))

        for event in self._trace.events:
            if isinstance(event, Op):
                for use in event.inputs:
                    note(event.serial, use)
                for tensor, grad in zip(event.outputs, event.output_grads, strict=False):
                    seen.setdefault(tensor, []).append((event.serial, grad))
            elif isinstance(event, Transfer):
                note(event.serial, event.source)
            elif isinstance(event, HostRead):
                note(event.serial, event.tensor)
        return seen

    @cached_property
    def _consumers(self) -> dict[TensorId, list[Op | Transfer | HostRead]]:
        found: dict[TensorId, list[Op | Transfer | HostRead]] = {}
        for event in self._trace.events:
            if isinstance(event, Op):
                for tensor in dict.fromkeys(use.tensor for use in event.inputs):
                    found.setdefault(tensor, []).append(event)
            elif isinstance(event, Transfer):
                found.setdefault(event.source.tensor, []).append(event)
            elif isinstance(event, HostRead):
                found.setdefault(event.tensor.tensor, []).append(event)
        return found

    @cached_property
    def _writes(self) -> dict[StorageId, list[Op]]:
        found: dict[StorageId, list[Op]] = {}
        for event in self._trace.events:
            if isinstance(event, Op):
                storages = {self.storage(change.tensor) for change in event.changed}
                for storage in storages - {None}:
                    if storage is not None:
                        found.setdefault(storage, []).append(event)
        return found

    @cached_property
    def _steps(self) -> dict[StorageId, list[OptimizerStep]]:
        found: dict[StorageId, list[OptimizerStep]] = {}
        for event in self._trace.events:
            if isinstance(event, OptimizerStep):
                storages = {self.storage(change.tensor) for change in event.changed}
                for storage in storages:
                    if storage is not None:
                        found.setdefault(storage, []).append(event)
        return found

    @cached_property
    def _made(self) -> dict[TensorId, list[Producer]]:
        """The events whose result a tensor is; a module call only for what no operation made."""
        made: dict[TensorId, list[Producer]] = {}
        outputs: tuple[TensorId, ...]
        for event in self._trace.events:
            match event:
                case Op(name=name, inputs=(target, _)) if name == ASSIGNMENT:
                    outputs = (target.tensor,)
                case Op() | Backward():
                    outputs = event.outputs
                case Transfer() if not event.noop:
                    outputs = (event.result,)
                case _:
                    continue
            for tensor in outputs:
                made.setdefault(tensor, []).append(event)
        for call in (event for event in self._trace.events if isinstance(event, ModuleCall)):
            for tensor in call.outputs:
                if tensor not in made and tensor not in call.inputs:
                    made.setdefault(tensor, []).append(call)
        return made
