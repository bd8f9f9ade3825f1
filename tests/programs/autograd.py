"""A plain-Python model of autograd: runs a program and says what must happen, and what is wrong with it.

Knows nothing of torch or graphlint. Follows what torch documents: a node keeps the tensors that its
derivative needs, with their versions; a backward without retain_graph gives them back; the engine runs the
node that was made last first. It is compared with torch itself before anything is compared with it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from programs import language as lang

Error = Literal["freed", "changed", "no graph"]


@dataclass
class Storage:
    """Memory with its version counter."""

    version: int = 0


@dataclass
class Node:
    """An autograd node; `module` names the module whose parameters it leads to directly."""

    order: int
    following: list["Node"] = field(default_factory=list)
    saved: list[tuple[Storage, int]] = field(default_factory=list)
    module: str | None = None
    freed: bool = False
    walked_by: list[int] = field(default_factory=list)

    def graph(self) -> list["Node"]:
        """Returns this node and all that it leads to."""
        found = {self.order: self}
        waiting = [self]
        while waiting:
            for node in waiting.pop().following:
                if node.order not in found:
                    found[node.order] = node
                    waiting.append(node)
        return list(found.values())


@dataclass
class Value:
    """A tensor: where it lies, and the node that made it (None: it requires no gradient)."""

    storage: Storage
    node: Node | None = None


@dataclass
class Fill:
    """What one backward added to a module's gradients."""

    number: int
    position: int
    batch: int
    serial: int
    used: list[int] = field(default_factory=list)
    cleared_at: int | None = None


@dataclass(frozen=True)
class Event:
    """A backward, step or zero_grad as it ran.

    `number` counts events; `position` is that of the statement. `fills` are, for a step, the contributions
    that it used, by module; for a backward its own.
    """

    kind: Literal["backward", "step", "zero"]
    number: int
    batch: int
    position: int
    name: str
    modules: frozenset[str]
    retain: bool = False
    root: Node | None = None
    held: tuple[tuple[str, tuple[Fill, ...]], ...] = ()


class Machine:
    """Runs a program; afterwards holds what happened."""

    def __init__(self, program: lang.Program) -> None:
        self.program = program
        self.weights = {module: Storage() for module in program.modules}
        self.gradients: dict[str, list[Fill]] = {module: [] for module in program.modules}
        self.fills: list[tuple[str, Fill]] = []
        self.events: list[Event] = []
        self.error: Error | None = None
        self.failed: Event | None = None
        self.carried: list[Value] = []
        self._order = count()
        self._trained = dict(program.optimizers)

    def run(self) -> "Machine":
        """Runs to the end, or to the first error."""
        carried = Value(Storage())
        for batch in range(self.program.batches):
            values = {lang.BATCH: Value(Storage()), lang.CARRIED: carried}
            for position, statement in enumerate(self.program.body):
                self._execute(statement, values, batch, position)
                if self.error is not None:
                    return self
            carried = values[lang.CARRIED]
            self.carried.append(carried)
        return self

    # --- the forward pass --------------------------------------------------------------------------------

    def _node(self, *parents: Value, saved: tuple[Value, ...] = ()) -> Node | None:
        following = [parent.node for parent in parents if parent.node is not None]
        if not following:
            return None
        return Node(next(self._order), following, [(v.storage, v.storage.version) for v in saved])

    def _execute(
        self, statement: lang.Statement, values: dict[str, Value], batch: int, position: int
    ) -> None:
        match statement:
            case lang.Backward():
                self._backward(statement, values[statement.loss], batch, position)
            case lang.Step():
                self._step(statement, batch, position)
            case lang.Zero():
                self._zero(statement, batch, position)
            case _:
                self._compute(statement, values)

    def _compute(self, statement: lang.Computation, values: dict[str, Value]) -> None:
        match statement:
            case lang.Forward():
                values[statement.target] = self._forward(statement, values[statement.source])
            case lang.Detach():
                values[statement.target] = Value(values[statement.source].storage)
            case lang.Join():
                values[statement.target] = self._join(statement, values)
            case lang.Loss():
                source = values[statement.source]
                if statement.squared:
                    source = Value(Storage(), self._node(source, saved=(source,)))
                values[statement.target] = Value(Storage(), self._node(source))
            case lang.Shift():
                value = values[statement.target]
                value.storage.version += 1
                value.node = self._node(value)
            case lang.Carry():
                source = values[statement.source]
                values[lang.CARRIED] = Value(source.storage) if statement.detached else source

    def _forward(self, statement: lang.Forward, source: Value) -> Value:
        """A linear layer keeps its input, and its weight where the input needs a gradient."""
        weight = Value(self.weights[statement.module])
        node = Node(next(self._order), module=statement.module)
        node.saved = [(source.storage, source.storage.version)]
        if source.node is not None:
            node.following.append(source.node)
            node.saved.append((weight.storage, weight.storage.version))
        value = Value(Storage(), node)
        if statement.tanh:
            value = Value(Storage(), self._node(value))
            assert value.node is not None
            value.node.saved = [(value.storage, 0)]
        return value

    def _join(self, statement: lang.Join, values: dict[str, Value]) -> Value:
        left, right = values[statement.left], values[statement.right]
        saved: list[Value] = []
        if statement.sign == "*":
            saved += [right] if left.node is not None else []
            saved += [left] if right.node is not None else []
        return Value(Storage(), self._node(left, right, saved=tuple(saved)))

    # --- calls -------------------------------------------------------------------------------------------

    def _backward(self, statement: lang.Backward, loss: Value, batch: int, position: int) -> None:
        number = len(self.events)
        reached = loss.node.graph() if loss.node is not None else []
        modules = frozenset(node.module for node in reached if node.module is not None)
        event = Event(
            "backward", number, batch, position, statement.loss, modules, statement.retain, loss.node
        )
        self.events.append(event)
        self.error = (
            "no graph" if loss.node is None else self._walk(loss.node, number, retain=statement.retain)
        )
        if self.error is not None:
            self.failed = event
            return
        for module in sorted(modules):
            fill = Fill(number, position, batch, len(self.fills))
            self.gradients[module].append(fill)
            self.fills.append((module, fill))

    def _walk(self, root: Node, number: int, *, retain: bool) -> Error | None:
        """Runs the engine: of the nodes whose gradients are complete, the youngest first."""
        waiting_for: dict[int, int] = {}
        for node in root.graph():
            for following in node.following:
                waiting_for[following.order] = waiting_for.get(following.order, 0) + 1
        ready = [(-root.order, root)]
        while ready:
            _, node = heapq.heappop(ready)
            if node.saved and node.freed:
                return "freed"
            if any(storage.version != version for storage, version in node.saved):
                return "changed"
            node.walked_by.append(number)
            node.freed = node.freed or not retain
            for following in node.following:
                waiting_for[following.order] -= 1
                if not waiting_for[following.order]:
                    heapq.heappush(ready, (-following.order, following))
        return None

    def _step(self, statement: lang.Step, batch: int, position: int) -> None:
        number = len(self.events)
        modules = self._trained[statement.optimizer]
        held = tuple((module, tuple(self.gradients[module])) for module in modules)
        self.events.append(
            Event("step", number, batch, position, statement.optimizer, frozenset(modules), held=held)
        )
        for module, fills in held:
            if fills:
                self.weights[module].version += 1
            for fill in fills:
                fill.used.append(number)

    def _zero(self, statement: lang.Zero, batch: int, position: int) -> None:
        number = len(self.events)
        modules = self._trained[statement.optimizer]
        held = tuple((module, tuple(self.gradients[module])) for module in modules)
        self.events.append(
            Event("zero", number, batch, position, statement.optimizer, frozenset(modules), held=held)
        )
        for module, fills in held:
            for fill in fills:
                fill.cleared_at = number
            self.gradients[module] = []

    # --- reading -----------------------------------------------------------------------------------------

    def of(self, kind: Literal["backward", "step", "zero"], name: str | None = None) -> Iterator[Event]:
        """Yields the events of a kind, of one optimizer or loss where named."""
        for event in self.events:
            if event.kind == kind and name in {None, event.name}:
                yield event
