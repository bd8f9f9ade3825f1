"""Devices: where tensors lie, what moves them, and what each device contributes to a loss.

May import `record`, `analysis.values` and `analysis.devices_journeys`. Recorded at the full level only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from graphlint.analysis.devices_journeys import Journeys
from graphlint.analysis.values import Values
from graphlint.record.events import Backward, ModuleCall, ModuleMove, Op, Transfer
from graphlint.record.identity import ModuleId, Serial, TensorId
from graphlint.record.tables import Frame
from graphlint.record.trace import Trace


@dataclass(frozen=True, slots=True)
class Local:
    """What a tensor was computed from without leaving its device.

    Attributes:
        operations: the operations that computed it there, the latest first.
        arrivals: the real moves that brought in what they read.
        given: tensors that nothing recorded made: a loader's, or made before the capture.
        made: operations that made tensors from no tensor: factories, wrapped arrays.
        parameters: parameters that took part.
        opaque: whether part of the way is unseen (compiled, or it went through Python).
    """

    operations: tuple[Op, ...]
    arrivals: tuple[Transfer, ...]
    given: tuple[TensorId, ...]
    made: tuple[Op, ...]
    parameters: tuple[TensorId, ...]
    opaque: bool


@dataclass(frozen=True, slots=True)
class Reduction:
    """What became of a tensor that was only reduced to numbers on the device that it was moved to.

    Attributes:
        operations: what was done with it there, in time order.
        losses: the scalars that it became, which a backward reached.
        backwards: those backwards.
        others: the tensors of more than one element that took part, and did not come from it.
    """

    operations: tuple[Op, ...]
    losses: tuple[TensorId, ...]
    backwards: tuple[Backward, ...]
    others: tuple[TensorId, ...]


class Devices:
    """The device facts of a trace."""

    def __init__(self, trace: Trace, values: Values) -> None:
        self._trace = trace
        self._values = values

    @cached_property
    def journeys(self) -> Journeys:
        """The journeys of values between devices."""
        return Journeys(self._trace)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every call that asked for a tensor on a device, no-ops included, in time order."""
        return tuple(event for event in self._trace.events if isinstance(event, Transfer))

    @cached_property
    def used(self) -> frozenset[str]:
        """The devices on which the run had tensors."""
        return frozenset(row.device for row in self._trace.tensors.values() if row.device != "meta")

    @cached_property
    def parameters(self) -> frozenset[TensorId]:
        """The parameters of modules and optimizers, buffers excepted."""
        held = {place.tensor for place in self._trace.parameters if not place.buffer}
        held.update(row.id for row in self._trace.tensors.values() if row.parameter)
        held.update(t for o in self._trace.optimizers.values() for group in o.groups for t in group)
        return frozenset(held)

    def elements(self, tensor: TensorId) -> int:
        """Returns how many elements a tensor has; 0 when it is unknown."""
        row = self._trace.tensors.get(tensor)
        if row is None:
            return 0
        count = 1
        for size in row.shape:
            count *= size
        return count

    def bytes(self, tensor: TensorId) -> int:
        """Returns the size of a tensor in bytes; 0 when it is unknown."""
        row = self._trace.tensors.get(tensor)
        return row.bytes if row is not None else 0

    def line(self, event: Op | Transfer | ModuleMove) -> Frame | None:
        """Returns the user's line that itself made a call; None where a library made it."""
        site = self._trace.sites.get(event.site) if event.site is not None else None
        if site is None or not site.direct or not site.frames:
            return None
        return site.frames[0]

    # --- where a tensor lies ------------------------------------------------------------------------------

    def of(self, tensor: TensorId, at: Serial) -> str:
        """Returns the device that a tensor was on at a moment; empty when it is unknown."""
        moves = [move for move in self.moves(tensor) if move.serial <= at]
        row = self._trace.tensors.get(tensor)
        if moves:
            return self.spelled(moves[-1].to_device)
        return row.device if row is not None else ""

    def moves(self, tensor: TensorId) -> tuple[ModuleMove, ...]:
        """Returns the module moves that took a parameter or buffer along, in time order."""
        return self._moves.get(tensor, ())

    def spelled(self, device: str) -> str:
        """Returns a device as the tensors on it spell it: `cuda` is `cuda:0` where that is meant."""
        if ":" in device or device in self.used or device in {"", "cpu", "meta"}:
            return device
        numbered = sorted(known for known in self.used if known.startswith(f"{device}:"))
        return numbered[0] if len(numbered) == 1 else f"{device}:0"

    def members(self, module: ModuleId) -> tuple[TensorId, ...]:
        """Returns the parameters and buffers of a module and of those below it."""
        row = self._trace.modules.get(module)
        if row is None:
            return ()
        prefix = f"{row.path}." if row.path else ""
        found: list[TensorId] = []
        for place in self._trace.parameters:
            owner = self._trace.modules.get(place.module)
            if owner is None:
                continue
            below = owner.root == row.root and (owner.path.startswith(prefix) or not prefix)
            if place.module == module or below:
                found.append(place.tensor)
        return tuple(dict.fromkeys(found))

    @cached_property
    def _moves(self) -> dict[TensorId, tuple[ModuleMove, ...]]:
        found: dict[TensorId, list[ModuleMove]] = {}
        for event in self._trace.events:
            if isinstance(event, ModuleMove):
                for tensor in self.members(event.module):
                    found.setdefault(tensor, []).append(event)
        return {tensor: tuple(moves) for tensor, moves in found.items()}

    # --- upstream, without leaving the device -------------------------------------------------------------

    def local(self, tensor: TensorId, before: Serial) -> Local:
        """Returns what a tensor's value at a moment was computed from on its own device."""
        operations: dict[Serial, Op] = {}
        arrivals: dict[Serial, Transfer] = {}
        given: dict[TensorId, None] = {}
        made: dict[Serial, Op] = {}
        parameters: dict[TensorId, None] = {}
        opaque = False
        seen: dict[TensorId, Serial] = {}
        waiting = [(tensor, before)]
        while waiting:
            current, at = waiting.pop()
            if seen.get(current, Serial(-1)) >= at:
                continue
            seen[current] = at
            if current in self.parameters:
                parameters[current] = None
                continue
            producers = self._values.producers(current, at)
            if not producers:
                given[current] = None
            for event in producers:
                match event:
                    case Transfer():
                        arrivals[event.serial] = event
                    case Op() if event.inputs:
                        operations[event.serial] = event
                        opaque = opaque or bool(event.host_inputs)
                        waiting += [(use.tensor, Serial(event.serial - 1)) for use in event.inputs]
                    case Op():
                        made[event.serial] = event
                        opaque = opaque or bool(event.host_inputs)
                    case _:
                        opaque = True
        return Local(
            operations=tuple(operations[serial] for serial in sorted(operations, reverse=True)),
            arrivals=tuple(arrivals[serial] for serial in sorted(arrivals)),
            given=tuple(given),
            made=tuple(made[serial] for serial in sorted(made)),
            parameters=tuple(parameters),
            opaque=opaque,
        )

    # --- downstream ---------------------------------------------------------------------------------------

    def feeds_backward(self, tensor: TensorId) -> bool:
        """Tells whether anything computed from a tensor was the root of a backward."""
        return tensor in self._feeding

    @cached_property
    def _feeding(self) -> frozenset[TensorId]:
        """Every tensor from which the root of a backward was computed, the roots included."""
        read: dict[TensorId, list[TensorId]] = {}
        for event in self._trace.events:
            match event:
                case Op() if event.error is None:
                    written = (*event.outputs, *(change.tensor for change in event.changed))
                    sources = tuple(use.tensor for use in event.inputs)
                case Transfer() if not event.noop:
                    written, sources = (event.result,), (event.source.tensor,)
                case ModuleCall():
                    written, sources = event.outputs, event.inputs
                case _:
                    continue
            for tensor in written:
                read.setdefault(tensor, []).extend(sources)
        seen = set(self._roots)
        waiting = list(seen)
        while waiting:
            fresh = [tensor for tensor in read.get(waiting.pop(), ()) if tensor not in seen]
            seen.update(fresh)
            waiting += fresh
        return frozenset(seen)

    def used_after(self, tensor: TensorId, serial: Serial) -> bool:
        """Tells whether anything read the tensor, or memory that it shares, after a moment."""
        sharers = self._values.sharers(tensor)
        return any(event.serial > serial for other in sharers for event in self._values.consumers(other))

    def reduction(self, transfer: Transfer) -> Reduction | None:
        """Returns how a moved tensor was reduced to a loss; None when it served for anything else.

        It served for something else where a parameter, a custom function or an unseen module took part, where
        more than a number went on to another device, or where a backward began at more than a number.
        """
        operations: dict[Serial, Op] = {}
        derived = {transfer.result}
        scalars: dict[TensorId, None] = {}
        waiting = [transfer.result]
        while waiting:
            current = waiting.pop()
            if current in self._roots or self._unseen_call(current):
                return None
            for event in self._values.consumers(current):
                if isinstance(event, Transfer) and not event.noop:
                    return None
                if not isinstance(event, Op) or event.error is not None:
                    continue
                if self._serves(event):
                    return None
                operations[event.serial] = event
                for output in (*event.outputs, *(change.tensor for change in event.changed)):
                    if output not in derived:
                        derived.add(output)
                        if self.elements(output) > 1:
                            waiting.append(output)
                        else:
                            scalars[output] = None
        return self._as_reduction(operations, derived, tuple(scalars))

    def _as_reduction(
        self, operations: dict[Serial, Op], derived: set[TensorId], scalars: tuple[TensorId, ...]
    ) -> Reduction | None:
        losses = {scalar: self._backwards_from(scalar) for scalar in scalars}
        reached = {scalar: found for scalar, found in losses.items() if found}
        if not reached:
            return None
        ordered = tuple(operations[serial] for serial in sorted(operations))
        others = dict.fromkeys(
            use.tensor
            for op in ordered
            for use in op.inputs
            if use.tensor not in derived and self.elements(use.tensor) > 1
        )
        backwards = {event.serial: event for found in reached.values() for event in found}
        return Reduction(
            operations=ordered,
            losses=tuple(reached),
            backwards=tuple(backwards[serial] for serial in sorted(backwards)),
            others=tuple(others),
        )

    def _serves(self, op: Op) -> bool:
        custom = not op.name.startswith("torch.")
        return custom or any(use.tensor in self.parameters for use in op.inputs)

    def _unseen_call(self, tensor: TensorId) -> bool:
        """Tells whether a module read the tensor, and nothing inside it was seen to."""
        return any(
            not any(call.serial < event.serial < call.end for event in self._values.consumers(tensor))
            for call in self._calls.get(tensor, ())
        )

    def _backwards_from(self, tensor: TensorId) -> tuple[Backward, ...]:
        seen = {tensor}
        waiting = [tensor]
        found: dict[Serial, Backward] = {}
        while waiting:
            current = waiting.pop()
            found.update({event.serial: event for event in self._roots.get(current, ())})
            fresh = [following for following in self._next(current) if following not in seen]
            seen.update(fresh)
            waiting += fresh
        return tuple(found[serial] for serial in sorted(found))

    def _next(self, tensor: TensorId) -> Iterator[TensorId]:
        """Yields what was computed from a tensor in one step."""
        for event in self._values.consumers(tensor):
            match event:
                case Op() if event.error is None:
                    yield from event.outputs
                    yield from (change.tensor for change in event.changed)
                case Transfer() if not event.noop:
                    yield event.result
                case _:
                    pass
        for call in self._calls.get(tensor, ()):
            yield from call.outputs

    @cached_property
    def _roots(self) -> dict[TensorId, tuple[Backward, ...]]:
        found: dict[TensorId, tuple[Backward, ...]] = {}
        for event in self._trace.events:
            if isinstance(event, Backward):
                for root in event.roots:
                    found[root] = (*found.get(root, ()), event)
        return found

    @cached_property
    def _calls(self) -> dict[TensorId, tuple[ModuleCall, ...]]:
        found: dict[TensorId, tuple[ModuleCall, ...]] = {}
        for event in self._trace.events:
            if isinstance(event, ModuleCall):
                for tensor in dict.fromkeys(event.inputs):
                    found[tensor] = (*found.get(tensor, ()), event)
        return found
