"""Clips that no step feels, as people write them, and the clips that look alike and are right."""

import pytest

from graphlint.rules.gl308_clip_misplaced import RULE
from graphlint.testing import Case, cases

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(net=model):
    return net(torch.randn(3, 4)).square().mean()


"""

BAD = {
    "by value, after the step": """
for _ in range(4):
    loss = loss_of()
    loss.backward()
    optimizer.step()
    clip_grad_value_(model.parameters(), 0.5)  # here
    optimizer.zero_grad()
""",
    "after the gradients are cleared at the end": """
for _ in range(4):
    loss_of().backward()
    optimizer.step()
    optimizer.zero_grad()
    clip_grad_norm_(model.parameters(), 0.5)  # here
""",
    "cleared to zeros": """
for _ in range(4):
    optimizer.zero_grad(set_to_none=False)
    clip_grad_norm_(model.parameters(), 0.5)  # here
    loss_of().backward()
    optimizer.step()
""",
    "once an epoch, after the last step": """
for epoch in range(3):
    for _ in range(3):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    clip_grad_norm_(model.parameters(), 0.5)  # here
""",
    "before the other loss is differentiated": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)  # here
    (10 * loss_of()).backward()
    optimizer.step()
""",
    "in a helper that is called too late": """
def finish():
    optimizer.step()
    clip_grad_norm_(model.parameters(), max_norm=0.5)  # here


for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    finish()
""",
    "of one of two networks": """
critic = nn.Linear(4, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(4):
    critic_optimizer.zero_grad()
    loss_of(critic).backward()
    clip_grad_norm_(critic.parameters(), 0.5)
    critic_optimizer.step()
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 0.5)  # here
""",
    "after a step through a scaler": """
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    clip_grad_norm_(model.parameters(), 0.5)  # here
    scaler.update()
""",
    "by hand, after the step": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    for p in model.parameters():
        p.grad.data.clamp_(-1, 1)  # here
""",
    "before it is unscaled by hand": """
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    clip_grad_norm_(model.parameters(), 0.5)  # here
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
}

GOOD = {
    "two optimizers, one clip": """
other = nn.Linear(4, 2)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    other_optimizer.zero_grad()
    (loss_of() + loss_of(other)).backward()
    clip_grad_norm_([*model.parameters(), *other.parameters()], 0.5)
    optimizer.step()
    other_optimizer.step()
""",
    "a step at the start of the next round": """
for _ in range(4):
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    loss_of().backward()
""",
    "a part of the network": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_([model.weight], 0.5)
    optimizer.step()
""",
    "by hand, before the step": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    for p in model.parameters():
        p.grad.data.clamp_(-1, 1)
    optimizer.step()
""",
    "by hand, and then used by hand": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    for p in model.parameters():
        p.grad.clamp_(-1, 1)
        p.data -= 0.1 * p.grad
""",
    "inside a closure": """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)


def closure():
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.5)
    return loss


for _ in range(3):
    optimizer.step(closure)
""",
    "each loss clipped, then their sum": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
""",
    "weights clipped, not gradients": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    for p in model.parameters():
        p.data.clamp_(-0.01, 0.01)
""",
    "a worker's gradients handed to the shared model": """
shared = nn.Linear(4, 2)
shared_optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)
del optimizer
for _ in range(4):
    model.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    for mine, theirs in zip(model.parameters(), shared.parameters()):
        theirs.grad = mine.grad.clone()
    shared_optimizer.step()
    model.load_state_dict(shared.state_dict())
""",
    "clipped, averaged by hand, used": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    for p in model.parameters():
        p.grad = p.grad / 2
    optimizer.step()
""",
    "a loss that is not finite is left out now and then": """
for i in range(8):
    optimizer.zero_grad()
    loss_of().backward()
    norm = clip_grad_norm_(model.parameters(), 0.5)
    if i % 2 == 0:
        optimizer.zero_grad()
        continue
    optimizer.step()
""",
    "the critic is clipped each time, the generator steps seldom": """
critic = nn.Linear(2, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for i in range(9):
    critic_optimizer.zero_grad()
    optimizer.zero_grad()
    critic(model(torch.randn(3, 4))).mean().backward()
    clip_grad_norm_(critic.parameters(), 0.5)
    clip_grad_norm_(model.parameters(), 0.5)
    if i % 3 == 2:
        optimizer.step()
    else:
        critic_optimizer.step()
""",
    "steps that the scaler leaves out": """
scaler = torch.amp.GradScaler("cpu")
for i in range(6):
    optimizer.zero_grad()
    scaler.scale(loss_of() * (float("inf") if i < 4 else 1)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
""",
    "a limit that is scaled as well": """
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    clip_grad_norm_(model.parameters(), 0.5 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    "a scaler that is switched off": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
""",
    "a clip that is there twice, once where it belongs": """
for _ in range(4):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    clip_grad_norm_(model.parameters(), 0.5)
""",
    "sharpness-aware steps": """
for _ in range(3):
    optimizer.zero_grad()
    loss_of().backward()
    clip_grad_norm_(model.parameters(), 0.5)
    steps = [0.05 * p.grad for p in model.parameters()]
    with torch.no_grad():
        for p, e in zip(model.parameters(), steps):
            p.add_(e)
    optimizer.zero_grad()
    loss_of().backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), steps):
            p.sub_(e)
    optimizer.step()
""",
    "the script ends after it": """
optimizer.zero_grad()
loss_of().backward()
optimizer.step()
clip_grad_norm_(model.parameters(), 0.5)
""",
}


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", BAD)
def test_misplaced(run, name) -> None:
    code = HEAD + BAD[name]
    (marked,) = [number for number, line in enumerate(code.split("\n"), 1) if line.endswith("# here")]
    assert run(code).found == [("GL308", marked)]


@pytest.mark.parametrize("name", GOOD)
def test_in_its_place(run, name) -> None:
    assert run(HEAD + GOOD[name], "GL308").found == []


def test_torch_refuses_to_clip_nothing_by_value(run) -> None:
    code = HEAD + "loss = loss_of()\nclip_grad_value_(model.parameters(), 0.5)\nloss.backward()\n"
    finding = run(code).only("GL308")
    assert finding.severity == "error"
    assert "before any backward" in finding.message


def test_what_it_says(run) -> None:
    judged = run(HEAD + BAD["by value, after the step"])
    finding = judged.only("GL308")
    first = HEAD.count("\n") + 2
    assert judged.lines("GL308") == [first + 4, first + 3, first + 2, first + 5]
    assert "`optimizer.step()` (line 18) has used already" in finding.message
    assert finding.fix == "clip between `loss.backward()` (line 17) and `optimizer.step()` (line 18)."


def test_what_it_says_of_scaled_gradients(run) -> None:
    finding = run(HEAD + BAD["before it is unscaled by hand"]).only("GL308")
    assert finding.severity == "error"
    assert finding.fix.startswith("move `scaler.unscale_(optimizer)` (line 20) before it")


TWO_NETWORKS = """\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(8, 4)
    critic_optimizer.zero_grad()
    critic(x).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
    critic_optimizer.step()
    actor_optimizer.zero_grad()
    actor(x).pow(2).mean().backward()
    nn.utils.clip_grad_norm_({clipped}.parameters(), 0.5)
    actor_optimizer.step()
"""


def test_the_other_network_is_clipped(run) -> None:
    finding = run(TWO_NETWORKS.replace("{clipped}", "critic")).only("GL308")
    assert finding.line == 16
    assert finding.message == (
        "`nn.utils.clip_grad_norm_(critic.parameters(), 0.5)` clips gradients that `critic_optimizer.step()` "
        "(line 13) has used already. `actor_optimizer.step()` (line 17) comes next, and uses those of "
        "`actor`, which nothing clips."
    )
    assert finding.fix == "give the parameters of `actor` to this call."
    assert 17 in [label.line for label in finding.labels]


def test_each_network_s_own_clip_is_right(run) -> None:
    assert run(TWO_NETWORKS.replace("{clipped}", "actor"), "GL308").found == []


def test_a_second_look_at_a_norm_after_the_step_is_silent(run) -> None:
    code = TWO_NETWORKS.replace("{clipped}", "actor") + (
        "    nn.utils.clip_grad_norm_(critic.parameters(), 0.5)\n"
    )
    assert run(code, "GL308").found == []
