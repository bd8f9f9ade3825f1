"""A NaN or an infinity got into the gradients that an optimizer used.

## What it does

Reports the first step that used gradients with a NaN or an infinity in them, once, and the line that made it:
an operation of the forward pass whose result is not finite though all that it read is; where the loss is
finite, the operation whose derivative isn't (`sqrt` at 0, a branch that `where` left out); or the batch,
where the data has it. Where the loss had grown out of all proportion before, it says that too.

## Why it matters

One such step is enough: the weights that it writes are NaN, and so is everything after. The loss shows it a
step later, far from the line that did it.

## Example

    energy = power.sum(-1)
    loss = (torch.sqrt(energy) - target).abs().mean()

## Use instead

    energy = power.sum(-1)
    loss = (torch.sqrt(energy + 1e-8) - target).abs().mean()

## Known limits

The line is known for steps of the full level: the first ones, or all with `--level full`. Later it is told in
which step it happened, and the line where that can be seen from what autograd had saved. A loss that the
script leaves out, steps that a gradient scaler skips, gradients that are mended before the step and
infinities that never reach a gradient are not reported.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.lossorder import LossOrder
from graphlint.analysis.nonfinite import NonFinite, NonFinites
from graphlint.analysis.nonfinite_words import NonFiniteWords
from graphlint.analysis.wording import counted
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Backward, Op
from graphlint.record.identity import Serial, SiteId, TensorId
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields one finding: how the run lost its finite numbers."""
    found = NonFinites(facts).first()
    if found is None or any(True for _ in LossOrder(facts).swapped()):
        # A loss that takes the logarithm of its labels explains it, and is told by itself.
        return
    story = _Story(facts, found)
    if story.frame is not None:
        yield story.occurrence(story.frame)


class _Story:
    """What is told of one loss of finite numbers."""

    def __init__(self, facts: Facts, found: NonFinite) -> None:
        self._facts = facts
        self._found = found
        origin = found.origin
        self._op = origin.op if origin is not None else None
        nodes = (*found.nodes, *found.suspects)
        self._node = nodes[0] if nodes else found.saved
        self.site = self._primary()
        self.frame = facts.graphs.frame(self.site)

    def _primary(self) -> SiteId | None:
        found = self._found
        if self._op is not None:
            return self._op.site
        if found.origin is not None:
            reader = self._reader(found.origin.tensor)
            return reader.site if reader is not None else self._backward_site()
        if self._node is not None and self._node.site is not None:
            return self._node.site
        return self._backward_site()

    def _backward_site(self) -> SiteId | None:
        found = self._found
        if found.backward is not None:
            return found.backward.site
        return found.step.site if found.step is not None else None

    def _reader(self, tensor: TensorId) -> Op | None:
        readers = [event for event in self._facts.values.consumers(tensor) if isinstance(event, Op)]
        return readers[0] if readers else None

    def occurrence(self, frame: Frame) -> Occurrence:
        """Returns the finding, whose first label is at `frame`."""
        first, last = self._steps()
        words = NonFiniteWords(self._facts, self._found, frame.function)
        return Occurrence(
            message=f"{words.what()} {words.consequence()}",
            labels=distinct(self._labels(frame, words)),
            fix=words.fix(),
            step=first,
            last_step=last,
            cause=(frame.path, frame.line),
        )

    def _steps(self) -> tuple[int | None, int | None]:
        """Returns the step in which it happened; one that was only watched is the one before it was shown."""
        steps, shown = self._facts.steps, self._found.shown
        if shown is None:
            return steps.step_of(self._serial()), steps.last_step(self._serial())
        number = steps.step_of(shown.serial)
        before = None if number is None else max(number - 1, 0)
        return before, before

    def _serial(self) -> Serial:
        found = self._found
        if found.step is not None:
            return found.step.serial
        if found.backward is not None:
            return found.backward.serial
        return self._op.serial if self._op is not None else Serial(0)

    # --- labels ------------------------------------------------------------------------------------------

    def _labels(self, frame: Frame, words: NonFiniteWords) -> Iterator[Label]:
        found = self._found
        yield label(frame, self._here())
        for node in (*found.nodes[1:], *found.suspects[1:]):
            other = self._facts.graphs.frame(node.site)
            if other is not None:
                yield label(other, f"or {words.operation(node)}" if found.suspects else "this one too")
        source = found.origin.from_infinity if found.origin is not None else None
        if source is not None and (masked := self._facts.graphs.frame(source.site)) is not None:
            yield label(masked, "puts the infinities")
        if found.backward is not None:
            yield from self._label_backward(found.backward)
        if found.step is not None and (stepped := self._facts.graphs.frame(found.step.site)) is not None:
            yield label(stepped, f"writes it into {counted(len(found.parameters), 'parameter')}")

    def _label_backward(self, backward: Backward) -> Iterator[Label]:
        caller = self._facts.graphs.common_frame(self.site, backward.site)
        if caller is not None:
            yield label(caller, "called from here")
        frame = self._facts.graphs.frame(backward.site)
        if frame is not None:
            yield label(frame, "the backward that filled the gradients")

    def _here(self) -> str:
        found = self._found
        if found.origin is not None and found.origin.written:
            return "puts it there"
        if self._op is not None:
            return "not finite from here on"
        if found.origin is not None:
            return "read here"
        if found.nodes:
            return "its gradient is not finite"
        if found.suspects:
            return "its derivative can be infinite"
        return (
            "the first that is known not to be finite" if found.saved is not None else "not finite after this"
        )


_BAD = Example(
    title="the square root of an energy that is 0",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    silent = x.clone()
    silent[0] = 0
    energy = (silent * model(x)).pow(2).sum(-1)
    loss = (torch.sqrt(energy) - 1).abs().mean()  # <- GL306
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_WHERE = Example(
    title="a logarithm whose bad elements are left out behind it",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    rates = model(torch.randn(8, 4) * torch.eye(8, 4)).abs()
    logs = torch.log(rates)  # <- GL306
    loss = torch.where(rates > 0, logs, torch.zeros(())).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD = Example(
    title="a loss that isn't finite is left out",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    if step == 1:
        x[0] = float("nan")
    loss = model(x).pow(2).mean()
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_MENDED = Example(
    title="gradients that are mended before the step",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.zeros(8, 4)
    loss = (model(x) - model.bias).abs().sqrt().mean() + model(x + 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        torch.nan_to_num(parameter.grad, nan=0.0, posinf=1.0, neginf=-1.0, out=parameter.grad)
    optimizer.step()
""",
)

_GOOD_MASK = Example(
    title="infinities as a mask before a softmax",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
query, key = nn.Linear(4, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD([*query.parameters(), *key.parameters()], lr=0.1)
later = torch.full((6, 6), float("-inf")).triu(1)
for step in range(3):
    x = torch.randn(6, 4)
    weights = torch.softmax(query(x) @ key(x).T + later, dim=-1)
    loss = (weights @ x - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_SAFE = Example(
    title="where before the logarithm and behind it",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    rates = model(torch.randn(8, 4)).relu()
    logs = torch.log(torch.where(rates > 0, rates, torch.ones(())))
    loss = torch.where(rates > 0, logs, torch.zeros(())).pow(2).mean() + rates.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL306",
    name="non-finite-gradient",
    severity="error",
    since="0.1.0",
    needs=("backward", "optimizer", "gradient-values"),
    check=check,
    bad=(_BAD, _BAD_WHERE),
    good=(_GOOD, _GOOD_MENDED, _GOOD_MASK, _GOOD_SAFE),
)
