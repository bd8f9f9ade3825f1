"""Some of an optimizer's parameters never get a gradient.

## What it does

Reports parameters that an optimizer was given and that no backward of the run reached, while others of the
same optimizer were reached. It tells those that the forward pass never uses from those that it uses but that
are cut off from the loss, and shows the line that built them or the line of the cut.

## Why it matters

A layer that is built and never called, a head left inside a `no_grad` block: the optimizer skips what has no
gradient, and nothing says so. The layer stays as it was initialised and is saved with the checkpoint.

## Example

    def forward(self, x):
        with torch.no_grad():
            return self.projection(self.frozen(x))

## Use instead

    def forward(self, x):
        with torch.no_grad():
            features = self.frozen(x)
        return self.projection(features)

## Known limits

Judged over the steps of the run: an unused parameter is reported after three steps, a cut one after two.
Modules in a `ModuleList` or `ModuleDict` of which others of the same type are used, as in a mixture of
experts, are taken for idle. Frozen parameters, groups with a learning rate of 0, parameters written by hand
and copies of trained ones (target networks) are left out.
"""

from collections.abc import Iterator

from graphlint.analysis.cut_words import CutWords
from graphlint.analysis.facts import Facts
from graphlint.analysis.unreached import Unreached, UnreachedParameters
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Op
from graphlint.record.tables import Frame

_MOST_PLACES = 3
_ONE_NAME = 2  # backticks


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each optimizer and reason for which parameters never got a gradient."""
    finder = UnreachedParameters(facts)
    for found in finder.all():
        frame = facts.graphs.frame(found.step.site)
        if frame is not None:
            yield _occurrence(facts, finder, found, frame)


def _occurrence(facts: Facts, finder: UnreachedParameters, found: Unreached, frame: Frame) -> Occurrence:
    modules = facts.owners.phrases(found.parameters)
    what = listed(modules)
    optimizer = facts.names.optimizer(found.optimizer)
    words = CutWords(facts, found.losses[0].site)
    return Occurrence(
        message=_message(facts, found, what, "is" if len(modules) == 1 else "are"),
        labels=distinct(_labels(facts, finder, found, frame, words)),
        fix=_fix(facts, found, words, what, optimizer),
        step=facts.steps.step_of(found.step.serial),
        last_step=facts.steps.last_step(found.step.serial),
        cause=(frame.path, frame.line, found.reason),
    )


def _message(facts: Facts, found: Unreached, what: str, verb: str) -> str:
    number = counted(len(found.parameters), "parameter")
    optimizer = facts.names.optimizer(found.optimizer)
    never = "never gets" if len(found.parameters) == 1 else "never get"
    loss = facts.wording.loss(found.losses[0])
    told = f"{number} of {optimizer} {never} a gradient in {counted(found.steps, 'step')}: {what} {verb}"
    if found.reason == "cut":
        return f"{told} used to compute {loss}, but the gradient's way back is cut."
    seen = "" if found.complete else ", as far as was recorded"
    return f"{told} never used to compute {loss}{seen}."


def _fix(facts: Facts, found: Unreached, words: CutWords, what: str, optimizer: str) -> str:
    if found.reason == "cut":
        loss = facts.wording.loss(found.losses[0])
        remedy = listed([words.remedy(cut, loss) for cut in words.distinct(found.cuts, _MOST_PLACES)])
        return f"{remedy}; or leave {what} out of {optimizer} if no training is meant."
    it = "it" if what.count("`") == _ONE_NAME else "them"
    left = _called(facts, found)
    if left is not None:
        at = facts.graphs.frame(left.site)
        where = f" ({place(at)})" if at is not None else ""
        return (
            f"let {facts.wording.loss(found.losses[0])} depend on what {what} computes{where}, or take {it} "
            f"out of the model and of {optimizer}."
        )
    return f"call {what} in the forward pass, or take {it} out of the model and of {optimizer}."


def _labels(
    facts: Facts, finder: UnreachedParameters, found: Unreached, frame: Frame, words: CutWords
) -> Iterator[Label]:
    yield label(frame, f"steps {counted(len(found.parameters), 'parameter')} that never got a gradient")
    for cut in words.distinct(found.cuts, _MOST_PLACES):
        for shown in words.places(cut):
            yield label(shown.frame, shown.text)
    if found.reason == "unused":
        sites = dict.fromkeys(finder.made_at(parameter) for parameter in found.parameters)
        frames = (facts.graphs.frame(site) for site in sites)
        built = list(dict.fromkeys(frame for frame in frames if frame is not None))
        left = _called(facts, found)
        text = "built here" if left is not None else "built here, never used"
        for place_built in built[:_MOST_PLACES]:
            yield label(place_built, text)
        if left is not None:
            yield from _left_out(facts, found, left)


def _called(facts: Facts, found: Unreached) -> Op | None:
    """Returns an operation that reads the parameters with gradients on, though no loss depends on it."""
    for parameter in found.parameters if found.reason == "unused" else ():
        for event in facts.values.consumers(parameter):
            if isinstance(event, Op) and event.call is not None and event.grad_mode and event.outputs:
                return event
    return None


def _left_out(facts: Facts, found: Unreached, left: Op) -> Iterator[Label]:
    """Yields where the parameters are read for nothing, and the loss that should have had it."""
    backward = found.losses[0]
    for frame in (facts.graphs.frame(left.site), facts.graphs.common_frame(left.site, backward.site)):
        if frame is not None:
            yield label(frame, "computed here, and left out of the loss")
    made = facts.values.producer(backward.roots[0], backward.serial) if backward.roots else None
    line = facts.graphs.common_frame(made.site, backward.site) if made is not None else None
    if line is not None:
        yield label(line, f"{facts.wording.loss(backward)} is made here without it")


_BAD = Example(
    title="a layer that is built and never called",
    code="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.first(x).relu())


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- GL203
""",
)

_BAD_CUT = Example(
    title="a trainable layer inside the no_grad block of a frozen one",
    code="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 8).requires_grad_(False)
        self.projection = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        with torch.no_grad():
            features = self.projection(self.frozen(x))
        return self.last(features)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
for step in range(4):
    loss = net(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- GL203
""",
)

_GOOD = Example(
    title="a mixture of experts with an idle one",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
optimizer = torch.optim.SGD(experts.parameters(), lr=0.1)
for step in range(4):
    loss = experts[step % 2](torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL203",
    name="unreached-parameter",
    severity="warning",
    since="0.1.0",
    needs=("backward", "optimizer", "operations"),
    check=check,
    bad=(_BAD, _BAD_CUT),
    good=(_GOOD,),
)
