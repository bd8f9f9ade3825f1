"""Values that the user's code reads from an accelerator into Python, and what waits for them.

May import `record` and the rest of `analysis`. Recorded at the full level only. A copy to the host that is
read there is a read of the device, one, however often the copy is read: what waits is the copying.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.devices_roundtrips import find_detour, real_moves
from graphlint.record.events import AnyEvent, Backward, HostRead, Op, OptimizerStep, Transfer
from graphlint.record.identity import Serial, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_MUCH = 5
"""Operations after which a read waits for more than itself; a backward or a step is always more."""

_BEGUN = 2
"""Uses of parameters outside every module after which a forward pass has begun; in a module one is enough."""

_NOT_ACCELERATORS = frozenset({"", "cpu", "meta"})
_FROM_DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy"})
_FLOATS = ("torch.float", "torch.bfloat", "torch.double", "torch.half")


@dataclass(frozen=True, slots=True)
class Read:
    """A read of an accelerator's value in a training step.

    Attributes:
        event: the read.
        frame: the user's line.
        step: 0-based training step.
        device: where the value lay.
        move: the copy to the host that was read instead, where there was one.
        waits: whether work was queued since the last read, for which this one waits.
        tracked: whether it is a real number that depends on parameters, as losses and scores do.
        inside: whether a forward pass had begun since the last update: more work is still to be queued.
        answered: whether Python made a tensor of its own numbers before the next backward: what was read may
            be in it, as in a matching of predictions with targets that Python works out.
        closure: the optimizer's step that called the closure in which it stands, if one did.
    """

    event: HostRead
    frame: Frame
    step: int
    device: str
    move: Transfer | None
    waits: bool
    tracked: bool
    inside: bool
    answered: bool
    closure: OptimizerStep | None

    @property
    def line(self) -> tuple[str, int]:
        """The file and line."""
        return (self.frame.path, self.frame.line)


class HostReads:
    """The reads of a trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Read, ...]:
        """Those that the user's code makes in training steps, in time order.

        Evaluations are left out, and so is what is read after an update where no batches tell the rounds: it
        may be once an epoch.
        """
        return tuple(self._find())

    def every_step(self, line: tuple[str, int]) -> bool:
        """Tells whether a line reads in each of the steps that follow its first in a row, two at least.

        Where an optimizer calls a closure many times in a step, reading in a few of the calls is not that.
        """
        reads = [read for read in self.all if read.line == line]
        closures = {read.closure for read in reads if read.closure is not None}
        if len(reads) * 2 <= sum(self._passes(closure) for closure in closures):
            return False
        seen = {read.step for read in reads}
        full = {step.number for step in self._facts.steps.all if step.level == "full"}
        row = [min(seen)]
        while row[-1] + 1 in full:
            row.append(row[-1] + 1)
        # What follows an update belongs to the next step, which may have been watched only.
        return len(seen & set(row)) > 1 and (set(row) <= seen or set(row[:-1]) <= seen)

    def _find(self) -> Iterator[Read]:
        queued = begun = 0
        copies: dict[Serial, tuple[bool, bool]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, HostRead):
                move = self._copied_by(event)
                waited = (queued >= _MUCH, begun >= _BEGUN)
                if move is not None:
                    if move.serial not in copies:
                        continue
                    waited = copies.pop(move.serial)
                elif event.device in _NOT_ACCELERATORS:
                    continue
                else:
                    queued = 0
                read = self._read(event, move, waits=waited[0], inside=waited[1])
                if read is not None:
                    yield read
            elif isinstance(event, Transfer) and _leaves_an_accelerator(event):
                copies[event.serial] = (queued >= _MUCH, begun >= _BEGUN)
                queued = 0
            else:
                queued += self._queues(event)
                begun = 0 if isinstance(event, OptimizerStep) else begun + self._trains(event)

    def _trains(self, event: AnyEvent) -> int:
        """Returns how much an event tells of a forward pass with gradients; a backward tells it for sure.

        A moving average of the weights, written with `.data`, is none, nor is a single parameter that is
        looked at (`log_alpha.exp()`).
        """
        if isinstance(event, Op) and any(event.output_grads):
            used = any(use.tensor in self._facts.devices.parameters for use in event.inputs)
            return int(used) if event.call is None else _BEGUN * used
        return _BEGUN * isinstance(event, Backward)

    def _queues(self, event: AnyEvent) -> int:
        """Returns how much work an event gives an accelerator."""
        if isinstance(event, Backward | OptimizerStep):
            return _MUCH
        if isinstance(event, Op) and event.outputs:
            row = self._facts.trace.tensors.get(event.outputs[0])
            return int(row is not None and row.device not in _NOT_ACCELERATORS)
        return 0

    def _read(self, event: HostRead, move: Transfer | None, *, waits: bool, inside: bool) -> Read | None:
        waiting = event if move is None else move
        step = self._facts.steps.of(waiting.serial)
        site = self._facts.trace.sites.get(waiting.site) if waiting.site is not None else None
        if event.by_torch or step is None or step.level != "full" or site is None or not site.frames:
            return None
        if event.serial in self._elsewhere or not (inside or step.told):
            return None
        origin = event.tensor.tensor if move is None else move.source.tensor
        device = event.device if move is None else move.from_device
        learned = self._learned(origin, event.serial)
        if not learned and self._without_gradients(origin, event.serial):
            return None
        tracked = learned and self._real(origin)
        answered, closure = self._answered(event.serial), self._closure(event.serial)
        place = (site.frames[0], step.number, device, move)
        return Read(event, *place, waits, tracked, inside, answered, closure)

    def _closure(self, serial: Serial) -> OptimizerStep | None:
        """Returns the optimizer's step that runs at a time, one that was given a closure."""
        index = bisect(self._updates, serial, key=lambda step: step.serial) - 1
        return self._updates[index] if index >= 0 and serial < self._updates[index].end else None

    @cached_property
    def _updates(self) -> tuple[OptimizerStep, ...]:
        return tuple(event for event in self._facts.trace.events if isinstance(event, OptimizerStep))

    def _passes(self, closure: OptimizerStep) -> int:
        """Returns how many backwards a step's closure made."""
        backwards = self._facts.graphs.backwards
        return sum(closure.serial < backward.serial < closure.end for backward in backwards)

    def _answered(self, serial: Serial) -> bool:
        index = bisect(self._answers, (serial, True))
        return index < len(self._answers) and self._answers[index][1]

    @cached_property
    def _answers(self) -> tuple[tuple[Serial, bool], ...]:
        """Tensors made of Python's or NumPy's numbers, and the backwards and updates between them (False)."""
        found: list[tuple[Serial, bool]] = []
        for event in self._facts.trace.events:
            if isinstance(event, Backward | OptimizerStep):
                found.append((event.serial, False))
            elif isinstance(event, Op) and event.name in _FROM_DATA and not event.inputs:
                found.append((event.serial, True))
        return tuple(found)

    def _copied_by(self, read: HostRead) -> Transfer | None:
        """Returns the move that brought the value that is read to the host, where nothing was done to it."""
        if read.device not in _NOT_ACCELERATORS:
            return None
        made = self._facts.values.producer(read.tensor.tensor, read.serial)
        while isinstance(made, Op) and len(made.inputs) == 1 and not made.changed:
            # `.detach()`, `.squeeze()` and the like look at the same memory.
            storage = self._facts.values.storage(made.inputs[0].tensor)
            if storage is None or storage != self._facts.values.storage(read.tensor.tensor):
                return None
            made = self._facts.values.producer(made.inputs[0].tensor, Serial(made.serial - 1))
        return made if isinstance(made, Transfer) and not made.noop else None

    def _real(self, tensor: TensorId) -> bool:
        row = self._facts.trace.tensors.get(tensor)
        return row is not None and row.dtype.startswith(_FLOATS)

    def _learned(self, tensor: TensorId, at: Serial) -> bool:
        """Tells whether a value was computed with gradients from what the model learns."""
        if self._facts.values.requires_grad(tensor, at):
            return True
        flow = self._facts.values.flow(tensor, at)
        operations = (link.event for _, link in flow.links if isinstance(link.event, Op))
        return any(op.seq[1] > op.seq[0] and any(op.output_grads) for op in operations)

    def _without_gradients(self, tensor: TensorId, at: Serial) -> bool:
        """Tells whether a value was computed while autograd was off, as in an evaluation."""
        made = self._facts.values.producer(tensor, at)
        return isinstance(made, Op | Transfer) and not made.grad_mode

    @cached_property
    def _elsewhere(self) -> frozenset[Serial]:
        """Reads whose value comes back to torch: on a detour over the host, or as an argument."""
        found: set[Serial] = set()
        for event in self._facts.trace.events:
            if isinstance(event, Op):
                found.update(event.host_inputs)
        for move in real_moves(self._facts):
            detour = find_detour(self._facts, move)
            if detour is not None:
                found.update(work.serial for work in detour.works)
        return frozenset(found)


def _leaves_an_accelerator(move: Transfer) -> bool:
    return not move.noop and move.from_device not in _NOT_ACCELERATORS and move.to_device == "cpu"
