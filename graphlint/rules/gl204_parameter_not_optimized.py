"""Parameters get gradients in every step, and no optimizer has them.

## What it does

Reports trainable parameters that the backwards of the training fill and that no optimizer of the run was
given, while an optimizer steps others on the same backwards. It shows where they were made, the line that
made the optimizer, and what can be told of why: modules in a plain list, a group of parameters that was never
handed on, a copy on the module instead of the parameter.

## Why it matters

The gradients are computed, kept in memory, and never applied: the layers stay as they were initialised. The
loss falls all the same, by what the other layers can do.

## Example

    self.blocks = [nn.Linear(8, 8) for _ in range(3)]
    ...
    optimizer = torch.optim.Adam(model.parameters())

## Use instead

    self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    ...
    optimizer = torch.optim.Adam(model.parameters())

## Known limits

Judged over at least three backwards. Parameters that were loaded or copied, or that are used in eval mode
only, are reported as a hint: a backbone may be left alone on purpose, though freezing it would save its
gradients. Parameters that are written by hand, or whose gradient the script reads by itself, are left out,
and so is a network through which an input alone is optimized. An optimizer that is made later in the run
counts.
"""

import ast
from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.forgotten import Forgotten, ForgottenParameters
from graphlint.analysis.wording import counted, listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import Op
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

_MOST_PLACES = 4


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a finding for each reason for which parameters are trained by nobody."""
    for found in ForgottenParameters(facts).all():
        frame = facts.graphs.frame(found.backward.site)
        if frame is not None:
            yield _Story(facts, found, frame).occurrence()


class _Story:
    """Puts forgotten parameters into words."""

    def __init__(self, facts: Facts, found: Forgotten, frame: Frame) -> None:
        self._facts = facts
        self._found = found
        self._frame = frame
        self._what = facts.wording.parameters(found.parameters)
        self._optimizers = listed([facts.names.optimizer(optimizer) for optimizer in found.optimizers])
        rows = (facts.trace.optimizers[optimizer] for optimizer in found.optimizers)
        frames = (facts.graphs.frame(row.site) for row in rows)
        self._made = tuple(dict.fromkeys(frame for frame in frames if frame is not None))
        copied = (facts.graphs.frame(copy.site) for copy in found.copies)
        self._copied = tuple(dict.fromkeys(frame for frame in copied if frame is not None))

    def occurrence(self) -> Occurrence:
        labels = distinct(self._labels())
        return Occurrence(
            message=self._message(),
            labels=labels,
            fix=self._fix(),
            step=self._facts.steps.step_of(self._found.backward.serial),
            last_step=self._facts.steps.last_step(self._found.backward.serial),
            cause=(labels[0].path, labels[0].line, self._found.reason),
            severity=None if self._found.meant else "info",
        )

    def _message(self) -> str:
        found = self._found
        one = len(found.parameters) == 1
        gradients, them = ("gradient", "it") if one else ("gradients", "them")
        kept = "it keeps the value it has" if one else "they keep the values they have"
        told = (
            f"{self._facts.wording.backward(found.backward)} fills the {gradients} of {self._what} "
            f"({counted(found.steps, 'time')}), and no optimizer has {them}: {kept}."
        )
        if found.reason == "copied":
            return (
                f"{told} {self._copies()} a copy that was made of {them if one else 'each'} once: no module "
                f"lists it, and no step changes it."
            )
        if found.reason == "unregistered":
            return f"{told} The module that uses {them} doesn't list {them}."
        return told

    def _copies(self) -> str:
        """Returns what the model has in place of the parameters."""
        names = self._facts.names
        results = [c.outputs[0] if isinstance(c, Op) else c.result for c in self._found.copies]
        known = [f"`{name}`" for tensor in results if (name := names.tensor_name(tensor)) is not None]
        if len(known) != len(results):
            return "What the model uses is"
        return f"{listed(known)} {'is' if len(known) == 1 else 'are each'}"

    def _built(self) -> Iterator[Frame]:
        """Yields the lines that made the parameters."""
        for tensor in self._found.parameters:
            if (frame := self._made_at(tensor)) is not None:
                yield frame

    def _made_at(self, tensor: TensorId) -> Frame | None:
        born = self._facts.optimized.born(tensor)
        return self._facts.graphs.frame(born.site) if born is not None else None

    def _labels(self) -> Iterator[Label]:
        reason = self._found.reason
        built = list(dict.fromkeys(self._built()))[:_MOST_PLACES]
        if reason == "copied":
            for frame in self._copied[:_MOST_PLACES]:
                yield label(frame, "the model gets a copy of the parameter here, not the parameter")
        if reason == "unregistered":
            for frame in built:
                yield label(frame, "made here, and not listed by the module that uses it")
        for frame in self._made:
            yield label(frame, f"{self._optimizers} made here, without them")
            for line, name in self._handed_to_nobody(frame):
                yield label(
                    Frame(frame.path, line, frame.function, frame.first_line),
                    f"`{name}` is filled from here on and handed to nothing",
                )
        for frame in built:
            yield label(frame, "made here")
        yield label(self._frame, "fills their gradients")

    def _handed_to_nobody(self, frame: Frame) -> Iterator[tuple[int, str]]:
        """Yields the lines at which the function that makes the optimizer begins what it never uses."""
        function = self._facts.sources.function(frame)
        if function is None:
            return
        begun: dict[str, int] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _gathers(node.value):
                for target in node.targets:
                    if isinstance(target, ast.Name) and node.lineno < frame.line:
                        begun[target.id] = max(begun.get(target.id, 0), node.lineno)
        for name, line in begun.items():
            if not _used_after(function, name, line):
                yield line, name

    def _fix(self) -> str:
        found, one = self._found, len(self._found.parameters) == 1
        them = "it" if one else "them"
        if found.reason == "copied":
            return (
                "give the tensor its type and device first and wrap it last, as in "
                "`nn.Parameter(tensor.to(...))`: only what `nn.Parameter` returns is a parameter."
            )
        if found.reason == "unregistered":
            kind = "nn.ModuleList" if self._facts.names.places(found.parameters[0]) else "nn.ParameterList"
            return f"keep {them} in an `{kind}`, so that the module's `parameters()` has {them}."
        at = f" ({place(self._made[0], near=self._frame)})" if self._made else ""
        frozen = f"or freeze {them} with `requires_grad_(False)` if no training is meant"
        if found.optimizers:
            return f"give {them} to {self._facts.names.optimizer(found.optimizers[0])}{at} too, {frozen}."
        return f"give {them} to an optimizer, {frozen}."


def _gathers(value: ast.expr) -> bool:
    """Tells whether an expression begins a collection, or asks for parameters."""
    if isinstance(value, ast.Dict | ast.List | ast.ListComp):
        return True
    asked = (node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute))
    return isinstance(value, ast.Call) and any(attribute.endswith("parameters") for attribute in asked)


def _used_after(function: ast.AST, name: str, line: int) -> bool:
    """Tells whether a name is read below a line, other than to put something into what it names."""
    filled: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            filled.update(id(part) for part in ast.walk(node.value.func))
        elif isinstance(node, ast.Assign):
            filled.update(id(part) for target in node.targets for part in ast.walk(target))
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and node.lineno > line
        and isinstance(node.ctx, ast.Load)
        and id(node) not in filled
        for node in ast.walk(function)
    )


_BAD_LIST = Example(
    title="layers in a plain list",
    code="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4) for _ in range(2)]  # <- GL204
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return self.out(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_FORGOTTEN = Example(
    title="learned weights of two losses that the optimizer doesn't have",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
log_variances = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- GL204
for step in range(4):
    errors = model(torch.randn(16, 4)).pow(2).mean(0)
    loss = (errors * torch.exp(-log_variances) + log_variances).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_BAD_HALF = Example(
    title="an optimizer with one part of the model",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": nn.Linear(4, 8), "decoder": nn.Linear(8, 1)})
optimizer = torch.optim.SGD(model["decoder"].parameters(), lr=0.1)  # <- GL204
for step in range(4):
    loss = model["decoder"](model["encoder"](torch.randn(16, 4)).relu()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_INPUT = Example(
    title="an image that is optimized through a network",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
image = torch.randn(1, 4, requires_grad=True)
optimizer = torch.optim.SGD([image], lr=0.1)
for step in range(4):
    loss = network(image).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_GAN = Example(
    title="a generator's backward that fills the discriminator's gradients",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(4):
    fake = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    criterion(discriminator(fake.detach()), torch.zeros(16, 1)).backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    criterion(discriminator(fake), torch.ones(16, 1)).backward()
    generator_optimizer.step()
""",
)

_GOOD_BY_HAND = Example(
    title="one part is updated by hand",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model, scale = nn.Linear(4, 1), nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = (model(torch.randn(16, 4)) * scale).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scale -= 0.01 * scale.grad
        scale.grad.zero_()
""",
)

_GOOD_FROZEN = Example(
    title="a frozen backbone",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(4):
    loss = head(backbone(torch.randn(16, 4)).relu()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

RULE = Rule(
    code="GL204",
    name="parameter-not-optimized",
    severity="warning",
    since="0.1.0",
    needs=("backward", "optimizer", "operations"),
    check=check,
    bad=(_BAD_LIST, _BAD_FORGOTTEN, _BAD_HALF),
    good=(_GOOD_INPUT, _GOOD_GAN, _GOOD_BY_HAND, _GOOD_FROZEN),
)
