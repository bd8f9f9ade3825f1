"""A backward enters a graph that an earlier backward has already freed.

## What it does

Reports a backward that torch refused because part of its graph had been freed by an earlier backward. It
names the line that built the shared part, the line that freed it and the line that entered it again, and
works out from the record what would mend this script.

## Why it matters

`backward()` frees the tensors that a graph saved as it walks it. Whatever still hangs on that graph, a
second loss or the next step, can't be differentiated any more: torch raises, and the training ends.
The usual advice, `retain_graph=True`, often only moves the fault: when an optimizer has stepped in between,
the retained graph needs weights that are gone (GL105).

## Example

    fake = generator(noise)
    verdict = discriminator(fake)
    (verdict - 0).pow(2).mean().backward()
    (verdict - 1).pow(2).mean().backward()

## Use instead

    fake = generator(noise)
    (discriminator(fake.detach()) - 0).pow(2).mean().backward()
    (discriminator(fake) - 1).pow(2).mean().backward()

## Known limits

A second backward through nodes that saved nothing does not raise; GL102 watches over those. Lines that ran
before the capture began, in another thread or in a compiled region are not known.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.failures import met_freed_graph
from graphlint.analysis.reentry import Built, Reentry
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward, OptimizerStep
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

_MOST_LINES = 3


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each backward that torch refused because its graph was freed."""
    for backward in facts.graphs.backwards:
        if not met_freed_graph(backward):
            continue
        frame = facts.graphs.frame(backward.site)
        if frame is None:
            continue
        graph = facts.graphs.of(backward)
        if graph is None or not graph.freed:
            yield _bare(facts, backward, frame)
        else:
            yield _Story(facts, Reentry(facts, backward, graph), frame).occurrence()


def _bare(facts: Facts, backward: Backward, frame: Frame) -> Occurrence:
    """Returns what can be said when the graph was freed out of the record's sight."""
    call = facts.wording.backward(backward)
    return Occurrence(
        message=f"{call} enters a graph that an earlier backward has already freed.",
        labels=(label(frame, "entered again here: torch raises"),),
        fix="build the loss anew for each backward. What freed the graph was not recorded.",
        step=facts.steps.step_of(backward.serial),
        last_step=facts.steps.last_step(backward.serial),
    )


class _Story:
    """Puts one reuse into words."""

    def __init__(self, facts: Facts, case: Reentry, frame: Frame) -> None:
        self._facts = facts
        self._case = case
        self._frame = frame
        self._call = facts.wording.backward(case.backward)
        self._loss = facts.wording.loss(case.backward)

    def occurrence(self) -> Occurrence:
        return Occurrence(
            message=self._message(),
            labels=tuple(self._labels()),
            fix=" ".join(part for part in (self._remedy(), self._retaining()) if part),
            step=self._facts.steps.step_of(self._case.backward.serial),
            last_step=self._facts.steps.last_step(self._case.backward.serial),
        )

    def _message(self) -> str:
        earlier = self._case.earlier
        if earlier is None:
            return f"{self._call} enters a graph that an earlier backward has already freed."
        first = self._facts.wording.backward(earlier)
        if first != self._call:
            return f"{self._call} enters a graph that {first} has already freed."
        if self._facts.graphs.frames(earlier.site) == self._facts.graphs.frames(self._case.backward.site):
            return f"{self._call} enters a graph that the same line has already freed{self._when(earlier)}."
        return f"{self._call} enters a graph that an earlier {first} has already freed."

    def _labels(self) -> Iterator[Label]:
        yield label(self._frame, f"entered again here: {self._consequence()}")
        earlier = self._case.earlier
        parted = None
        if earlier is not None:
            parted = self._facts.graphs.parting(earlier.site, self._case.backward.site)
        if parted is not None and parted[1] != self._frame:
            yield label(parted[1], "by way of this call")
        shown = self._case.lines if self._case.whole else self._case.entrances
        if self._case.whole and len(shown) > _MOST_LINES:
            shown = (*shown[: _MOST_LINES - 1], shown[-1])
        for built in shown[:_MOST_LINES]:
            yield from self._built(built)
        if earlier is not None:
            at = self._facts.graphs.frame(earlier.site)
            if at is not None:
                yield label(at, f"freed here{self._when(earlier)}")
            if parted is not None and parted[0] != at:
                yield label(parted[0], "freed by way of this call")

    def _built(self, built: Built) -> Iterator[Label]:
        frame = self._place(built)
        names = [self._facts.names.tensor_name(tensor, frame.function) for tensor in built.tensors]
        named = [f"`{name}`" for name in dict.fromkeys(names) if name is not None]
        what = f", {listed(named)}" if named else ""
        yield label(frame, f"built here: {counted(len(built.nodes), 'node')}{what}")
        if self._case.kind == "kept":
            words = frozenset(name for name in names if name is not None)
            line = self._facts.sources.store_line(frame, words)
            if line is not None and line != frame.line:
                yield Label(path=frame.path, line=line, text="kept here for later steps")

    def _place(self, built: Built) -> Frame:
        """Returns the line to show: what outlives a pass is best known where it was made."""
        return built.inner if self._case.kind in {"carried", "kept"} else built.frame

    def _consequence(self) -> str:
        missing = self._without_gradient()
        if not missing:
            return "torch raises"
        verb = "gets" if len(self._facts.names.owners(missing)) == 1 else "get"
        return f"torch raises, and {self._facts.wording.owners(missing)} {verb} no gradient"

    def _without_gradient(self) -> tuple[TensorId, ...]:
        """Returns the parameters that this backward was there for: those no optimizer has stepped yet."""
        done = {
            t for step in self._case.steps_between for t in self._facts.gradients.parameters(step.optimizer)
        }
        leaves = self._case.graph.leaves
        waiting = tuple(t for t in leaves if t not in done and self._facts.names.places(t))
        return (
            waiting
            if self._case.kind == "shared"
            else tuple(t for t in leaves if self._facts.names.places(t))
        )

    def _when(self, earlier: Backward) -> str:
        then = self._facts.steps.step_of(earlier.serial)
        return f" (step {then})" if then is not None else ""

    def _remedy(self) -> str:
        match self._case.kind:
            case "same-loss":
                return self._mend_same_loss()
            case "carried":
                return self._mend_carried()
            case "kept":
                return self._mend_kept()
            case "shared":
                return self._mend_shared()

    def _mend_same_loss(self) -> str:
        earlier = self._case.earlier
        at = self._facts.graphs.frame(earlier.site) if earlier is not None else None
        if at is not None and (at.path, at.line) != (self._frame.path, self._frame.line):
            return (
                f"call backward once on this loss: drop either the call at {place(at, near=self._frame)} or "
                f"the one at line {self._frame.line}."
            )
        return f"{self._anew()} before each call of {self._call}."

    def _anew(self) -> str:
        """Returns "compute `loss` anew (lines 18 to 20)"."""
        lines = sorted(
            {built.frame.line for built in self._case.lines if built.frame.path == self._frame.path}
        )
        if not lines:
            return f"compute {self._loss} anew"
        where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
        return f"compute {self._loss} anew ({where})"

    def _mend_carried(self) -> str:
        what = self._handed_on()
        if self._case.steps_between:
            return f"detach {what} before the next pass uses it, so that each pass has a graph of its own."
        return (
            f"detach {what} before the next pass uses it, so that each pass has a graph of its own; or "
            f"add up the losses of all passes and call backward once."
        )

    def _handed_on(self) -> str:
        """Returns the words for what a pass hands on: the tensor's name, or what the line assigns to."""
        built = self._case.entrances[0] if self._case.entrances else None
        if built is None:
            return "what one pass hands on to the next"
        statement = self._facts.sources.statement(built.inner.path, built.inner.line)
        where = place(built.inner, near=self._frame)
        attributes = [t for t in statement.targets if "." in t or "[" in t] if statement is not None else []
        if attributes:
            return f"{listed([f'`{target}`' for target in attributes])} ({where})"
        names = [self._facts.names.tensor_name(tensor, built.inner.function) for tensor in built.tensors]
        named = [f"`{name}`" for name in names if name is not None]
        return f"{listed(named)} ({where})" if named else f"what {where} hands on"

    def _mend_kept(self) -> str:
        built = self._case.entrances[0] if self._case.entrances else None
        if built is None:
            return f"{self._anew()} in each step."
        names = [self._facts.names.tensor_name(tensor, built.inner.function) for tensor in built.tensors]
        named = [f"`{name}`" for name in names if name is not None]
        where = place(built.inner, near=self._frame)
        what = f"{listed(named)} ({where})" if named else f"what {where} computes"
        if self._case.trained_by_earlier(self._case.leaves) is False:
            held = self._facts.wording.owners(sorted(self._case.leaves))
            steppers = listed([self._facts.wording.step(step) for step in self._case.users])
            return f"detach {what}: {steppers} doesn't train {held}, which lies behind it."
        return (
            f"compute {what} again in each step instead of keeping it: what it depends on is being trained."
        )

    def _mend_shared(self) -> str:
        if not self._case.steps_between and self._case.earlier is not None:
            first = self._facts.wording.loss(self._case.earlier)
            both = f"{first} and {self._loss}" if first != self._loss else "the two losses"
            return f"add {both} and call backward once: no optimizer steps between the two calls."
        calls = self._calls(self._case.entrances)
        where = self._after()
        if not self._case.behind:
            return f"call {calls} again {where} and build {self._loss} from that."
        if (
            self._case.trained_by_earlier(self._case.leaves_behind) is False
            and self._case.earlier is not None
        ):
            first = self._facts.wording.loss(self._case.earlier)
            held = self._facts.wording.owners(sorted(self._case.leaves_behind))
            return (
                f"build {first} from {self._detached()}, as it isn't there to train {held}; then call "
                f"{calls} again {where}, not detached, and build {self._loss} from that."
            )
        lines = sorted({built.frame.line for built in self._case.behind})
        also = listed([str(line) for line in lines], limit=6)
        word, those = ("line", "that") if len(lines) == 1 else ("lines", "those")
        return (
            f"call {calls} again {where} and build {self._loss} from that; its input comes from {word} "
            f"{also}, whose graph was freed as well, so run {those} again before it."
        )

    def _calls(self, entrances: tuple[Built, ...]) -> str:
        spelled = []
        for built in entrances:
            quoted = self._facts.wording.call_at(built.frame)
            spelled.append(quoted or f"what {place(built.frame, near=self._frame)} does")
        return listed(spelled)

    def _detached(self) -> str:
        scope = self._frame.function
        names = [self._facts.names.tensor_name(tensor, scope) for tensor in self._case.handed_over]
        named = [f"`{name}.detach()`" for name in dict.fromkeys(names) if name is not None]
        return listed(named) if named else "a detached input"

    def _after(self) -> str:
        """Returns "after line 66": the last step between, or else the backward that freed the graph."""
        last = self._case.steps_between[-1] if self._case.steps_between else self._case.earlier
        site = last.site if last is not None else None
        frame = self._facts.graphs.common_frame(site, self._case.backward.site)
        return f"after {place(frame, near=self._frame)}" if frame is not None else "before it"

    def _retaining(self) -> str:
        """Returns whether retain_graph=True would have helped, as far as the record proves it."""
        if self._case.earlier is None or not self._case.needs_known:
            return ""
        if self._case.blockers:
            blocker = self._case.blockers[0]
            event = blocker.event
            at = self._facts.wording.at(event.site, near=self._frame)
            call = (
                self._facts.wording.step(event)
                if isinstance(event, OptimizerStep)
                else (self._facts.wording.call_of(event.site) or "a write")
            )
            return (
                f"retain_graph=True would not help: {call}{at} changes "
                f"{self._facts.names.tensor(blocker.tensor)} in place, which the retained graph needs."
            )
        return ""


_BAD = Example(
    title="predictions reused for the generator's loss",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCELoss()
for step in range(2):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    verdict = discriminator(fake)
    discriminator_loss = criterion(verdict, torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(verdict, torch.ones(16, 1))
    generator_loss.backward()  # <- GL101
    generator_optimizer.step()
""",
    raises="backward through the graph a second time",
)

_BAD_STATE = Example(
    title="recurrent state carried from step to step with its graph",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
state = torch.zeros(8, 5)
for step in range(3):
    state = cell(torch.randn(8, 3), state)
    loss = head(state).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- GL101
    optimizer.step()
""",
    raises="backward through the graph a second time",
)

_GOOD = Example(
    title="one fake batch, detached for the discriminator and attached for the generator",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCELoss()
for step in range(2):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    discriminator_loss = criterion(discriminator(fake.detach()), torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(discriminator(fake), torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
""",
)

_GOOD_STATE = Example(
    title="truncated backpropagation through time",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
state = torch.zeros(8, 5)
for step in range(3):
    state = cell(torch.randn(8, 3), state.detach())
    loss = head(state).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL101",
    name="freed-graph-reuse",
    severity="error",
    since="0.1.0",
    needs=("backward",),
    check=check,
    bad=(_BAD, _BAD_STATE),
    good=(_GOOD, _GOOD_STATE),
)
