"""The calls of whole models: which of them training used, and which evaluated.

May import `record` and the rest of `analysis`. A call counts as the model's when no other recorded call
encloses it. What is known of the watched part of a run is which recorded calls its backwards entered.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.events import Backward, BatchDraw, HostRead, ModuleCall, Op, Transfer
from graphlint.record.identity import ModuleId, Serial, TensorId
from graphlint.record.modes import ModeChange
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_MOST_TENSORS = 20_000
_MOST_SOURCES = 200
Function = tuple[str, int]


class ModelCalls:
    """The calls of whole models of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._downstream: dict[Serial, frozenset[TensorId]] = {}

    @cached_property
    def all(self) -> tuple[ModuleCall, ...]:
        """All module calls, those inside of others too, in time order."""
        return tuple(event for event in self._facts.trace.events if isinstance(event, ModuleCall))

    @cached_property
    def outermost(self) -> tuple[ModuleCall, ...]:
        """The calls that no other encloses, in time order."""
        return tuple(call for call in self.all if call.parent is None)

    def outer(self, call: ModuleCall) -> ModuleCall:
        """Returns the outermost call that encloses a call; itself where none does."""
        return self._outermost_of.get(call.serial, call)

    def inside(self, call: ModuleCall) -> Iterator[ModuleCall]:
        """Yields a call and those that it encloses."""
        waiting = [call]
        while waiting:
            current = waiting.pop()
            yield current
            waiting.extend(self._children.get(current.serial, ()))

    def by_mode(self, call: ModuleCall) -> tuple[ModuleCall, ...]:
        """Returns the calls inside one of layers that depend on their mode."""
        modules = self._facts.trace.modules
        found = (inner for inner in self.inside(call) if inner.module in modules)
        return tuple(inner for inner in found if modules[inner.module].by_mode is not None)

    def entered(self, call: ModuleCall) -> bool:
        """Tells whether any backward entered what an outermost call built."""
        return call.serial in self._entered

    def trained(self, call: ModuleCall) -> Backward | None:
        """Returns the first backward that filled gradients through what an outermost call built."""
        return self._trained.get(call.serial)

    @cached_property
    def trained_modules(self) -> frozenset[ModuleId]:
        """The modules that were called from outside of any other, and trained by it."""
        return frozenset(call.module for call in self.outermost if self.trained(call) is not None)

    def serves(self, call: ModuleCall) -> bool:
        """Tells whether values of a call's results were used for a loss, or kept in a model."""
        return not self.downstream(call).isdisjoint(self._used_in_training)

    def reads(self, call: ModuleCall) -> Iterator[HostRead]:
        """Yields where values computed from a call's results were read into Python."""
        for tensor in sorted(self.downstream(call)):
            for event in self._facts.values.consumers(tensor):
                if isinstance(event, HostRead):
                    yield event

    def downstream(self, call: ModuleCall) -> frozenset[TensorId]:
        """Returns a call's results and every tensor computed from them later, in place too."""
        if call.serial not in self._downstream:
            self._downstream[call.serial] = self._walk(call)
        return self._downstream[call.serial]

    def _walk(self, call: ModuleCall) -> frozenset[TensorId]:
        values = self._facts.values
        seen: set[TensorId] = set()
        waiting = list(call.outputs)
        while waiting and len(seen) < _MOST_TENSORS:
            tensor = waiting.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            for event in values.consumers(tensor):
                if event.serial < call.serial:
                    continue
                if isinstance(event, Op):
                    waiting.extend(event.outputs)
                    for change in event.changed:
                        waiting.extend(values.sharers(change.tensor))
                elif isinstance(event, Transfer):
                    waiting.append(event.result)
                else:
                    waiting.extend(self._from_host.get(event.serial, ()))
        return frozenset(seen)

    def nodes(self, call: ModuleCall) -> tuple[int, int]:
        """Returns how many nodes a call built, and the bytes of what their operations returned."""
        nodes = size = 0
        for event in (event for inner in self.inside(call) for event in self._building.get(inner.serial, ())):
            nodes += event.seq[1] - event.seq[0]
            results = event.outputs if isinstance(event, Op) else (event.result,)
            rows = (self._facts.trace.tensors.get(tensor) for tensor in results)
            size += sum(row.bytes for row in rows if row is not None)
        return nodes, size

    def draw(self, call: ModuleCall) -> BatchDraw | None:
        """Returns the batch that a call's arguments are, or were computed from."""
        waiting, seen = list(call.inputs), set(call.inputs)
        while waiting and len(seen) < _MOST_SOURCES:
            tensor = waiting.pop(0)
            if tensor in self._draws:
                return self._draws[tensor]
            for maker in self._facts.values.makers(tensor):
                new = {source.tensor for source in self._facts.values.sources(maker)} - seen
                waiting.extend(sorted(new))
                seen |= new
        return None

    @cached_property
    def trained_loaders(self) -> frozenset[int]:
        """The iterators of loaders of which a batch was trained on, or may have been in a watched step."""
        found: set[int] = set()
        for step in self._facts.steps.all:
            if step.level == "watch":
                found.update(event.loader for event in step.events if isinstance(event, BatchDraw))
        for call in self.outermost:
            draw = self.draw(call) if self.trained(call) is not None else None
            if draw is not None:
                found.add(draw.loader)
        return frozenset(found)

    def mode_set(self, module: ModuleId, before: Serial) -> ModeChange | None:
        """Returns the call that last turned a module before a moment; None where none was recorded."""
        last = None
        for change in self.mode_changes:
            if change.serial >= before:
                break
            if module in change.changed or module in change.opposed:
                last = change
        return last

    @cached_property
    def mode_changes(self) -> tuple[ModeChange, ...]:
        """All calls of `train` and `eval`, in time order."""
        return tuple(event for event in self._facts.trace.events if isinstance(event, ModeChange))

    @cached_property
    def trained_functions(self) -> frozenset[Function]:
        """The functions that were running while a model was called that is trained by it."""
        calls = (call for call in self.outermost if self.trained(call) is not None)
        return frozenset(function(frame) for call in calls for frame in self._facts.graphs.frames(call.site))

    def own_frame(self, call: ModuleCall) -> Frame | None:
        """Returns the line to look at for a call that evaluates.

        That is the innermost one that training doesn't pass through; the line of the call itself where it
        passes through them all.
        """
        frames = self._facts.graphs.frames(call.site)
        for frame in frames:
            if frame not in self._trained_lines:
                return frame
        return frames[0] if frames else None

    @cached_property
    def _trained_lines(self) -> frozenset[Frame]:
        calls = (call for call in self.outermost if self.trained(call) is not None)
        return frozenset(frame for call in calls for frame in self._facts.graphs.frames(call.site))

    @cached_property
    def _children(self) -> dict[Serial, list[ModuleCall]]:
        found: dict[Serial, list[ModuleCall]] = {}
        for call in self.all:
            if call.parent is not None:
                found.setdefault(call.parent, []).append(call)
        return found

    @cached_property
    def _outermost_of(self) -> dict[Serial, ModuleCall]:
        """The outermost call that encloses each call."""
        return {inner.serial: call for call in self.outermost for inner in self.inside(call)}

    def _calls_of(self, backward: Backward) -> Iterator[Serial]:
        """Yields the outermost calls that a backward enters, as far as is known."""
        yield from backward.calls
        graph = self._facts.graphs.of(backward)
        if graph is None or backward.same_shape:
            return
        for index in graph.executed:
            call = graph.nodes[index].call
            if call is not None and call in self._outermost_of:
                yield self._outermost_of[call].serial

    @cached_property
    def _entered(self) -> frozenset[Serial]:
        return frozenset(serial for b in self._facts.graphs.backwards for serial in self._calls_of(b))

    @cached_property
    def _trained(self) -> dict[Serial, Backward]:
        found: dict[Serial, Backward] = {}
        for backward in self._facts.graphs.backwards:
            if backward.call != "autograd.grad" and backward.reached:
                for serial in self._calls_of(backward):
                    found.setdefault(serial, backward)
        return found

    @cached_property
    def _used_in_training(self) -> frozenset[TensorId]:
        """What backwards were called on, and what models hold."""
        held = {place.tensor for place in self._facts.trace.parameters}
        for backward in self._facts.graphs.backwards:
            if not backward.same_shape:
                held.update(backward.roots)
        return frozenset(held)

    @cached_property
    def _from_host(self) -> dict[Serial, list[TensorId]]:
        """The results of the operations that were given a value read from a tensor, by the read."""
        found: dict[Serial, list[TensorId]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, Op):
                for serial in event.host_inputs:
                    found.setdefault(serial, []).extend(event.outputs)
        return found

    @cached_property
    def _building(self) -> dict[Serial, list[Op | Transfer]]:
        """The operations that built nodes, by the module call in which they did."""
        found: dict[Serial, list[Op | Transfer]] = {}
        for event in self._facts.trace.events:
            if isinstance(event, Op | Transfer) and event.seq[1] > event.seq[0] and event.call is not None:
                found.setdefault(event.call, []).append(event)
        return found

    @cached_property
    def _draws(self) -> dict[TensorId, BatchDraw]:
        draws = (event for event in self._facts.trace.events if isinstance(event, BatchDraw))
        return {tensor: draw for draw in draws for tensor in draw.tensors}


def function(frame: Frame) -> Function:
    """Returns what tells a frame's function from others."""
    return frame.path, frame.first_line
