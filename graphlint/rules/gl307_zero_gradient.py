"""The gradient of a whole module is exactly zero.

## What it does

Reports modules of an optimizer whose gradients are exactly zero in every step in which they were looked at,
and names the line that lets nothing through: an operation whose derivative is zero everywhere (`sign`,
`round`), a rectifier whose inputs are all on its flat side, a saturated sigmoid, a softmax over a single
entry, a custom function that returns zeros.

## Why it matters

Autograd is content: the graph is whole, every parameter has a gradient, the optimizer steps. The module stays
as it was initialised, and the loss may fall all the same, because the rest of the model learns.

## Example

    direction_loss = (torch.sign(direction) - wanted).pow(2).mean()

## Use instead

    direction_loss = (torch.tanh(direction) - wanted).pow(2).mean()

## Known limits

Gradients are looked at in every step of the full level, later in steps 1, 2, 4, 8 and so on, on the CPU.
Three such steps are needed: layers that start from zero, as in LoRA, keep others at zero in the first one.
Gradients that cancel out, as a critic's last bias has them, terms of a loss that are satisfied, and branches
that a mask or a maximum left out are not reported. A module behind a factor of zeros that nothing trains is
told as a hint.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted
from graphlint.analysis.zeros import Kind, Zeroed, Zeros, kind_name
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Op
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each line that keeps the gradients of modules at zero."""
    for found in Zeros(facts).all():
        backward = facts.graphs.frame(found.backward.site)
        frame = facts.graphs.frame(found.node.site) or backward
        if frame is not None:
            yield _occurrence(facts, found, frame, backward)


def _occurrence(facts: Facts, found: Zeroed, frame: Frame, backward: Frame | None) -> Occurrence:
    owners = facts.wording.owners(found.parameters)
    one = len(facts.owners.phrases(found.parameters)) == 1
    name = _operation(facts, found)
    what = f"`{name or kind_name(found.node).lower()}`"
    if found.node.custom is not None:
        what = f"the custom function {found.node.custom}"
    steps = counted(found.steps, "step")
    nothing = f"{owners} learns nothing" if one else "They learn nothing"
    return Occurrence(
        message=(
            f"The gradients of {owners} are exactly zero in all {steps} in which they were looked at: {what} "
            f"{_reason(found)}. {nothing}."
        ),
        labels=distinct(_labels(facts, found, frame, backward, owners)),
        fix=_fix(facts, found, frame),
        step=facts.steps.step_of(found.step.serial),
        last_step=facts.steps.last_step(found.step.serial),
        cause=(frame.path, frame.line, found.kind),
        severity="info" if found.kind == "factor" else None,
    )


_REASONS: tuple[tuple[Kind, str], ...] = (
    ("flat", "has a derivative of zero everywhere"),
    ("rectifier", "was given values on its flat side only, where its derivative is zero"),
    ("saturated", "is saturated: its derivative is too small for the precision and is stored as zero"),
    ("single", "runs over a single entry, so that its result is the same whatever it is given"),
    ("dropout", "drops every element"),
    ("norm", "normalises over elements that are all equal, or a single one, and so returns a constant"),
    ("factor", "multiplies by zeros that nothing trains"),
    ("stuck", "multiplies two factors that are both zero, so that neither gets a gradient"),
)


def _reason(found: Zeroed) -> str:
    if found.kind == "custom":
        return "returns zeros from its backward"
    return dict(_REASONS)[found.kind]


def _labels(
    facts: Facts, found: Zeroed, frame: Frame, backward: Frame | None, owners: str
) -> Iterator[Label]:
    yield label(frame, f"lets no gradient through to {owners}")
    caller = facts.graphs.common_frame(found.node.site, found.backward.site)
    if backward is not None:
        yield label(backward, f"fills the gradients of {owners} with zeros")
    stepped = facts.graphs.frame(found.step.site)
    if caller is not None:
        yield label(caller, "called from here")
    if stepped is not None:
        yield label(stepped, "steps on gradients of zero")


_FLAT = "train on a smooth stand-in such as {smooth}, or pass the gradient straight on with {through}."
_RECTIFIER = (
    "find out why {this} is never on the other side (the bias that it starts from, the scale of the inputs, "
    "too high a learning rate); at an output use `softplus` or no activation, between layers `leaky_relu`."
)
_SATURATED = (
    "keep {this} small (normalise the inputs, scale the initial weights down), or leave the activation out "
    "and use the loss that takes logits."
)
_SINGLE = (
    "let it run over the dimension that holds the classes; with one output per sample use "
    "`binary_cross_entropy_with_logits`, without a softmax."
)
_CUSTOM = (
    "return the gradient that {custom} is to pass on from its `backward`; a straight-through estimator "
    "returns the one that it was given."
)
_REMEDIES: tuple[tuple[Kind, str], ...] = (
    ("flat", _FLAT),
    ("rectifier", _RECTIFIER),
    ("saturated", _SATURATED),
    ("single", _SINGLE),
    ("dropout", "use a probability below 1."),
    ("norm", "normalise over a dimension with more than one element."),
    ("custom", _CUSTOM),
    ("factor", "if {owners} should learn, make the factor non-zero or trainable."),
    (
        "stuck",
        "initialise one of the two factors with something other than zeros: `nn.init.xavier_uniform_`.",
    ),
)


def _fix(facts: Facts, found: Zeroed, frame: Frame) -> str:
    read, name = _read(facts, found, frame), _operation(facts, found)
    through = f"`{read} + (torch.{name}({read}) - {read}).detach()`"
    return dict(_REMEDIES)[found.kind].format(
        this=f"`{read}`" if read else "its argument",
        smooth=f"`torch.tanh({read})`" if read else "`torch.tanh`",
        through=through if read and name else "a straight-through estimator",
        custom=found.node.custom,
        owners=facts.wording.owners(found.parameters),
    )


def _operation(facts: Facts, found: Zeroed) -> str | None:
    """Returns the name of the operation that built the node, `sign`."""
    event = facts.graphs.event(found.node)
    return event.name.rpartition(".")[2].strip("_") if isinstance(event, Op) else None


def _read(facts: Facts, found: Zeroed, frame: Frame) -> str | None:
    """Returns the name of the tensor that the operation read."""
    event = facts.graphs.event(found.node)
    if not isinstance(event, Op) or not event.inputs:
        return None
    tensor = next((use.tensor for use in event.inputs if use.requires_grad), event.inputs[0].tensor)
    named = facts.names.names_in(tensor, frame.function)
    return named[0] if named else None


_BAD = Example(
    title="the sign of a prediction in a loss",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
body, value, direction = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
parameters = [*body.parameters(), *value.parameters(), *direction.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(4):
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
    features = body(x).relu()
    turn = direction(features)
    loss = (value(features) - y).pow(2).mean()
    loss = loss + (torch.sign(turn) - y.sign()).pow(2).mean()  # <- GL307
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_SINGLE = Example(
    title="cross entropy over one class",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16, 4)
    labels = torch.zeros(16, dtype=torch.long)
    loss = nn.functional.cross_entropy(model(x), labels)  # <- GL307
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_DEAD = Example(
    title="a rectified output that starts on its flat side",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
nn.init.constant_(model.bias, -9.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.rand(16, 4)
    amount = torch.relu(model(x))  # <- GL307
    loss = (amount - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD = Example(
    title="a straight-through estimator",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16, 4)
    out = model(x)
    hard = out + (torch.sign(out) - out).detach()
    loss = (hard - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_LORA = Example(
    title="an adapter whose second factor starts from zero",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
frozen = nn.Linear(4, 4).requires_grad_(False)
down, up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
nn.init.zeros_(up.weight)
optimizer = torch.optim.SGD([*down.parameters(), *up.parameters()], lr=0.1)
for step in range(4):
    x = torch.randn(16, 4)
    loss = (frozen(x) + up(down(x)) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_CRITIC = Example(
    title="the last bias of a critic, whose gradient cancels out",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
for step in range(4):
    real, fake = torch.randn(16, 4) + 1, torch.randn(16, 4)
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_HINGE = Example(
    title="a hinge loss that is satisfied",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 1)
nn.init.constant_(model.weight, 9.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.rand(16, 2) + 1
    loss = torch.relu(1 - model(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL307",
    name="zero-gradient",
    severity="warning",
    since="0.1.0",
    needs=("backward", "optimizer", "operations", "gradient-values"),
    check=check,
    bad=(_BAD, _BAD_SINGLE, _BAD_DEAD),
    good=(_GOOD, _GOOD_LORA, _GOOD_CRITIC, _GOOD_HINGE),
)
