"""What GL101 says to detach must be what the next pass takes in, and nothing that the step itself needs."""

import pytest

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
"""

LSTM = """\
lstm, head = nn.LSTM(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
h, c = torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)
for step in range(2):
    out, (h, c) = lstm(torch.randn(6, 2, 3), (h, c))
    loss = head(out[-1]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

MODEL = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 5), nn.Linear(5, 1)

    def forward(self, x, state=None):
        y, state = self.lstm(x, state)
        return self.out(y), state


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hidden = None
for step in range(2):
    logits, hidden = model(torch.randn(6, 2, 3), hidden)
    loss = logits.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TOTAL = """\
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0
for step in range(2):
    loss = model(torch.randn(3, 4)).pow(2).mean()
    total = total + loss
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (
            LSTM,
            (
                "detach `h` and `c` after line 12, before line 9 uses them again: "
                "`h, c = h.detach(), c.detach()`, so that"
            ),
        ),
        (
            MODEL,
            (
                "detach `hidden` after line 22, before line 19 uses it again: "
                "`hidden = tuple(state.detach() for state in hidden)`, so that"
            ),
        ),
        (TOTAL, "detach `total` after line 12, before line 10 uses it again: `total = total.detach()`"),
    ],
    ids=["lstm", "model", "total"],
)
def test_only_what_is_carried_is_to_be_detached(run, loop, told):
    assert run(HEAD + loop).only("GL101").fix.startswith(told)


@pytest.mark.parametrize("loop", [LSTM, MODEL, TOTAL], ids=["lstm", "model", "total"])
def test_nothing_is_said_of_parts_that_other_ways_lead_to(run, loop):
    texts = [label.text for label in run(HEAD + loop).only("GL101").labels]
    assert "entered again here: torch raises" in texts


def test_the_line_that_built_most_of_a_carried_sum_is_shown(run):
    built = [label for label in run(HEAD + TOTAL).only("GL101").labels if "built here" in label.text]
    assert {label.line for label in built} == {9, 10}


HELPERS = """\
G, D = nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
opt_g = torch.optim.SGD(G.parameters(), lr=0.1)
opt_d = torch.optim.SGD(D.parameters(), lr=0.1)


def d_step(fake):
    opt_d.zero_grad()
    loss = D(fake).pow(2).mean()
    loss.backward()
    opt_d.step()


def g_step(fake):
    opt_g.zero_grad()
    loss = (D(fake) - 1).pow(2).mean()
    loss.backward()
    opt_g.step()


for step in range(2):
    fake = G(torch.randn(16, 8)).tanh()
    d_step(fake)
    g_step(fake)
"""


def test_a_helper_that_does_not_train_its_input_is_to_detach_it(run):
    fix = run(HEAD + HELPERS).only("GL101").fix
    assert fix.startswith(
        "build the `loss` of line 13 from `fake.detach()` at line 12, as it isn't there to train `G`; "
        "the `loss` of line 20 can then"
    )


CELL = """\
cell, head = nn.GRUCell(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
h = torch.zeros(2, 5)
for step in range(4):
    h = cell(torch.randn(2, 3), h)
    loss = head(h).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(RETAIN)
    optimizer.step()
"""


def test_retaining_is_ruled_out_where_it_only_puts_the_error_off(run):
    found = run(HEAD + CELL.replace("RETAIN", "")).only("GL101")
    assert "retain_graph=True would not help: the next pass would raise, as `optimizer.step()`" in found.fix
    assert "`cell.weight_hh` in place, which this pass's graph needs." in found.fix
    retained = run(HEAD + CELL.replace("RETAIN", "retain_graph=True"))
    assert [code for code, _ in retained.found] == ["GL105"]
