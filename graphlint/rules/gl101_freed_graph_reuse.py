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
from graphlint.analysis.reentry_words import ReentryWords
from graphlint.analysis.wording import counted, listed
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward
from graphlint.record.identity import Serial, TensorId
from graphlint.record.tables import Frame

_MOST_LINES = 3
_VIA = "by way of this call"


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
        self._words = ReentryWords(facts, case, frame)

    def occurrence(self) -> Occurrence:
        return Occurrence(
            message=self._message(),
            labels=_told_once(self._labels()),
            fix=" ".join(part for part in (self._words.remedy(), self._words.retaining()) if part),
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
            return f"{self._call} enters a graph that the same line has already freed{self._when()}."
        return f"{self._call} enters a graph that an earlier {first} has already freed."

    def _labels(self) -> Iterator[Label]:
        yield label(self._frame, f"entered again here: {self._consequence()}")
        earlier = self._case.earlier
        parted = None
        if earlier is not None:
            parted = self._facts.graphs.parting(earlier.site, self._case.backward.site)
        if parted is not None and parted[1] != self._frame:
            yield label(parted[1], _VIA)
        shown = self._case.lines if self._case.whole else self._case.entrances
        if self._case.whole and len(shown) > _MOST_LINES:
            shown = (*shown[: _MOST_LINES - 1], shown[-1])
        if self._case.kind == "carried" and self._case.lines:
            # The line by which a pass enters may be a mere sum: show where the graph itself was built.
            most = max(self._case.lines, key=lambda built: len(built.nodes))
            shown = (*[built for built in shown if built != most][: _MOST_LINES - 1], most)
        for built in shown[:_MOST_LINES]:
            yield from self._built(built)
        yield from self._ways_in()
        if earlier is not None:
            at = self._facts.graphs.frame(earlier.site)
            if at is not None:
                yield label(at, f"freed here{self._when()}")
            if parted is not None and parted[0] != at:
                yield label(parted[0], f"freed {_VIA}")

    def _built(self, built: Built) -> Iterator[Label]:
        outlives = self._case.kind in {"carried", "kept"}
        # What outlives a pass is known best where it was made, deeper than the line in the loop.
        frame = built.inner if outlives else built.frame
        tensors = built.tensors
        if self._case.kind == "carried":
            # What else the same call gave, a step's own output, is not what leads the next pass here.
            carried = {one.tensor for one in self._case.entered}
            tensors = tuple(t for t in tensors if t in carried) or tensors
        names = [self._facts.names.tensor_name(tensor, frame.function) for tensor in tensors]
        named = [f"`{name}`" for name in dict.fromkeys(names) if name is not None]
        what = f", {listed(named)}" if named else ""
        yield label(frame, f"built here: {counted(len(built.nodes), 'node')}{what}")
        if self._case.kind == "kept":
            statement = self._facts.sources.statement(frame.path, frame.line)
            words = {name for name in names if name is not None}
            words.update(statement.targets if statement is not None else ())
            line = self._facts.sources.store_line(frame, frozenset(words))
            if line is not None and line != frame.line:
                yield Label(path=frame.path, line=line, text="kept here for later steps")
        if outlives and built.frame != frame:
            yield label(built.frame, f"built {_VIA}")

    def _ways_in(self) -> Iterator[Label]:
        """Yields the lines by which a pass, or the earlier loss, came upon what it had better not have."""
        for built in self._case.handed_on[:_MOST_LINES]:
            yield label(built.inner, "handed on to later passes from here")
        if (entry := self._words.entry()) is not None:
            yield label(entry[0], f"{self._words.earlier_loss()} enters it from here")

    def _consequence(self) -> str:
        missing = self._without_gradient()
        if not missing:
            return "torch raises"
        without = [tensor for tensor in missing if not self._has_gradient(tensor)]
        owners = self._facts.owners.phrases(without or missing)
        verb = "gets" if len(owners) == 1 and owners[0].startswith("`") else "get"
        further = "" if without else "further "
        return f"torch raises, and {listed(owners)} {verb} no {further}gradient"

    def _has_gradient(self, tensor: TensorId) -> bool:
        """Tells whether a parameter holds a gradient already when this backward is called."""
        life = self._facts.gradients.between(tensor, Serial(-1), self._case.backward.serial)
        held = [moment.kind for moment in life if moment.kind != "used"]
        return bool(held) and held[-1] != "cleared"

    def _without_gradient(self) -> tuple[TensorId, ...]:
        """Returns the parameters that this backward was there for: those no optimizer has stepped yet."""
        done = {
            t for step in self._case.steps_between for t in self._facts.gradients.parameters(step.optimizer)
        }
        leaves = self._case.out_of_reach
        waiting = tuple(t for t in leaves if t not in done and self._facts.names.places(t))
        return (
            waiting
            if self._case.kind == "shared"
            else tuple(t for t in leaves if self._facts.names.places(t))
        )

    def _when(self) -> str:
        then = self._case.earlier_step
        return f" (step {then})" if then is not None else ""


def _told_once(labels: Iterator[Label]) -> tuple[Label, ...]:
    """Returns the labels without those that only lead to a line which another label marks already."""
    found = tuple(labels)
    marked = {(one.path, one.line) for one in found if _VIA not in one.text}
    return tuple(one for one in found if _VIA not in one.text or (one.path, one.line) not in marked)


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
