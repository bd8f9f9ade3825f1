"""Gradient scalers used against what they expect, and the ways of using them that are right."""

import pytest

from graphlint.rules.gl310_amp_misuse import RULE
from graphlint.testing import Case, cases

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)


def loss_of(net=model):
    return net(torch.randn(3, 4)).square().mean()


"""

BAD = {
    "one of two losses unscaled": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    penalty = model.weight.abs().sum()
    penalty.backward()  # here
    scaler.step(optimizer)
    scaler.update()
""",
    "nothing was ever scaled": """
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()  # here
    scaler.step(optimizer)
    scaler.update()
""",
    "the scaled loss is thrown away": """
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    scaled = scaler.scale(loss)
    loss.backward()  # here
    scaler.step(optimizer)
    scaler.update()
""",
    "a step past the scaler, updated all the same": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    optimizer.step()  # here
    scaler.update()
""",
    "one optimizer of two past the scaler": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.Adam(other.parameters())
for _ in range(3):
    optimizer.zero_grad()
    other_optimizer.zero_grad()
    scaler.scale(loss_of() + loss_of(other)).backward()
    scaler.step(optimizer)
    other_optimizer.step()  # here
    scaler.update()
""",
    "a second step in a round": """
for _ in range(3):
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of()).backward()
        scaler.step(optimizer)  # here
    scaler.update()
""",
    "no update, unscaled for the clip": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # here
""",
    "unscaled after each of the accumulated backwards": """
for i in range(4):
    scaler.scale(loss_of() / 2).backward()
    scaler.unscale_(optimizer)  # here
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "unscaled after the step": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)  # here
    scaler.update()
""",
    "updated before the step": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    scaler.update()  # here
    scaler.step(optimizer)
""",
    "unscaled before the last backward": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)  # here
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "updated in every round of an accumulation": """
for i in range(4):
    scaler.scale(loss_of() / 2).backward()
    if i % 2:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()  # here
""",
    "old name": """
import warnings

warnings.simplefilter("ignore")
scaler = torch.cpu.amp.GradScaler()
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    optimizer.step()  # here
""",
}

GOOD = {
    "two scalers": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=1e-6)
other_scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    for net, opt, scale in ((model, optimizer, scaler), (other, other_optimizer, other_scaler)):
        opt.zero_grad()
        scale.scale(loss_of(net)).backward()
        scale.step(opt)
        scale.update()
""",
    "several losses, all scaled": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.scale(model.weight.abs().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "divided and added up after scaling": """
for _ in range(3):
    optimizer.zero_grad()
    total = scaler.scale(loss_of()) / 2 + scaler.scale(loss_of()) / 2
    total.backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "one optimizer with the scaler, one without": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    other_optimizer.zero_grad()
    loss_of(other).backward()
    other_optimizer.step()
""",
    "the generator's loss fills the critic, which is cleared": """
critic = nn.Linear(2, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=1e-6)
for _ in range(3):
    critic_optimizer.zero_grad()
    scaler.scale(critic(model(torch.randn(3, 4)).detach()).mean()).backward()
    scaler.step(critic_optimizer)
    optimizer.zero_grad()
    scaler.scale(critic(model(torch.randn(3, 4))).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "steps that it leaves out": """
for i in range(5):
    optimizer.zero_grad()
    scaler.scale(loss_of() * (float("inf") if i < 3 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "scaled by hand": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(torch.zeros(()))
    (loss_of() * scaler.get_scale()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "a gradient penalty of scaled gradients": """
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    inverse = 1.0 / scaler.get_scale()
    penalty = sum((g * inverse).square().sum() for g in grads)
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "switched off, and used in whatever order": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.step(optimizer)
""",
    "unscaled twice, with an update between": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    if not all(p.grad.isfinite().all() for p in model.parameters()):
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    "many steps": """
for _ in range(12):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a fused optimizer": """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
for _ in range(5):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", BAD)
def test_misused(run, name) -> None:
    code = HEAD + BAD[name]
    (marked,) = [number for number, line in enumerate(code.split("\n"), 1) if line.endswith("# here")]
    judged = run(code)
    assert judged.found == [("GL310", marked)]
    finding = judged.only("GL310")
    assert finding.severity == "error"
    assert finding.fix.endswith(".")


@pytest.mark.parametrize("name", GOOD)
def test_used_well(run, name) -> None:
    assert run(HEAD + GOOD[name], "GL308", "GL310").found == []


def test_what_it_says_of_an_unscaled_loss(run) -> None:
    finding = run(HEAD + BAD["the scaled loss is thrown away"]).only("GL310")
    assert finding.message.startswith("`loss.backward()` differentiates `loss` unscaled, but `scaler.step(")
    assert finding.fix == "call `scaler.scale(loss).backward()` instead."


def test_what_it_says_of_a_missing_update(run) -> None:
    judged = run(HEAD + BAD["no update, unscaled for the clip"])
    finding = judged.only("GL310")
    assert (
        "comes between `scaler.step(optimizer)` and `scaler.unscale_(optimizer)` (line 18)" in finding.message
    )
    assert judged.lines("GL310") == [20, 18]
