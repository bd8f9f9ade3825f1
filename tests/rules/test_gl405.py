"""Reads of an accelerator's values in every step, and those that are seldom, needed or torch's own."""

import pytest

from graphlint.lint.rule import Example
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.rules.gl405_hidden_sync import RULE
from graphlint.testing import Case, cases, run_example

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randint(0, 2, (12,))), batch_size=2)
criterion = nn.CrossEntropyLoss()


def batch():
    return torch.randn(4, 4, device="cuda"), torch.randint(0, 2, (4,), device="cuda")


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


"""

WARNED = {
    "printed before the backward": """
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    print(f"{loss:.3f}")  # here
    update(loss)
""",
    "added up before the step": """
total = 0.0
for _ in range(5):
    x, y = batch()
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    total += loss.item()  # here
    optimizer.step()
""",
    "in each call of a closure": """
optimizer = torch.optim.LBFGS(model.parameters())
x, y = batch()


def closure():
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    print(loss.item())  # here
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
""",
    "by way of a copy": """
history = []
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    history.append(loss.detach().cpu().numpy())  # here
    update(loss)
""",
    "inside the model": """
class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model
        self.largest = 0.0

    def forward(self, x):
        out = self.layers(x)
        self.largest = max(self.largest, out.abs().max().item())  # here
        return out


watched = Watched()
for _ in range(5):
    x, y = batch()
    update(criterion(watched(x), y))
""",
    "in a list": """
history = []
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    history += [loss.item()]  # here
    update(loss)
""",
    "element by element": """
for _ in range(5):
    x, y = batch()
    scores = model(x.repeat(8, 1))
    best = [scores[i, 0].item() for i in range(32)]  # here
    update(scores.square().mean())
""",
}

HINTED = {
    "a matching that Python works out and gives back": """
for _ in range(5):
    x, y = batch()
    scores = model(x)
    with torch.no_grad():
        costs = scores.softmax(1).cpu()  # here
    rows = [[costs[i, j].item() for j in range(2)] for i in range(4)] * 4
    chosen = torch.as_tensor([row.index(min(row)) for row in rows[:4]])
    update(criterion(scores, chosen.to("cuda")))
""",
    "after the update, in a loop over batches": """
total = 0.0
for x, y in loader:
    loss = criterion(model(x.to("cuda")), y.to("cuda"))
    update(loss)
    total += loss.item()  # here
""",
    "a check of each loss": """
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    if torch.isnan(loss):  # here
        continue
    update(loss)
""",
    "a whole number that decides": """
for _ in range(5):
    x, y = batch()
    actions = torch.distributions.Categorical(logits=model(x)).sample()
    first = actions[0].item()  # here
    update(criterion(model(x), y) * (1 + 0 * len(str(first))))
""",
}

SILENT = {
    "after the update, where a step may be an epoch": """
for epoch in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    update(loss)
    print(epoch, loss.item())
""",
    "once an epoch": """
for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x.to("cuda")), y.to("cuda"))
        update(loss)
    print(loss.item())
""",
    "after a moving average of the weights that is written with data": """
average = [p.detach().clone() for p in model.parameters()]
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    update(loss)
    for mean, p in zip(average, model.parameters()):
        mean.data.mul_(0.9).add_(p.data, alpha=0.1)
    print(loss.item())
""",
    "after a look at a parameter that an update has changed": """
log_alpha = torch.zeros(1, device="cuda", requires_grad=True)
alpha_optimizer = torch.optim.SGD([log_alpha], lr=0.1)
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    update(loss)
    alpha_optimizer.zero_grad()
    (log_alpha * loss.detach()).sum().backward()
    alpha_optimizer.step()
    alpha = log_alpha.exp()
    print(loss.item(), alpha.item())
""",
    "in a few of the calls of a closure": """
optimizer = torch.optim.LBFGS(model.parameters())
x, y = batch()
calls = 0


def closure():
    global calls
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    calls += 1
    if calls % 5 == 0:
        print(loss.item())
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
""",
    "every other step": """
for step in range(6):
    x, y = batch()
    loss = criterion(model(x), y)
    if step % 2 == 0:
        print(loss.item())
    update(loss)
""",
    "the host's own values": """
for x, y in loader:
    print(x.mean().item(), int(y[0]))
    update(criterion(model(x.to("cuda")), y.to("cuda")))
""",
    "a value that goes back into torch": """
for _ in range(5):
    x, y = batch()
    scale = x.abs().max().item()
    update(criterion(model(torch.div(x, scale)), y))
""",
    "an evaluation in between": """
for _ in range(5):
    x, y = batch()
    update(criterion(model(x), y))
    model.eval()
    with torch.no_grad():
        print((model(x).argmax(1) == y).float().mean().item())
    model.train()
""",
    "before the training": """
print(model[0].weight.std().item())
for _ in range(5):
    x, y = batch()
    update(criterion(model(x), y))
""",
}


def judged(code: str, tmp_path, *, simulate=("cuda",)):
    path = tmp_path / "train.py"
    path.write_text(code, encoding="utf-8")
    trace, error = run_example(Example(title="a script", code=code, simulate=simulate), path)
    assert error is None
    report = judge(trace, Selection(select=("GL4",)))
    assert not report.tracebacks
    return report.findings


def marked(code: str) -> int:
    (line,) = [number for number, line in enumerate(code.split("\n"), 1) if line.endswith("# here")]
    return line


@pytest.mark.parametrize("case", cases(RULE), ids=str)
def test_examples(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("name", WARNED)
def test_warned_of(tmp_path, name) -> None:
    code = HEAD + WARNED[name]
    (finding,) = judged(code, tmp_path)
    assert (finding.code, finding.severity, finding.line) == ("GL405", "warning", marked(code))


@pytest.mark.parametrize("name", HINTED)
def test_hinted_at(tmp_path, name) -> None:
    code = HEAD + HINTED[name]
    (finding,) = judged(code, tmp_path)
    assert (finding.code, finding.severity, finding.line) == ("GL405", "info", marked(code))


@pytest.mark.parametrize("name", SILENT)
def test_left_alone(tmp_path, name) -> None:
    assert judged(HEAD + SILENT[name], tmp_path) == ()


@pytest.mark.parametrize("name", [*WARNED, *HINTED])
def test_a_run_on_the_cpu_has_nothing_to_wait_for(tmp_path, name) -> None:
    code = HEAD + {**WARNED, **HINTED}[name]
    found = judged(code.replace('"cuda"', '"cpu"'), tmp_path, simulate=())
    assert "GL405" not in {finding.code for finding in found}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("printed before the backward", "keep `loss.detach()`, and read it only in the steps that print."),
        ("added up before the step", "add up `loss.detach()` on cuda:0, and read the sum once"),
        ("in a list", "keep `loss.detach()`, and read it only in the steps that print."),
        ("element by element", "read all of them at once, with one `.tolist()` of the whole tensor."),
    ],
)
def test_the_remedy(tmp_path, name, remedy) -> None:
    (finding,) = judged(HEAD + WARNED[name], tmp_path)
    assert finding.fix.startswith(remedy)


def test_a_check_may_be_declared(tmp_path) -> None:
    (finding,) = judged(HEAD + HINTED["a check of each loss"], tmp_path)
    assert "`# graphlint: ignore[GL405] reason`" in finding.fix


CHECKED = """
for _ in range(5):
    x, y = batch()
    loss = criterion(model(x), y)
    value = loss.item()
    if not value < 1e6:
        break
    update(loss)
"""


@pytest.mark.parametrize(
    "code", [CHECKED, CHECKED.replace("value = loss.item()", "").replace("value <", "loss.item() <")]
)
def test_a_number_that_decides_may_be_declared(tmp_path, code) -> None:
    (finding,) = judged(HEAD + code, tmp_path)
    assert finding.fix == (
        "keep `loss.detach()`, and read it only in the steps that print; a check that must run in each step "
        "is declared with `# graphlint: ignore[GL405] reason`."
    )


def test_a_copy_waits_once(tmp_path) -> None:
    (finding,) = judged(HEAD + HINTED["a matching that Python works out and gives back"], tmp_path)
    assert "(1 read, 32 bytes)" in finding.message
    assert [label.text for label in finding.labels] == ["`.cpu()` waits for cuda:0, every step"]
    assert finding.fix.startswith("keep the values on cuda:0, or read those that Python needs together")


def test_what_it_says(tmp_path) -> None:
    (finding,) = judged(HEAD + WARNED["added up before the step"], tmp_path)
    assert finding.message == (
        "`loss` is read from cuda:0 into Python in every step (1 read, 4 bytes). There Python waits until "
        "cuda:0 has done all that was queued, and queues nothing ahead meanwhile."
    )
    assert [label.text for label in finding.labels] == ["`.item()` waits for cuda:0, every step"]
