"""Graphs that grow, kept in the ways that people keep things, and those that only look like it."""

import pytest

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train_on(x):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

GROWS = {
    "a total and a list on a trainer": """\
class Trainer:
    def __init__(self):
        self.total = 0
        self.history = {"loss": []}
    def step(self, x):
        loss = train_on(x)
        self.total = self.total + loss  # <-
        self.history["loss"].append(loss)  # <-
trainer = Trainer()
for _ in range(10):
    trainer.step(torch.randn(8, 4))
""",
    "a list in a closure": """\
def make():
    kept = []
    def step(x):
        kept.append(train_on(x))  # <-
    return step
step = make()
for _ in range(10):
    step(torch.randn(8, 4))
""",
    "a replay memory of its own class": """\
from collections import deque
class Memory:
    def __init__(self, size):
        self.items = deque(maxlen=size)
    def push(self, *parts):
        self.items.append(parts)  # <-
def main():
    memory = Memory(1000)
    for _ in range(20):
        state = torch.randn(8, 4)
        memory.push(state, model(state))
        train_on(state)
main()
""",
    "a moving average": """\
average = None
for _ in range(10):
    loss = train_on(torch.randn(8, 4))
    average = loss if average is None else 0.9 * average + 0.1 * loss  # <-
""",
    "a meter": """\
class Meter:
    def __init__(self):
        self.sum, self.count = 0, 0
    def update(self, value, n):
        self.value = value
        self.sum += value * n  # <-
        self.count += n
        self.average = self.sum / self.count
def fit():
    for epoch in range(2):
        meter = Meter()
        for _ in range(8):
            meter.update(train_on(torch.randn(8, 4)), 8)
fit()
""",
    "activations caught by a hook": """\
caught = []
model.register_forward_hook(lambda module, given, result: caught.append(result))  # <-
for _ in range(10):
    train_on(torch.randn(8, 4))
""",
    "a dict by step, and few steps": """\
def fit():
    log = {}
    for step in range(6):
        log[step] = {"loss": train_on(torch.randn(8, 4))}  # <-
fit()
""",
    "the last loss of each epoch": """\
history = []
for epoch in range(8):
    for _ in range(8):
        loss = train_on(torch.randn(8, 4))
    history.append(loss)  # <-
""",
    "a tensor that is filled bit by bit": """\
losses = torch.zeros(12)
for step in range(12):
    losses[step] = train_on(torch.randn(8, 4))  # <-
""",
}

STAYS = {
    "the loss before this one": """\
previous = None
for _ in range(20):
    loss = train_on(torch.randn(8, 4))
    if previous is not None:
        print(previous.item())
    previous = loss
""",
    "the first few": """\
first = []
for _ in range(40):
    loss = train_on(torch.randn(8, 4))
    if len(first) < 6:
        first.append(loss)
""",
    "the best so far": """\
best, losses = None, []
for step in range(48):
    loss = train_on(torch.randn(8, 4))
    if best is None or loss < best:
        best = loss
        losses = [*losses[-2:], loss]
""",
    "a window that slides": """\
window = []
for _ in range(40):
    window.append(train_on(torch.randn(8, 4)))
    window = window[-10:]
""",
    "a loss gathered over the steps of another optimizer, for one backward": """\
outer = nn.Linear(4, 1)
outer_optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
for _ in range(4):
    total = 0
    for _ in range(10):
        x = torch.randn(8, 4)
        train_on(x)
        total = total + outer(x).pow(2).mean()
    outer_optimizer.zero_grad()
    total.backward()
    outer_optimizer.step()
""",
    "an episode's log probabilities": """\
for _ in range(10):
    kept = [model(torch.randn(1, 4)).sigmoid().log() for _ in range(12)]
    optimizer.zero_grad()
    torch.stack(kept).sum().neg().backward()
    optimizer.step()
""",
    "what is kept without its graph": """\
kept, total = [], 0.0
for _ in range(10):
    loss = train_on(torch.randn(8, 4))
    kept.append(loss.detach())
    total += loss.item()
""",
}


def lines(code: str) -> list[int]:
    return [number for number, line in enumerate(code.splitlines(), 1) if line.endswith("# <-")]


@pytest.mark.parametrize("body", GROWS.values(), ids=GROWS)
def test_what_grows_is_told_at_the_line_that_keeps_it(run, body: str) -> None:
    judged = run(HEAD + body)
    assert judged.found == [("GL104", line) for line in lines(HEAD + body)]


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_what_stays_is_silent(run, body: str) -> None:
    assert run(HEAD + body).found == []


def test_it_says_how_much_and_how_to_write_it(run) -> None:
    finding = run(HEAD + GROWS["a dict by step, and few steps"]).only("GL104")
    assert "`log` keeps tensors with their graphs (`['loss']` of each item)" in finding.message
    assert "nodes after 6 steps" in finding.message
    assert "detach" in finding.fix
    total = HEAD + "running = 0.0\nfor _ in range(8):\n    running += train_on(torch.randn(8, 4))\n"
    assert run(total).only("GL104").fix == (
        "write `running += train_on(torch.randn(8, 4)).item()` (line 14)."
    )


def test_a_state_that_is_carried_on_is_one_finding(run) -> None:
    code = HEAD + (
        "memory = torch.zeros(16, 1)\n"
        "for _ in range(8):\n"
        "    memory = 0.5 * memory + model(torch.randn(16, 4))\n"
        "    optimizer.zero_grad()\n"
        "    memory.pow(2).mean().backward(retain_graph=True)\n"
        "    optimizer.step()\n"
    )
    judged = run(code)
    assert judged.found == [("GL104", 14)]
    assert "memory = memory.detach()" in judged.only("GL104").fix
    assert "takes longer than the last" in judged.only("GL104").message


METER = """\
class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


meter = Meter()
for _ in range(10):
    loss = train_on(torch.randn(8, 4))
    meter.update(loss)
"""


def test_a_meter_s_caller_is_shown_too(run) -> None:
    code = HEAD + METER
    finding = run(code).only("GL104")
    texts = {label.line: label.text for label in finding.labels}
    assert texts[code.splitlines().index("    meter.update(loss)") + 1].endswith("by way of this call")
    assert finding.line == code.splitlines().index("        self.values.append(value)") + 1
