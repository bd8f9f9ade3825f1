"""What is wrong with a program, by the model's account of its run; and what a finding may and must say.

Lines are 1-based, as findings have them. `Faults.justified` holds what a finding needs to be true;
`Faults.owed` what must be told, each as a set of codes of which one must label the line.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from programs.autograd import Event, Fill, Machine
from programs.language import Program

CRASHES: Mapping[str, str] = {"freed": "GL101", "changed": "GL105", "no graph": "GL202"}


@dataclass(frozen=True)
class Told:
    """A finding, cut down to what is compared: its code, its primary line and all labelled lines."""

    code: str
    line: int
    labels: frozenset[int]


@dataclass(frozen=True)
class Owed:
    """A fault that must be told: by a finding of one of `codes` that labels `line` (None: whichever)."""

    codes: frozenset[str]
    line: int | None
    why: str

    def told_by(self, found: Told) -> bool:
        """Tells whether the finding is about this fault."""
        return found.code in self.codes and (self.line is None or self.line in found.labels)


class Faults:
    """The faults of one run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.machine = Machine(program).run()
        self._tests: Mapping[str, Callable[[], Iterator[frozenset[int]]]] = {
            "GL102": self._counted_twice,
            "GL103": self._retained_for_nothing,
            "GL104": self._growing,
            "GL201": self._unreached_steps,
            "GL203": self._unreached_modules,
            "GL301": self._used_again,
            "GL302": self._cleared_before_step,
            "GL303": self._unfilled_steps,
            "GL304": self._bled,
            "GL305": self._discarded,
            "GL311": self._never_stepped,
        }

    def line(self, event: Event) -> int:
        """Returns the line of an event."""
        return self.program.line(event.position)

    # --- what may be said --------------------------------------------------------------------------------

    def justified(self, found: Told) -> bool:
        """Tells whether the model knows of the fault that a finding tells, on lines that it labels."""
        machine = self.machine
        if found.code in CRASHES.values():
            failed = machine.failed
            return (
                failed is not None
                and CRASHES[machine.error or ""] == found.code
                and (self.line(failed) == found.line)
            )
        test = self._tests.get(found.code)
        return test is not None and any(lines <= found.labels for lines in test())

    def _since_last_step(self, step: Event) -> int:
        """Returns the number of the optimizer's step before this one; -1 when it is the first."""
        before = [other.number for other in self.machine.of("step", step.name) if other.number < step.number]
        return max(before, default=-1)

    def _backwards(self, after: int, before: int) -> Iterator[Event]:
        for event in self.machine.of("backward"):
            if after < event.number < before and event is not self.machine.failed:
                yield event

    def _counted_twice(self) -> Iterator[frozenset[int]]:
        """A loss backwarded again, as itself or as a part, while its first gradient is there still."""
        for later in self._backwards(-1, len(self.machine.events)):
            assert later.root is not None
            inside = {node.order for node in later.root.graph()}
            for earlier in self._backwards(-1, later.number):
                assert earlier.root is not None
                if earlier.root.order in inside and any(
                    self._held(fill, later.number) for fill in self._fills(earlier)
                ):
                    yield frozenset((self.line(later), self.line(earlier)))

    def _fills(self, backward: Event) -> Iterator[Fill]:
        for _, fill in self.machine.fills:
            if fill.number == backward.number:
                yield fill

    def _held(self, fill: Fill, number: int) -> bool:
        """Tells whether a contribution was there, unused, at an event."""
        used = any(step < number for step in fill.used)
        return not used and (fill.cleared_at is None or fill.cleared_at > number)

    def _retained_for_nothing(self) -> Iterator[frozenset[int]]:
        retained: dict[int, list[bool]] = {}
        for event in self._backwards(-1, len(self.machine.events)):
            if event.retain:
                assert event.root is not None
                entered = any(max(node.walked_by) > event.number for node in event.root.graph())
                retained.setdefault(self.line(event), []).append(entered)
        for line, entered in retained.items():
            if not any(entered):
                yield frozenset((line,))

    def _growing(self) -> Iterator[frozenset[int]]:
        sizes = [len(value.node.graph()) if value.node else 0 for value in self.machine.carried]
        if len(sizes) > 1 and all(size < larger for size, larger in pairwise(sizes)):
            yield frozenset()

    def _unreached_steps(self) -> Iterator[frozenset[int]]:
        """A step since whose predecessor no backward reached its modules; or a failed backward's."""
        for step in self.machine.of("step"):
            since = self._since_last_step(step)
            if not any(event.modules & step.modules for event in self._backwards(since, step.number)):
                yield frozenset((self.line(step),))
        failed = self.machine.failed
        if failed is not None:
            yield frozenset((self.line(failed),))

    def _unreached_modules(self) -> Iterator[frozenset[int]]:
        reached = {
            module for event in self._backwards(-1, len(self.machine.events)) for module in event.modules
        }
        for step in self.machine.of("step"):
            if step.modules - reached and step.modules & reached:
                yield frozenset((self.line(step),))

    def _used_again(self) -> Iterator[frozenset[int]]:
        for step in self.machine.of("step"):
            earlier = {
                other.number for other in self.machine.of("step", step.name) if other.number < step.number
            }
            if any(earlier & set(fill.used) for _, fills in step.held for fill in fills):
                yield frozenset((self.line(step),))

    def _cleared_before_step(self) -> Iterator[frozenset[int]]:
        for step in self.machine.of("step"):
            since = self._since_last_step(step)
            empty = all(not fills for _, fills in step.held)
            for zero in self.machine.of("zero", step.name):
                unused = any(
                    not fill.used and fill.number > since for _, fills in zero.held for fill in fills
                )
                if empty and since < zero.number < step.number and unused:
                    yield frozenset((self.line(zero), self.line(step)))

    def _unfilled_steps(self) -> Iterator[frozenset[int]]:
        for step in self.machine.of("step"):
            since = self._since_last_step(step)
            if not any(fill.number > since for _, fills in step.held for fill in fills):
                yield frozenset((self.line(step),))

    def _bled(self, *, on_the_way: bool = False) -> Iterator[frozenset[int]]:
        """A step that uses what a backward left, after another optimizer had stepped on that backward.

        `on_the_way`: only where the other optimizer's modules lie behind these. A trunk that another's
        loss runs back into may be trained by both on purpose.
        """
        for step in self.machine.of("step"):
            for module, fills in step.held:
                for fill in fills:
                    for other in self._others_used(fill, step):
                        if not on_the_way or self._leads_to(fill, module, other.modules):
                            yield frozenset((self.line(step), self.program.line(fill.position)))

    def _leads_to(self, fill: Fill, module: str, others: frozenset[str]) -> bool:
        """Tells whether a backward went through a module to come to the others."""
        root = self.machine.events[fill.number].root
        assert root is not None
        through = [node for node in root.graph() if node.module == module]
        return any(part.module in others for node in through for part in node.graph())

    def _others_used(self, fill: Fill, step: Event) -> Iterator[Event]:
        for other in self.machine.of("step"):
            if other.name != step.name and fill.number < other.number < step.number:
                used = (mine.number for _, fills in other.held for mine in fills)
                if fill.number in used:
                    yield other

    def _discarded(self) -> Iterator[frozenset[int]]:
        """A backward all of whose contributions to one optimizer's modules were cleared unused."""
        for event in self._backwards(-1, len(self.machine.events)):
            for _, modules in self.program.optimizers:
                mine = [
                    fill
                    for module, fill in self.machine.fills
                    if module in modules and fill.number == event.number
                ]
                if mine and all(fill.cleared_at is not None and not fill.used for fill in mine):
                    yield frozenset((self.line(event),))

    def _never_stepped(self) -> Iterator[frozenset[int]]:
        if any(self._waiting()):
            yield frozenset()

    def _waiting(self) -> Iterator[str]:
        """Yields the optimizers whose modules get gradients and that never step."""
        filled = {module for module, _ in self.machine.fills}
        for name, modules in self.program.optimizers:
            if filled & set(modules) and not any(self.machine.of("step", name)):
                yield name

    # --- what must be said -------------------------------------------------------------------------------

    def owed(self) -> Iterator[Owed]:
        """Yields what must be told: the error, or else what is wrong in every batch that could show it."""
        machine = self.machine
        if machine.error is not None:
            assert machine.failed is not None
            yield Owed(frozenset((CRASHES[machine.error],)), self.line(machine.failed), machine.error)
            return
        yield from self._always(self._counted_twice_lines(), {"GL102"}, "counted twice", self.program.batches)
        yield from self._owed_by_steps()
        yield from self._always(self._only(self._retained_for_nothing()), {"GL103"}, "kept for nothing", 1)
        yield from self._always(
            self._spared(), {"GL302", "GL305"}, "gradients thrown away", self.program.batches - 1
        )

        bled = [max(lines, key=self._is_step) for lines in self._bled(on_the_way=True)]
        yield from self._always(
            bled, {"GL301", "GL304"}, "steps with another's gradient", self.program.batches
        )
        if any(any(self.machine.of("zero", name)) for name in self._waiting()):
            yield Owed(frozenset(("GL311",)), None, "an optimizer that never steps")

    def _is_step(self, line: int) -> bool:
        return any(self.line(step) == line for step in self.machine.of("step"))

    def _spared(self) -> Iterator[int]:
        """Backwards a part of which led to nothing but gradients that were thrown away."""
        for event in self._backwards(-1, len(self.machine.events)):
            assert event.root is not None
            mine = [(module, fill) for module, fill in self.machine.fills if fill.number == event.number]
            lost = {module for module, fill in mine if fill.cleared_at is not None and not fill.used}
            used = {module for module, fill in mine if fill.used}
            if not used or not lost:
                continue
            nodes = [node for node in event.root.graph() if node.module in lost]
            below = {part.module for node in nodes for part in node.graph()} - {None}
            entered_again = any(max(node.walked_by) > event.number for node in event.root.graph())
            whole = any(
                set(modules) <= lost
                for name, modules in self.program.optimizers
                if any(self.machine.of("step", name))  # else that it never steps is the cause, and is told
            )
            if below <= lost and whole and not entered_again:
                yield self.line(event)

    def _counted_twice_lines(self) -> Iterator[int]:
        for later in self._backwards(-1, len(self.machine.events)):
            assert later.root is not None
            inside = {node.order for node in later.root.graph()}
            if any(
                earlier.root is not None
                and earlier.root.order in inside
                and any(self._held(fill, later.number) for fill in self._fills(earlier))
                for earlier in self._backwards(-1, later.number)
            ):
                yield self.line(later)

    def _owed_by_steps(self) -> Iterator[Owed]:
        batches = self.program.batches
        unfilled = list(self._only(self._unfilled_steps()))
        yield from self._always(unfilled, {"GL201", "GL302", "GL303"}, "steps without a gradient", batches)
        again = list(self._only(self._used_again()))
        again = [line for line in again if line not in unfilled]
        yield from self._always(again, {"GL301", "GL304"}, "steps with a used gradient", batches - 1)

    def _only(self, faults: Iterator[frozenset[int]]) -> Iterator[int]:
        """Yields the lines of faults that have one line each."""
        for (line,) in faults:
            yield line

    def _always(
        self, lines: Iterator[int] | list[int], codes: set[str], why: str, times: int
    ) -> Iterator[Owed]:
        counts: dict[int, int] = {}
        for line in lines:
            counts[line] = counts.get(line, 0) + 1
        for line, seen in counts.items():
            if seen >= times:
                yield Owed(frozenset(codes), line, why)
