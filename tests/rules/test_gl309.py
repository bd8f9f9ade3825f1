"""Schedulers that step before their optimizer, and the early steps that are meant."""

import pytest

from graphlint.rules.gl309_scheduler_before_optimizer import RULE
from graphlint.testing import Case, cases

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning"),
]

HEAD = """\
import torch
from torch import nn
from torch.optim import lr_scheduler

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(net=model):
    return net(torch.randn(3, 4)).square().mean()


def train(net=model, opt=optimizer, batches=3):
    for _ in range(batches):
        opt.zero_grad()
        loss_of(net).backward()
        opt.step()


"""

BAD = {
    "a cosine, at the start of the epoch": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10)
for epoch in range(4):
    scheduler.step()  # here
    train()
""",
    "several optimizers, each scheduler first": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
other_scheduler = lr_scheduler.ReduceLROnPlateau(other_optimizer)
for epoch in range(4):
    scheduler.step()  # here
    train()
    train(other, other_optimizer)
    other_scheduler.step(1.0)
""",
    "a warm-up with another scheduler after it": """
scheduler = lr_scheduler.SequentialLR(
    optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.StepLR(optimizer, 1)], [2]
)
for epoch in range(4):
    scheduler.step()  # here
    train()
""",
    "chained": """
scheduler = lr_scheduler.ChainedScheduler(
    [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
)
for epoch in range(4):
    scheduler.step()  # here
    train()
""",
    "a trainer's hook": """
class Trainer:
    def __init__(self):
        self.scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)

    def on_epoch_start(self):
        self.scheduler.step()  # here

    def fit(self):
        for _ in range(3):
            self.on_epoch_start()
            train()


Trainer().fit()
""",
    "in each step, with a scaler": """
scaler = torch.amp.GradScaler("cpu")
scheduler = lr_scheduler.LambdaLR(optimizer, lambda i: 0.9**i)
for _ in range(6):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scheduler.step()  # here
    scaler.step(optimizer)
    scaler.update()
""",
    "the generator's, in the same step as the critic's": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for _ in range(5):
    train(other, other_optimizer, 1)
    optimizer.zero_grad()
    loss_of().backward()
    scheduler.step()  # here
    optimizer.step()
""",
    "the generator's, before its backward": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for _ in range(12):
    train(other, other_optimizer, 1)
    scheduler.step()  # here
    train(batches=1)
""",
    "handed to whoever calls it": """
scheduler = lr_scheduler.StepLR(optimizer, 2)
callbacks = {"start": [scheduler.step], "end": []}  # here
for epoch in range(3):
    for callback in callbacks["start"]:
        callback()
    train()
""",
    "the momentum schedule of a cycle": """
scheduler = lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False)
for _ in range(8):
    scheduler.step()  # here
    train(batches=1)
""",
}

GOOD = {
    "at the end of each step": """
scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10)
for _ in range(8):
    train(batches=1)
    scheduler.step()
""",
    "at the start of every epoch but the first": """
scheduler = lr_scheduler.StepLR(optimizer, 2)
for epoch in range(4):
    if epoch:
        scheduler.step()
    train()
""",
    "one call before the loop": """
scheduler = lr_scheduler.StepLR(optimizer, 2)
scheduler.step()
for epoch in range(4):
    train()
    scheduler.step()
""",
    "a rate of zero skipped": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 4))
for epoch in range(4):
    scheduler.step()
    train()
""",
    "by a metric that is measured first": """
scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(4):
    scheduler.step(1.0 / (epoch + 1))
    train()
""",
    "warm restarts told the fraction of the epoch": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)
for epoch in range(3):
    for i in range(4):
        scheduler.step(epoch + i / 4)
        train(batches=1)
""",
    "set to the epoch that a run goes on with": """
scheduler = lr_scheduler.StepLR(optimizer, 2)
for epoch in range(5, 9):
    scheduler.step(epoch)
    train()
""",
    "a run that goes on with loaded state": """
before = lr_scheduler.StepLR(optimizer, 2)
train()
before.step()
state = before.state_dict()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
scheduler.load_state_dict(state)
for epoch in range(4):
    train(opt=optimizer)
    scheduler.step()
""",
    "rates drawn before training": """
scheduler = lr_scheduler.StepLR(optimizer, 2)
rates = []
for epoch in range(4):
    rates.append(scheduler.get_last_lr())
    scheduler.step()
""",
    "an optimizer that starts late": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler, other_scheduler = lr_scheduler.StepLR(optimizer, 2), lr_scheduler.StepLR(other_optimizer, 2)
for epoch in range(5):
    train(other, other_optimizer)
    if epoch > 0:
        train()
    scheduler.step()
    other_scheduler.step()
""",
    "an optimizer that starts late, and then comes first": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for epoch in range(6):
    if epoch > 0:
        train()
    train(other, other_optimizer)
    scheduler.step()
""",
    "accumulated gradients, a scheduler for each batch": """
scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=20)
for i in range(12):
    (loss_of() / 4).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
""",
    "a wrapper that steps another optimizer": """
class Twice(torch.optim.Optimizer):
    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    def finish(self):
        self.base.step()


wrapper = Twice(optimizer)
scheduler = lr_scheduler.StepLR(wrapper, 2)
for epoch in range(3):
    wrapper.zero_grad()
    loss_of().backward()
    wrapper.finish()
    scheduler.step()
""",
    "steps that the scaler leaves out": """
scaler = torch.amp.GradScaler("cpu")
scheduler = lr_scheduler.StepLR(optimizer, 2)
for i in range(6):
    optimizer.zero_grad()
    scaler.scale(loss_of() * (float("inf") if i == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
""",
    "two that are right": """
first, second = lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)
for epoch in range(3):
    train()
    first.step()
    second.step()
""",
}


CUT_SHORT = {
    "gradients of two batches, a scheduler for each batch": """
scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=20)
for i in range(20):
    (loss_of() / 2).backward()
    if i % 2 == 1:
        optimizer.step()
        if i == 7:
            raise RuntimeError("stopped")
        optimizer.zero_grad()
    scheduler.step()
""",
    "the generator at every other batch": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for i in range(20):
    train(other, other_optimizer, batches=1)
    if i % 2 == 1:
        train(batches=1)
        if i == 7:
            raise RuntimeError("stopped")
    scheduler.step()
""",
    "an optimizer that starts late": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for epoch in range(5):
    train(other, other_optimizer)
    if epoch > 0:
        train()
        if epoch == 3:
            raise RuntimeError("stopped")
    scheduler.step()
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", BAD)
def test_too_early(run, name) -> None:
    code = HEAD + BAD[name]
    (marked,) = [number for number, line in enumerate(code.split("\n"), 1) if line.endswith("# here")]
    assert run(code).found == [("GL309", marked)]


@pytest.mark.parametrize("name", GOOD)
def test_meant(run, name) -> None:
    assert run(HEAD + GOOD[name], "GL309").found == []


@pytest.mark.parametrize("name", CUT_SHORT)
def test_a_run_that_was_cut_short(run, name) -> None:
    assert run(HEAD + CUT_SHORT[name], "GL309").found == []


@pytest.mark.parametrize("where", ["scheduler.step()\n    train()", "train(step=scheduler.step)"])
def test_too_early_in_a_run_that_was_cut_short(run, where) -> None:
    code = f"""
def train(step=lambda: None):
    optimizer.zero_grad()
    loss_of().backward()
    step()
    optimizer.step()


scheduler = lr_scheduler.StepLR(optimizer, 2)
for i in range(4):
    {where}
raise RuntimeError("stopped")
"""
    assert [code for code, _ in run(HEAD + code, "GL309").found] == ["GL309"]


def test_what_it_says(run) -> None:
    judged = run(HEAD + BAD["a trainer's hook"])
    finding = judged.only("GL309")
    assert finding.message == (
        "`self.scheduler.step()` comes before `opt.step()` (line 18) from the first round on. The "
        "first value of its schedule, a learning rate of 0.1, is never used: the first step is taken with a "
        "learning rate of 0.09."
    )
    assert finding.fix == (
        "step the scheduler at the end of the round, after the last `opt.step()` (line 18)."
    )


def test_what_it_says_of_a_single_step(run) -> None:
    finding = run(HEAD + BAD["the generator's, in the same step as the critic's"]).only("GL309")
    first = HEAD.count("\n") + 1
    assert finding.fix == f"call `scheduler.step()` after `optimizer.step()` (line {first + 9})."


def test_the_call_in_the_loop_is_shown_too(run) -> None:
    code = HEAD + (
        "scheduler = lr_scheduler.StepLR(optimizer, 2)\n"
        "def update_rates():\n    scheduler.step()\n"
        "for epoch in range(4):\n    update_rates()\n    loss_of().backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    finding = run(code).only("GL309")
    lines = code.splitlines()
    assert finding.line == lines.index("    scheduler.step()") + 1
    assert lines.index("    update_rates()") + 1 in [label.line for label in finding.labels]
