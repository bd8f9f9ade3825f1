"""What GL201, GL202, GL203, GL305 and GL102 find and say in loops as people write them."""

import textwrap

GAN = """\
import torch
from torch import nn

torch.manual_seed(0)
gen, disc = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer_gen, optimizer_disc = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
bce = nn.BCEWithLogitsLoss()
for step in range({steps}):
    real, fake = torch.randn(8, 6), gen(torch.randn(8, 4))
    disc.zero_grad()
    error_disc = bce(disc(real), torch.ones(8, 1)) + bce(disc(fake.detach()), torch.zeros(8, 1))
    error_disc.backward()
    optimizer_disc.step()
    gen.zero_grad()
    error_gen = {loss}
    error_gen.backward()
    optimizer_gen.step()
"""


def test_a_cut_generator_is_told_in_the_first_step(run):
    judged = run(GAN.format(steps=1, loss="bce(disc(fake.detach()), torch.ones(8, 1))"))
    assert judged.found == [("GL201", 16)]
    finding = judged.only("GL201")
    assert judged.lines("GL201") == [16, 15, 17]
    assert finding.message == (
        "`error_gen.backward()` does not reach what `optimizer_gen` trains: both parameters of `gen` get no "
        "gradient. Values flow from `gen` to `error_gen`, but the gradient's way back is cut."
    )
    assert finding.fix == "build `error_gen` from `fake` itself, without `.detach()` (line 15)."


def test_an_unused_generator_is_told_as_such(run):
    judged = run(GAN.format(steps=2, loss="bce(disc(torch.randn(8, 6)), torch.ones(8, 1))"))
    finding = judged.only("GL201")
    assert judged.lines("GL201") == [16, 17]
    assert "nor do values: `gen` isn't used to compute `error_gen`" in finding.message


def test_a_long_run_is_one_finding_that_covers_every_step(run):
    judged = run(GAN.format(steps=20, loss="bce(disc(fake.detach()), torch.ones(8, 1))"))
    finding = judged.only("GL201")
    assert (finding.first_step, finding.last_step) == (0, 19)
    assert finding.labels[1].text == "cut here: `.detach()`"


def test_the_whole_loop_is_silent_when_right(run):
    assert run(GAN.format(steps=6, loss="bce(disc(fake), torch.ones(8, 1))")).found == []


ENCODER = """\
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 3), nn.Linear(3, 1)
optimizers = [torch.optim.Adam(encoder.parameters()), torch.optim.Adam(decoder.parameters())]
for step in range(5):
{forward}
    loss = decoder(code).pow(2).mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in reversed(optimizers):
        optimizer.step()
"""


def encoder(forward: str) -> str:
    return ENCODER.format(forward=textwrap.indent(textwrap.dedent(forward), "    ").rstrip())


def test_a_round_trip_through_numpy_is_no_claim_that_values_stop(run):
    judged = run(
        encoder("code = encoder(torch.randn(8, 4))\ncode = torch.from_numpy(code.detach().numpy() * 2)")
    )
    assert judged.found == [("GL201", 13)]
    finding = judged.only("GL201")
    assert "nor do values" not in finding.message
    assert [label.line for label in finding.labels] == [13, 9, 15]
    assert "read into Python here" in finding.labels[1].text


def test_a_no_grad_block_is_shown_with_the_call_in_it(run):
    judged = run(encoder("with torch.no_grad():\n    code = encoder(torch.randn(8, 4))"))
    assert judged.lines("GL201") == [13, 8, 9, 15]


def test_an_idle_encoder_is_no_fault(run):
    assert run(encoder("code = torch.randn(8, 3)")).found == []


REWRAPPED = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
for step in range(4):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    {cut}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_usual_ways_to_silence_torch_are_found(run):
    for cut in (
        "loss = torch.tensor(loss.item(), requires_grad=True)",
        "loss = loss.detach().requires_grad_()",
    ):
        judged = run(REWRAPPED.format(cut=cut))
        assert judged.found == [("GL201", 11)]
        assert judged.lines("GL201") == [11, 9, 12]


def test_a_loss_without_a_graph_shows_the_cut(run):
    judged = run(REWRAPPED.format(cut="loss = torch.tensor(loss.item())"))
    assert judged.found == [("GL202", 11)]
    assert judged.lines("GL202") == [11, 9]


def test_a_frozen_model_is_told_as_such(run):
    judged = run(
        REWRAPPED.format(cut="pass").replace(
            "net = nn.Linear(4, 1)", "net = nn.Linear(4, 1).requires_grad_(False)"
        )
    )
    assert judged.found == [("GL202", 11)]
    assert "`net`, none of whose parameters requires gradients" in judged.only("GL202").message
    assert judged.only("GL202").fix == "unfreeze what is to be trained in `net` (`requires_grad_(True)`)."


DECORATED = """\
import torch
from torch import nn


@torch.no_grad()
def evaluate(net, x):
    return net(x).pow(2).mean()


torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
loss = evaluate(net, torch.randn(8, 4))
loss.backward()
optimizer.step()
"""


def test_a_no_grad_decorator_is_shown_where_it_stands(run):
    judged = run(DECORATED)
    assert judged.lines("GL202") == [14, 5, 7, 13]
    assert judged.only("GL202").fix.startswith("take the decorator off (line 5).")


DISCARD = """\
import torch
from torch import nn

torch.manual_seed(0)
gen, disc = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6)), nn.Linear(6, 1)
optimizer_gen, optimizer_disc = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
for step in range(3):
    fake = gen(torch.randn(8, 4))
    optimizer_disc.zero_grad()
    error_disc = disc(fake).mean() - disc(torch.randn(8, 6)).mean()
    error_disc.backward()
    optimizer_disc.step()
    optimizer_gen.zero_grad()
    fake_again = gen(torch.randn(8, 4))
    error_gen = -disc(fake_again).mean()
    error_gen.backward()
    optimizer_gen.step()
"""


def test_a_discarded_network_is_named_with_its_share(run):
    judged = run(DISCARD)
    assert judged.found == [("GL305", 11)]
    finding = judged.only("GL305")
    assert [(label.line, label.text) for label in finding.labels] == [
        (11, "fills the gradients of 4 parameters of `gen`"),
        (8, "runs back through what was built here"),
        (13, "zeroed here, unused"),
    ]
    assert finding.message == (
        "`error_disc.backward()` runs back through `gen` for gradients that `optimizer_gen.zero_grad()` "
        "(line 13) throws away unused: 5 of its 12 nodes (42 %)."
    )
    assert finding.fix == "detach `fake` where line 10 uses it: `error_disc` isn't there to train `gen`."


def test_a_graph_that_a_later_loss_enters_is_one_fault_only(run):
    code = DISCARD.replace("    fake_again = gen(torch.randn(8, 4))\n", "").replace("fake_again", "fake")
    assert run(code).found == [("GL101", 15)]


STALE = """\
import torch
from torch import nn

torch.manual_seed(0)
old, new = torch.randn(3, 4), nn.Parameter(torch.randn(2, 4))
{before}
optimizer = torch.optim.SGD([new], lr=0.1)
for step in range(3):
    {inside}
    loss = (torch.randn(8, 4) @ rows.t()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_copy_made_before_training_is_outdated(run):
    judged = run(STALE.format(before="rows = torch.cat([old, new])", inside="pass"))
    assert judged.found == [("GL102", 12)]
    assert judged.lines("GL102") == [12, 6, 10, 13]
    assert judged.only("GL102").first_step == 1


def test_a_copy_made_in_each_step_is_right(run):
    assert run(STALE.format(before="pass", inside="rows = torch.cat([old, new])")).found == []


def test_a_view_made_before_training_sees_the_new_values(run):
    assert run(STALE.format(before="rows = new[:1]", inside="pass")).found == []


ASSIGNED = """\
import torch
from torch import nn

torch.manual_seed(0)
hyper, layer = nn.Linear(2, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD(hyper.parameters(), lr=0.1)
for step in range(2):
    layer.weight.data = hyper(torch.randn(2)).view(1, 4)
    loss = layer(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_assignment_to_data_carries_values_and_cuts_the_gradient(run):
    judged = run(ASSIGNED)
    assert judged.lines("GL201") == [11, 8, 12]
    assert "`.data`" in judged.only("GL201").labels[1].text


THROUGH_NUMPY = """\
import torch
from torch import nn

generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    images = generator(torch.ones(3, 2)).detach().numpy()
    loss = critic(torch.from_numpy(images.clip(-1, 1))).mean()
    loss.backward()
    optimizer.step()
"""


def test_the_message_says_that_values_leave_torch_through_numpy(run):
    told = "Values computed from `generator` leave torch at line 8, and what comes back has no graph."
    assert run(THROUGH_NUMPY).only("GL201").message.endswith(told)


def test_the_message_says_that_values_leave_torch_as_python_numbers(run):
    code = THROUGH_NUMPY.replace(".detach().numpy()", "").replace(
        "torch.from_numpy(images.clip(-1, 1))", "torch.tensor([[value.item() for value in images[0]]])"
    )
    assert "to `loss`, but leave torch on the way, and what comes" in run(code).only("GL201").message
