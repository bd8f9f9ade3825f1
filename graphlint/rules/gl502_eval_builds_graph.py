"""An evaluation keeps a graph that no backward uses.

## What it does

Reports calls of a model that build an autograd graph while nothing is to be trained: the model is in eval
mode, or its batches come from a loader that nothing is trained on, the results are read, and no backward of
the run enters the graph.

## Why it matters

With gradients on, every layer keeps its inputs for a backward that never comes. An evaluation then takes as
much memory as training does, often runs out of it, and is slower. `model.eval()` does not switch gradients
off.

## Example

    def validate(model, loader):
        model.eval()
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()

## Use instead

    @torch.no_grad()
    def validate(model, loader):
        model.eval()
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()

## Known limits

Calls are seen where the run was recorded in full: in the first steps, and in the first batches of the first
evaluations. A model that is called in eval mode for its gradients (adversarial examples, saliency), or whose
results are detached and used for a loss, is not an evaluation.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.modelcalls import function
from graphlint.analysis.wording import counted, listed
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ModuleCall, StepBoundary
from graphlint.record.tables import Frame

_MEGABYTE = 1024 * 1024


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a sighting for each call of a model that evaluates and builds a graph."""
    finished = facts.trace.end is not None and facts.trace.end.how == "finished"
    last_boundary = max((e.serial for e in facts.trace.events if isinstance(e, StepBoundary)), default=-1)
    for call in facts.model_calls.outermost:
        frame = facts.model_calls.own_frame(call)
        if frame is None or not _builds_a_graph(facts, call):
            continue
        if not (finished or call.end < last_boundary):
            # The run ended before a backward could come.
            continue
        if _evaluates(facts, call):
            yield _occurrence(facts, call, frame)


def _builds_a_graph(facts: Facts, call: ModuleCall) -> bool:
    """Tells whether a call's results carry a graph that no backward entered, nor their values a loss."""
    if not call.grad_mode or call.error is not None or facts.model_calls.entered(call):
        return False
    if not any(True for _ in facts.values.module_parameters(call.module)):
        # A criterion only carries on what the model began.
        return False
    rows = (facts.trace.tensors.get(tensor) for tensor in call.outputs)
    if not any(row is not None and row.requires_grad and not row.leaf for row in rows):
        return False
    return facts.model_calls.nodes(call)[0] > 0 and not facts.model_calls.serves(call)


def _evaluates(facts: Facts, call: ModuleCall) -> bool:
    """Tells whether a call evaluates: by its mode, or by a loader that nothing is trained on."""
    calls = facts.model_calls
    draw = calls.draw(call)
    held_out = draw is not None and draw.loader not in calls.trained_loaders
    read = any(True for _ in calls.reads(call))
    if not call.training:
        return read or held_out
    trained = call.module in calls.trained_modules
    return read and held_out and trained and bool(calls.trained_loaders)


def _occurrence(facts: Facts, call: ModuleCall, frame: Frame) -> Occurrence:
    model = facts.names.module(call.module, frame.function)
    nodes, size = facts.model_calls.nodes(call)
    memory = f", over {size // _MEGABYTE} MB of results" if size >= _MEGABYTE else ""
    mode = "in eval mode" if not call.training else "on batches that nothing is trained on"
    where = f"`{frame.function}`" if frame.function != "<module>" else "the script"
    return Occurrence(
        message=(
            f"{model} is called {mode} with gradients on: each call builds {counted(nodes, 'autograd node')}"
            f"{memory} that no backward uses. What its layers save for a backward is held as long as the "
            f"results are.{_mode_left(facts, call, model)}"
        ),
        labels=distinct(_labels(facts, call, frame)),
        fix=_fix(facts, call, frame, where),
        step=facts.steps.step_of(call.serial),
        cause=(*map(str, function(frame)), "evaluation"),
    )


def _mode_left(facts: Facts, call: ModuleCall, model: str) -> str:
    """Says so where layers that depend on the mode evaluate in train mode."""
    layers = [inner for inner in facts.model_calls.by_mode(call) if inner.training]
    if not call.training or not layers:
        return ""
    kinds = listed([facts.trace.modules[inner.module].type for inner in layers])
    return f" {model} is in train mode besides, so {kinds} change what it computes."


def _fix(facts: Facts, call: ModuleCall, frame: Frame, where: str) -> str:
    model = facts.names.module_name(call.module, frame.function) or "model"
    eval_first = (
        f"call `{model}.eval()` first and `{model}.train()` afterwards, and " if call.training else ""
    )
    if frame.function in {"<module>", "<lambda>"}:
        return f"{eval_first}put the evaluation under `with torch.no_grad():`."
    block = "put its loop under `with torch.no_grad():`"
    return f"{eval_first}decorate {where} with `@torch.no_grad()`, or {block}."


def _labels(facts: Facts, call: ModuleCall, frame: Frame) -> Iterator[Label]:
    model = facts.names.module(call.module, frame.function)
    yield label(frame, f"calls {model} with gradients on")
    inner = facts.graphs.frame(call.site)
    if inner is not None:
        yield label(inner, "the graph is built here")
    turned = facts.model_calls.mode_set(call.module, call.serial)
    place = facts.graphs.frame(turned.site) if turned is not None and not call.training else None
    if place is not None:
        yield label(place, "eval mode begins here; it leaves gradients on")
    for read in facts.model_calls.reads(call):
        at = facts.graphs.common_frame(read.site, call.site)
        if at is not None:
            yield label(at, "only its value is used")
            break


_BAD = Example(
    title="a validation loop in eval mode, with gradients on",
    code="""\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def validate(model, loader):
    model.eval()
    hits = 0
    for x, y in loader:
        scores = model(x)  # <- GL502
        hits += (scores.argmax(1) == y).sum().item()
    model.train()
    return hits


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = TensorDataset(torch.randn(40, 4), torch.randint(3, (40,)))
held_out = TensorDataset(torch.randn(16, 4), torch.randint(3, (16,)))
for epoch in range(2):
    for x, y in DataLoader(training, batch_size=8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, validate(model, DataLoader(held_out, batch_size=8)))
""",
)

_BAD_SAMPLES = Example(
    title="pictures sampled from a generator between steps, with gradients on",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
fixed = torch.randn(8, 2)
for step in range(12):
    loss = (generator(torch.randn(16, 2)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        generator.eval()
        pictures = generator(fixed)  # <- GL502
        print(step, pictures.detach().numpy().mean())
        generator.train()
""",
)

_BAD_BOTH = Example(
    title="a test loop that switches neither gradients off nor to eval mode",
    code="""\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = 0.0
    for x, y in DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8):
        error = (model(x) - y).abs().mean()  # <- GL502
        total += error.item()
    print(epoch, total)
""",
)

_GOOD = Example(
    title="the validation loop under no_grad",
    code=_BAD.code.replace("def validate", "@torch.no_grad()\ndef validate").replace("  # <- GL502", ""),
)

_GOOD_ATTACK = Example(
    title="adversarial examples made in eval mode, by the gradient of the input",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def attack(x, y):
    model.eval()
    x = x.clone().requires_grad_(True)
    loss = nn.functional.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad(loss, x)
    model.train()
    return (x + 0.1 * slope.sign()).detach()


for step in range(6):
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    loss = nn.functional.cross_entropy(model(attack(x, y)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_FROZEN = Example(
    title="a frozen backbone in eval mode, which builds no graph",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU()).eval().requires_grad_(False)
head = nn.Linear(16, 3)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    features = backbone(x)
    print(features.abs().max().item())
    loss = nn.functional.cross_entropy(head(features), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
)

_GOOD_TARGET = Example(
    title="a target network in eval mode whose detached values make the loss",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
online, target = nn.Linear(4, 2), nn.Linear(4, 2)
target.load_state_dict(online.state_dict())
target.eval()
optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
for step in range(6):
    state, following = torch.randn(16, 4), torch.randn(16, 4)
    wanted = 1 + 0.9 * target(following).max(1).values.detach()
    loss = nn.functional.smooth_l1_loss(online(state).max(1).values, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(wanted.mean().item())
""",
)

RULE = Rule(
    code="GL502",
    name="eval-builds-graph",
    severity="warning",
    since="0.1.0",
    needs=("backward", "modules", "operations", "modes"),
    check=check,
    bad=(_BAD, _BAD_SAMPLES, _BAD_BOTH),
    good=(_GOOD, _GOOD_ATTACK, _GOOD_FROZEN, _GOOD_TARGET),
)
