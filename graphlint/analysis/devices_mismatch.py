"""What met on different devices when torch refused it, and where it came from; wording is the rule's.

May import `record` and the rest of `analysis`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import ModuleCall, Op, ScriptError
from graphlint.record.identity import Serial, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_SAYS_SO = ("same device", "different devices")
"""What torch says when tensors on different devices meet."""

_NAMES_ONE = ("(torch.cuda.", "(MPS")
"""What convolutions say instead: two tensor types, of which one is the accelerator's."""

_INDEXED = "the indexed tensor"


@dataclass(frozen=True, slots=True)
class Left:
    """A tensor that was on another device than the rest.

    Attributes:
        tensor: which tensor; None when only the line's variables are known.
        name: what the user calls it; None when it is nameless. `described` says what it is then.
        device: where it was.
        passed: whether it was an argument of a module that the user called.
        held: whether it belongs to the module, as a plain attribute.
        parameter: whether it is a parameter or buffer, so that its module is what was left behind.
        factory: whether it was made from no other tensor, so that `device=` would have put it anywhere.
        asked: the lines that asked it onto that device.
        made: the lines that made it there.
        kept: the line that stored it in an attribute, where it was made.
        copied: the lines that copied it to where it was needed, and whose copy nothing reads.
    """

    tensor: TensorId | None
    name: str | None
    described: str
    device: str
    passed: bool = False
    held: bool = False
    parameter: bool = False
    factory: bool = False
    asked: tuple[Frame, ...] = ()
    made: tuple[Frame, ...] = ()
    kept: Frame | None = None
    copied: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Tensors that met on different devices.

    Attributes:
        serial: the error's.
        raised: the line in which torch raised.
        blamed: the line that passed in what was left behind; else `raised`.
        wanted: the device that the rest was on.
        holder: the module whose parameters are there; None when no module's are.
        moved: the lines that moved that module there.
        left: what was left behind.
    """

    serial: Serial
    raised: Frame
    blamed: Frame
    wanted: str
    holder: str | None
    moved: tuple[Frame, ...]
    left: tuple[Left, ...]


def find_mismatch(facts: "Facts") -> Mismatch | None:
    """Returns the mismatch that ended the run; None when it ended otherwise, or well."""
    errors = [event for event in facts.trace.events if isinstance(event, ScriptError)]
    if not errors or not _about_devices(errors[-1].message):
        return None
    error = errors[-1]
    failed = [e for e in facts.trace.events if isinstance(e, Op) and e.error and e.error in error.message]
    if failed:
        return _Operation(facts, error, failed[-1]).mismatch()
    return _from_operands(facts, error)


def _about_devices(message: str) -> bool:
    return any(part in message for part in _SAYS_SO) or any(message.count(part) == 1 for part in _NAMES_ONE)


def _from_operands(facts: "Facts", error: ScriptError) -> Mismatch | None:
    """What the tensors that the line names tell by themselves, where the operation was not recorded."""
    wanted = next((operand.device for operand in error.operands if operand.device != "cpu"), None)
    elsewhere = [operand for operand in error.operands if operand.device != wanted]
    # A number on the CPU may meet any device; without a shape stand also a module's parameters.
    behind = [operand for operand in elsewhere if operand.shape] or elsewhere
    if wanted is None or not behind or not error.frames:
        return None
    frame = error.frames[0]
    left = tuple(
        Left(
            tensor=operand.tensor,
            name=operand.name,
            described="a tensor",
            device=operand.device,
            parameter=operand.tensor is not None and operand.tensor in facts.devices.parameters,
            asked=tuple(_asked(facts, operand.tensor, error.serial)) if operand.tensor is not None else (),
            copied=tuple(_copied(facts, operand.tensor, wanted, error.serial)) if operand.tensor else (),
        )
        for operand in behind
    )
    return Mismatch(error.serial, frame, frame, wanted, None, (), left)


class _Operation:
    """A recorded operation that raised, and what is known of its arguments."""

    def __init__(self, facts: "Facts", error: ScriptError, op: Op) -> None:
        self._facts = facts
        self._error = error
        self._op = op

    def mismatch(self) -> Mismatch | None:
        """Returns the mismatch; None when the arguments don't show one."""
        site = self._facts.trace.sites.get(self._op.site) if self._op.site is not None else None
        operands = self._operands
        wanted = self._wanted()
        if site is None or not site.frames or wanted is None:
            return None
        wrong = [tensor for tensor, device in operands.items() if device != wanted]
        origins = [self._origin(tensor) for tensor in wrong]
        calls = [call for _, call in origins if call is not None]
        blamed = self._frame_of(calls[0]) if calls else None
        if calls:
            origins += [(tensor, calls[0]) for tensor in self._others_passed(calls[0], wanted)]
        frame = blamed or site.frames[0]
        left = {tensor: self._left(tensor, call, frame, wanted) for tensor, call in origins}
        holder = self._holder(wanted)
        return Mismatch(
            serial=self._error.serial,
            raised=site.frames[0],
            blamed=blamed or site.frames[0],
            wanted=wanted,
            holder=holder[0] if holder is not None else None,
            moved=holder[1] if holder is not None else (),
            left=tuple(left.values()),
        )

    @cached_property
    def _operands(self) -> dict[TensorId, str]:
        """The arguments' devices; a number on the CPU may meet any device."""
        found: dict[TensorId, str] = {}
        for use in self._op.inputs:
            row = self._facts.trace.tensors.get(use.tensor)
            device = self._facts.devices.of(use.tensor, self._op.serial)
            if row is not None and not (device == "cpu" and row.shape == ()):
                found[use.tensor] = device
        return found

    @cached_property
    def _calls(self) -> tuple[ModuleCall, ...]:
        """The module calls around the operation, innermost first."""
        by_serial = {e.serial: e for e in self._facts.trace.events if isinstance(e, ModuleCall)}
        calls: list[ModuleCall] = []
        serial = self._op.call
        while serial is not None and serial in by_serial:
            calls.append(by_serial[serial])
            serial = by_serial[serial].parent
        return tuple(calls)

    def _wanted(self) -> str | None:
        """Returns the device on which the rest was; None when all were on one device."""
        devices = set(self._operands.values())
        if len(devices) < 2:  # noqa: PLR2004 - a mismatch takes two
            return None
        if _INDEXED in self._error.message:
            # An index may lie on the CPU whatever it indexes, so the tensor that it indexes can stay.
            return self._operands.get(self._op.inputs[0].tensor)
        own = {device for tensor, device in self._operands.items() if tensor in self._parameters}
        if len(own) == 1 and not (own == {"cpu"} and self._never_placed(self._parameters)):
            return own.pop()
        for call in self._calls:
            device = self._device_of_members(call)
            if device is None or device not in devices:
                continue
            if device != "cpu" or not (own or self._never_placed(self._facts.devices.members(call.module))):
                return device
        # A loss is best computed where its predictions are, from which the gradient goes back.
        asking = {self._operands.get(use.tensor, "cpu") for use in self._op.inputs if use.requires_grad}
        found = sorted(device for device in asking or devices if device != "cpu") or sorted(devices - {"cpu"})
        return next(iter(found), None)

    @cached_property
    def _parameters(self) -> frozenset[TensorId]:
        return frozenset(tensor for tensor in self._operands if tensor in self._facts.devices.parameters)

    def _never_placed(self, tensors: Iterable[TensorId]) -> bool:
        """Tells whether a module's tensors are on the CPU since nobody moved them, and never worked there."""
        for tensor in tensors:
            worked = any(
                isinstance(event, Op)
                and event.error is None
                and event.serial < self._op.serial
                and event.call
                for event in self._facts.values.consumers(tensor)
            )
            if worked or self._facts.devices.moves(tensor):
                return False
        return True

    def _device_of_members(self, call: ModuleCall) -> str | None:
        """Returns the device on which all parameters and buffers of a module are; None when there is none."""
        devices = self._facts.devices
        found = {devices.of(tensor, self._op.serial) for tensor in devices.members(call.module)}
        return found.pop() if len(found) == 1 else None

    def _origin(self, tensor: TensorId) -> tuple[TensorId, ModuleCall | None]:
        """Returns the tensor that a left one comes from, and the outermost call that it was passed to.

        The call is None when the module around the operation made the tensor or held it.
        """
        current, at = tensor, Serial(self._op.serial - 1)
        device = self._operands[tensor]
        start = self._calls[-1].serial if self._calls else self._op.serial
        while True:
            passed = [call for call in self._calls if current in call.inputs]
            if passed:
                return current, passed[-1]
            producer = self._facts.values.producer(current, at)
            if not isinstance(producer, Op) or producer.serial < start:
                return current, None
            before = [use.tensor for use in producer.inputs if use.tensor != current]
            same = [other for other in before if self._facts.devices.of(other, producer.serial) == device]
            if not same:
                return current, None
            current, at = same[0], Serial(producer.serial - 1)

    def _others_passed(self, call: ModuleCall, wanted: str) -> Iterator[TensorId]:
        """Yields the call's other arguments on a wrong device: they would raise next."""
        for tensor in call.inputs:
            row = self._facts.trace.tensors.get(tensor)
            if row is not None and row.shape and self._facts.devices.of(tensor, call.serial) != wanted:
                yield tensor

    def _left(self, tensor: TensorId, call: ModuleCall | None, frame: Frame, wanted: str) -> Left:
        producers = self._facts.values.producers(tensor, self._op.serial)
        start = self._calls[-1].serial if self._calls else None
        existed = start is not None and all(event.serial < start for event in producers)
        parameter = tensor in self._facts.devices.parameters or self._in_module_left(tensor, wanted)
        made = [producers[0], producers[-1]] if producers and isinstance(producers[0], Op) else []
        lines = [self._facts.devices.line(event) for event in made if isinstance(event, Op)]
        held = call is None and existed and not parameter
        return Left(
            tensor=tensor,
            name=self._facts.names.tensor_name(tensor, frame.function),
            described=self._facts.names.tensor(tensor),
            device=self._facts.devices.of(tensor, self._op.serial),
            passed=call is not None,
            held=held,
            parameter=parameter,
            factory=bool(made) and isinstance(made[0], Op) and not made[0].inputs,
            asked=tuple(_asked(self._facts, tensor, self._op.serial)),
            made=tuple(dict.fromkeys(line for line in lines if line is not None)),
            kept=self._stored(tensor, lines[0]) if held and lines else None,
            copied=tuple(_copied(self._facts, tensor, wanted, self._op.serial)),
        )

    def _in_module_left(self, tensor: TensorId, wanted: str) -> bool:
        """Tells whether it is a buffer of a module of which nothing is on the device that was wanted."""
        devices = self._facts.devices
        members = [
            held for place in self._facts.names.places(tensor) for held in devices.members(place.module)
        ]
        return bool(members) and all(devices.of(held, self._op.serial) != wanted for held in members)

    def _stored(self, tensor: TensorId, made: Frame | None) -> Frame | None:
        """Returns the line, in the function that made a tensor, that stored it in an attribute."""
        name = self._facts.names.tensor_name(tensor, made.function) if made is not None else None
        line = self._facts.sources.store_line(made, frozenset({name})) if made and name else None
        return Frame(made.path, line, made.function, made.first_line) if made and line else None

    def _holder(self, wanted: str) -> tuple[str, tuple[Frame, ...]] | None:
        """Returns the module around the operation that lies on a device, and the lines that moved it."""
        devices = self._facts.devices
        for call in reversed(self._calls):
            members = devices.members(call.module)
            there = [tensor for tensor in members if devices.of(tensor, self._op.serial) == wanted]
            if not there:
                continue
            moves = [devices.moves(tensor)[-1] for tensor in there if devices.moves(tensor)]
            lines = [devices.line(move) for move in moves]
            return (
                self._facts.names.module(call.module),
                tuple(dict.fromkeys(line for line in lines if line is not None)),
            )
        return None

    def _frame_of(self, call: ModuleCall) -> Frame | None:
        site = self._facts.trace.sites.get(call.site) if call.site is not None else None
        return site.frames[0] if site is not None and site.frames else None


def _asked(facts: "Facts", tensor: TensorId, before: Serial) -> Sequence[Frame]:
    """Returns the lines that asked a tensor onto the device where it is, in time order."""
    lines = [
        facts.devices.line(event)
        for event in facts.devices.transfers
        if event.serial < before and tensor in {event.result, event.source.tensor if event.noop else None}
    ]
    return [line for line in dict.fromkeys(lines) if line is not None]


def _copied(facts: "Facts", tensor: TensorId, wanted: str, before: Serial) -> Iterator[Frame]:
    """Yields the lines that made a copy of a tensor on the wanted device which nothing reads."""
    for event in facts.devices.transfers:
        if event.noop or event.serial >= before or event.to_device != wanted:
            continue
        if event.source.tensor == tensor and not tuple(facts.values.consumers(event.result)):
            line = facts.devices.line(event)
            if line is not None:
                yield line
