"""What GL101 and GL105 say, word by word: the remedy must be right for the very script."""

GAN = """\
import torch
from torch import nn


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, images, text):
        return torch.sigmoid(self.out(torch.tanh(self.hidden(images + text))))


torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8), Discriminator()
generator_optimizer = torch.optim.Adam(generator.parameters())
discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCELoss()
text_embeddings = torch.randn(16, 8)
for step in range(2):
    fake_images = generator(torch.randn(16, 4))
    discriminator_optimizer.zero_grad()
    fake_predictions = discriminator(fake_images, text_embeddings)
    discriminator_loss = criterion(fake_predictions, torch.zeros(16, 1))
    discriminator_loss.backward()
    discriminator_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(fake_predictions, torch.ones(16, 1))
    generator_loss.backward()
    generator_optimizer.step()
"""


def test_the_whole_story_of_reused_predictions(run):
    judged = run(GAN)
    assert judged.found == [("GL101", 30)]
    finding = judged.only("GL101")
    assert finding.message == (
        "`generator_loss.backward()` enters a graph that `discriminator_loss.backward()` has already freed."
    )
    assert [(label.line, label.text) for label in finding.labels] == [
        (30, "entered again here: torch raises, and `generator` gets no gradient"),
        (24, "built here: 7 nodes, `fake_predictions`"),
        (26, "freed here (step 0)"),
    ]
    assert finding.fix == (
        "build `discriminator_loss` from `fake_images.detach()`, as it isn't there to train `generator`; "
        "then call `discriminator(fake_images, text_embeddings)` again after line 27, not detached, and "
        "build `generator_loss` from that. retain_graph=True would not help: "
        "`discriminator_optimizer.step()` (line 27) changes `discriminator.out.weight` in place, which the "
        "retained graph needs."
    )


def test_when_the_first_pass_was_detached_calling_it_again_is_enough(run):
    code = GAN.replace("discriminator(fake_images, text", "discriminator(fake_images.detach(), text")
    judged = run(code)
    assert judged.found == [("GL101", 30), ("GL201", 30)]
    fix = judged.only("GL101").fix
    assert fix.startswith(
        "call `discriminator(fake_images.detach(), text_embeddings)` again after line 27 and build "
        "`generator_loss` from that. Without the cut at line 24 this time, or `generator` gets no gradient"
    )


def test_retaining_the_graph_moves_the_fault_to_the_stepped_weights(run):
    code = GAN.replace("discriminator_loss.backward()", "discriminator_loss.backward(retain_graph=True)")
    judged = run(code)
    assert judged.found == [("GL105", 30)]
    assert judged.lines("GL105") == [30, 24, 27]
    finding = judged.only("GL105")
    assert "`discriminator.out.weight`" in finding.message
    assert "`discriminator_optimizer.step()` (line 27)" in finding.message
    assert finding.fix.endswith("retain_graph=True is not needed then.")


SHARED = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    out = net(torch.randn(16, 4))
    size, spread = out.pow(2).mean(), out.abs().mean()
    optimizer.zero_grad()
    size.backward()
    spread.backward()
    optimizer.step()
"""


def test_two_losses_before_any_step_are_to_be_added(run):
    judged = run(SHARED)
    assert judged.found == [("GL101", 12)]
    assert judged.only("GL101").fix == (
        "add `size` and `spread` and call backward once: no optimizer steps in between. retain_graph=True in "
        "the first call would do as well: nothing that the graph needs is changed between the two calls."
    )


def test_a_step_in_between_needs_a_new_pass(run):
    judged = run(SHARED.replace("    spread", "    optimizer.step()\n    spread"))
    assert judged.only("GL101").fix.startswith("call `net(torch.randn(16, 4))` again after line 12 and build")


def test_a_caught_error_is_one_finding_with_a_count(run):
    code = SHARED.replace(
        "    spread.backward()", "    try:\n        spread.backward()\n    except RuntimeError:\n        pass"
    )
    judged = run(code)
    assert judged.found == [("GL101", 13)]
    assert judged.only("GL101").count == 2


KEPT = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.cache = {}

    def weights(self):
        if "norm" not in self.cache:
            norm = self.scale.exp().rsqrt()
            self.cache["norm"] = norm
        return self.cache["norm"]

    def forward(self, x):
        return x * self.weights()


torch.manual_seed(0)
layer = Layer()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    loss = layer(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_value_kept_from_an_earlier_step_is_shown_where_it_was_kept(run):
    judged = run(KEPT)
    assert judged.found == [("GL101", 27)]
    assert judged.lines("GL101")[:3] == [27, 13, 14]
    assert judged.only("GL101").fix.startswith("compute `norm` (line 13) again in each step")


ADVANTAGE = """\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
observations = torch.randn(16, 4)
advantage = 1 - critic(observations)
for epoch in range(3):
    actor_loss = -(actor(observations).log_softmax(1)[:, :1] * advantage).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
"""


def test_what_the_optimizer_does_not_train_is_to_be_detached(run):
    judged = run(ADVANTAGE)
    assert judged.found == [("GL101", 13)]
    assert judged.only("GL101").fix.startswith(
        "detach `advantage` (line 9): `actor_optimizer.step()` doesn't train `critic`, which lies behind it."
    )


def test_autograd_grad_twice_may_keep_its_graph(run):
    code = (
        "import torch\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "y = x.exp().sum()\n"
        "first = torch.autograd.grad(y, x)[0]\n"
        "second = torch.autograd.grad(y, x)[0]\n"
    )
    assert run(code, "GL101").found == [("GL101", 5)]


INPLACE = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    out = net(torch.randn(16, 4))
    row = out.view(-1)[:8]
    row.mul_(0.5)
    loss = out.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_write_through_a_view_is_found(run):
    judged = run(INPLACE)
    assert judged.found == [("GL105", 13)]
    assert judged.lines("GL105") == [13, 8, 10]


def test_only_the_silent_write_that_was_saved_is_reported(run):
    through_data = INPLACE.replace("row = out.view(-1)[:8]\n    row.mul_(0.5)", "out.data.mul_(0.5)\n")
    judged = run(through_data)
    assert judged.found == [("GL105", 13)]
    assert "unseen by torch" in judged.only("GL105").message
    not_saved = through_data.replace("nn.Sigmoid()", "nn.Identity()")
    assert run(not_saved).found == []


def test_a_part_of_a_loss_already_counted_is_to_be_dropped(run):
    judged = run(SHARED.replace("    size.backward()", "    total = size + spread\n    total.backward()"))
    assert judged.only("GL101").fix == (
        "drop `spread.backward()`: `spread` is part of `total`, whose backward has counted it already."
    )


LATE = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters())
for step in range(10):
    out = net(torch.randn(8, 4))
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 6:
        extra = out.abs().mean()
        extra.backward()
"""


def test_a_watched_step_tells_what_it_can(run):
    judged = run(LATE)
    assert judged.found == [("GL101", 15)]
    assert judged.lines("GL101") == [15, 11]
    finding = judged.only("GL101")
    assert "`loss.backward()` has already freed" in finding.message
    assert finding.fix.startswith("build `extra` from a forward pass of its own.")


SAME_LOSS = """\
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(1, 2)).pow(2).sum()
loss.backward()
optimizer.step()
loss.backward()
"""


def test_what_has_a_gradient_of_the_first_call_gets_no_further_one(run):
    label = run(SAME_LOSS).only("GL101").labels[0]
    assert label.text == "entered again here: torch raises, and `model` gets no further gradient"


def test_what_had_its_gradient_cleared_gets_none(run):
    label = run(SAME_LOSS.replace("optimizer.step()", "optimizer.zero_grad()")).only("GL101").labels[0]
    assert label.text == "entered again here: torch raises, and `model` gets no gradient"


def test_a_nameless_loss_is_quoted_as_its_line_has_it(run):
    code = SAME_LOSS.replace("loss.backward()", "(loss + 1).backward()").replace("loss =", "part =")
    finding = run(code.replace("(loss + 1)", "(part + 1)")).only("GL101")
    assert "`part + 1`" in finding.fix
    assert "the loss" not in finding.fix
