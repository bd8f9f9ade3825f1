"""What the graph rules say of a script must be true of it, and the remedy must be one for it."""

HEAD = """\
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
"""


def test_values_that_numpy_takes_out_of_torch(run):
    judged = run(
        HEAD
        + """\
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
out = net(torch.randn(5, 4)).detach().numpy()
loss = torch.from_numpy(np.abs(out)).mean()
loss.backward()
"""
    )
    found = judged.only("GL202")
    assert judged.lines("GL202") == [10, 8]
    assert "were read out of torch before" in found.message
    assert found.fix.startswith("keep the values in tensors between line 8 and `loss`")


def test_a_sample_that_torch_draws_without_gradients(run):
    judged = run(
        HEAD
        + """\
policy, critic = nn.Linear(4, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD(policy.parameters(), 0.1)
for step in range(3):
    chosen = torch.distributions.Normal(policy(torch.randn(5, 4)), 1.0).sample()
    loss = critic(chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert judged.lines("GL201") == [12, 9, 13]
    assert judged.only("GL201").fix == "use a call that keeps the gradient (rsample) at line 9."


def test_gradients_left_off_by_a_function(run):
    judged = run(
        HEAD
        + """\
net = nn.Linear(4, 1)


def validate():
    torch.set_grad_enabled(False)
    return net(torch.randn(5, 4)).mean().item()


validate()
loss = net(torch.randn(5, 4)).pow(2).mean()
try:
    loss.backward()
finally:
    torch.set_grad_enabled(True)
"""
    )
    assert judged.only("GL202").fix.startswith("switch gradients on again after line 10")


def test_one_parameter_of_a_module_goes_by_its_own_name(run):
    judged = run(
        HEAD
        + """\
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return x * self.scale.data + self.shift


net = nn.Sequential(nn.Linear(4, 6), Scale())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    found = judged.only("GL203")
    assert "`net.1.scale` is used to compute `loss`" in found.message
    assert "leave `net.1.scale` out of `optimizer`" in found.fix


def test_an_optimizer_of_the_model_before_this_one(run):
    judged = run(
        HEAD
        + """\
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net = nn.Linear(4, 1)
for step in range(4):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    found = judged.only("GL205")
    assert "`optimizer` holds 2 parameters of `net` that the model no longer uses" in found.message
    assert "(line 8)" in found.message
    assert found.fix.startswith("make `optimizer` after line 8")


def test_an_optimizer_of_another_model(run):
    judged = run(
        HEAD
        + """\
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(nn.Linear(4, 1).parameters(), 0.1)
for step in range(4):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert "does not reach what `optimizer` trains" in judged.only("GL201").message


def test_weights_clipped_between_a_loss_and_its_backward(run):
    judged = run(
        HEAD
        + """\
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    for parameter in net.parameters():
        parameter.data.clamp_(-0.1, 0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert judged.only("GL105").fix == (
        "write to `net.2.weight` after `loss.backward()`, or before line 9 uses it."
    )


def test_a_carried_graph_that_raises_in_the_end_is_told_once(run):
    judged = run(
        HEAD
        + """\
cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.1)
state = torch.zeros(2, 4)
for step in range(4):
    state = cell(torch.randn(2, 3), state)
    loss = head(state).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""
    )
    assert judged.found == [("GL105", 13)]


def test_a_loss_made_anew_from_the_numbers_of_two(run):
    judged = run(
        HEAD
        + """\
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    out = net(torch.randn(5, 4))
    adv, l1 = out.pow(2).mean(), out.abs().mean()
    print(f"{l1.item():.2f}")
    loss = torch.tensor(adv.item() + 0.1 * l1.item(), requires_grad=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert judged.only("GL201").fix == (
        "build `loss` from `adv` and `l1` themselves, without `.item()` and `torch.tensor` (line 12)."
    )
