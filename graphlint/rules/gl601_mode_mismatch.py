"""Training with modules left in eval mode, or evaluating in train mode.

## What it does

Reports a model that is trained in eval mode because an evaluation called `eval()` and nothing called
`train()` after it, and a model that is evaluated in train mode: under `no_grad`, on data that nothing is
trained on, with the result measured. Both only where a layer of the model depends on the mode.

## Why it matters

In eval mode dropout drops nothing, and batch normalisation uses running statistics that it no longer
updates: from the first evaluation on, the run trains another model than before. In train mode the measured
result is that of a model with values dropped at random, and each evaluated batch goes into the running
statistics. Nothing crashes, and the loss looks plausible.

## Example

    for step in range(1, steps + 1):
        train_step(model)
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                print(loss_of(model, held_out))

## Use instead

    for step in range(1, steps + 1):
        train_step(model)
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                print(loss_of(model, held_out))
            model.train()

## Known limits

Known are torch's own layers: dropout with a rate above 0, batch and instance normalisation that keep running
statistics, recurrent layers and attention with dropout. What a module of your own makes of `self.training`
isn't known. Parts that are put into eval mode by themselves (frozen batch normalisation) are taken as meant,
and so is a model that is in eval mode from the start.
"""

from collections.abc import Iterator, Sequence

from graphlint.analysis.facts import Facts
from graphlint.analysis.modefaults import EvaluatedInTrain, LeftInEval, ModeFaults
from graphlint.analysis.modelcalls import function
from graphlint.analysis.wording import listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule
from graphlint.record.events import ModuleCall
from graphlint.record.tables import Frame


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields a sighting for each training call in eval mode, and each evaluating call in train mode."""
    faults = ModeFaults(facts)
    for left in faults.left_in_eval():
        frame = facts.graphs.frame(left.turned.site)
        if frame is not None:
            yield _left_in_eval(facts, left, frame)
    for evaluated in faults.evaluated_in_train():
        frame = facts.model_calls.own_frame(evaluated.evaluation)
        if frame is not None:
            yield _evaluated_in_train(facts, evaluated, frame)


def _kinds(facts: Facts, layers: Sequence[ModuleCall], by_mode: str) -> list[str]:
    rows = [facts.trace.modules[layer.module] for layer in layers]
    return list(dict.fromkeys(row.type for row in rows if row.by_mode == by_mode))


def _verb(kinds: list[str], one: str, several: str) -> str:
    return f"{listed(kinds)} {one if len(kinds) == 1 else several}"


def _left_in_eval(facts: Facts, left: LeftInEval, frame: Frame) -> Occurrence:
    model = facts.names.module(left.turned.module, frame.function)
    effects = []
    if dropping := _kinds(facts, left.layers, "dropout"):
        effects.append(_verb(dropping, "drops nothing", "drop nothing"))
    if counting := _kinds(facts, left.layers, "statistics"):
        effects.append(
            _verb(counting, "goes by running statistics that stay", "go by running statistics that stay")
            + " as they are"
        )
    before = " It was trained in train mode before." if left.earlier is not None else ""
    bare = facts.names.module_name(left.turned.module, frame.function) or "model"
    return Occurrence(
        message=(
            f"{model} is trained in eval mode: it was turned to it for an evaluation ({place(frame)}), and "
            f"nothing turns it back.{before} Meanwhile its {listed(effects)}."
        ),
        labels=distinct(_left_labels(facts, left, frame, model)),
        fix=f"call `{bare}.train()` when the evaluation is over, or at the start of every training step.",
        step=facts.steps.step_of(left.backward.serial),
        last_step=facts.steps.last_step(left.backward.serial),
        cause=(*map(str, function(frame)), "left in eval mode"),
        severity="error" if left.earlier is not None else None,
    )


def _left_labels(facts: Facts, left: LeftInEval, frame: Frame, model: str) -> Iterator[Label]:
    yield label(frame, f"turns {model} to eval mode, and nothing turns it back")
    evaluated = facts.graphs.common_frame(left.evaluation.site, left.turned.site)
    if evaluated is not None:
        yield label(evaluated, "evaluates it")
    called = facts.graphs.common_frame(left.training.site, left.backward.site)
    if called is not None:
        yield label(called, "calls it in eval mode")
    inner = facts.graphs.frame(left.training.site)
    if inner is not None:
        yield label(inner, "in eval mode here too")
    trains = facts.graphs.frame(left.backward.site)
    if trains is not None:
        yield label(trains, "trains what it computed in eval mode")


def _evaluated_in_train(facts: Facts, found: EvaluatedInTrain, frame: Frame) -> Occurrence:
    model = facts.names.module(found.evaluation.module, frame.function)
    effects = []
    if dropping := _kinds(facts, found.layers, "dropout"):
        effects.append(_verb(dropping, "drops", "drop") + " values at random")
    if counting := _kinds(facts, found.layers, "statistics"):
        effects.append(
            _verb(counting, "goes", "go") + " by this batch alone and takes it into the running statistics"
            if len(counting) == 1
            else _verb(counting, "goes", "go")
            + " by this batch alone and take it into the running statistics"
        )
    bare = facts.names.module_name(found.evaluation.module, frame.function) or "model"
    return Occurrence(
        message=(
            f"{model} is evaluated in train mode: its {listed(effects)}, so what is measured is not what the "
            "trained model does."
        ),
        labels=distinct(_evaluated_labels(facts, found, frame, model)),
        fix=f"call `{bare}.eval()` before the evaluation, and `{bare}.train()` after it.",
        step=facts.steps.step_of(found.evaluation.serial),
        cause=(*map(str, function(frame)), "evaluated in train mode"),
    )


def _evaluated_labels(facts: Facts, found: EvaluatedInTrain, frame: Frame, model: str) -> Iterator[Label]:
    yield label(frame, f"evaluates {model} in train mode")
    inner = facts.graphs.frame(found.evaluation.site)
    if inner is not None:
        yield label(inner, "in train mode here")
    measured = facts.graphs.common_frame(found.read.site, found.evaluation.site)
    if measured is not None:
        yield label(measured, "what is measured is read here")
    turned = facts.graphs.frame(found.turned.site) if found.turned is not None else None
    if turned is not None:
        yield label(turned, "train mode was set here last")


_BAD = Example(
    title="a periodic evaluation that leaves eval mode on",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x_test, y_test = torch.randn(32, 4), torch.randn(32, 1)
for step in range(12):
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        model.eval()  # <- GL601
        with torch.no_grad():
            print(step, (model(x_test) - y_test).pow(2).mean().item())
""",
)

_BAD_HELPER = Example(
    title="a validation helper that leaves eval mode on for the epochs that follow",
    code="""\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def accuracy(net, loader):
    net.eval()  # <- GL601
    return sum((net(x).argmax(1) == y).sum().item() for x, y in loader)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
training = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(3, (40,))), batch_size=8)
held_out = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(3, (16,))), batch_size=8)
net.train()
for epoch in range(3):
    for x, y in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    print(epoch, accuracy(net, held_out))
""",
)

_BAD_TRAIN = Example(
    title="a test loop in train mode",
    code=_BAD_HELPER.code.replace("    net.eval()  # <- GL601\n", "").replace(
        "    return sum((net(x).argmax(1) == y).sum().item() for x, y in loader)",
        """\
    hits = 0
    for x, y in loader:
        hits += (net(x).argmax(1) == y).sum().item()  # <- GL601
    return hits""",
    ),
)

_GOOD = Example(
    title="train mode is set again after the evaluation",
    code=_BAD.code.replace("  # <- GL601", "") + "        model.train()\n",
)

_GOOD_HARMLESS = Example(
    title="eval mode left on where no layer depends on it",
    code=_BAD.code.replace("  # <- GL601", "")
    .replace("nn.BatchNorm1d(16)", "nn.LayerNorm(16)")
    .replace("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
)

_GOOD_FROZEN = Example(
    title="batch normalisation kept in eval mode on purpose",
    code="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def train(self, mode=True):
        super().train(mode)
        self.body[1].eval()
        return self

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    net.train()
    loss = (net(torch.randn(16, 4)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        net.eval()
        with torch.no_grad():
            print(net(torch.randn(16, 4)).mean().item())
""",
)

_GOOD_SAMPLING = Example(
    title="a generator in train mode that paints pictures under no_grad",
    code="""\
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
fixed = torch.randn(8, 2)
for step in range(6):
    loss = (generator(torch.randn(16, 2)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        print(step, generator(fixed).numpy().mean())
""",
)

RULE = Rule(
    code="GL601",
    name="mode-mismatch",
    severity="warning",
    since="0.1.0",
    needs=("backward", "modules", "operations", "modes", "batches"),
    check=check,
    bad=(_BAD, _BAD_HELPER, _BAD_TRAIN),
    good=(_GOOD, _GOOD_HARMLESS, _GOOD_FROZEN, _GOOD_SAMPLING),
)
