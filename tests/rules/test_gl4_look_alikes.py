"""Scripts as people write them: right ones that look wrong, wrong ones, and the remedy for each."""

import pytest

from graphlint.analysis.facts import Facts
from graphlint.lint.rule import Example
from graphlint.rules.gl401_ping_pong_transfer import RULE as PING_PONG
from graphlint.rules.gl402_redundant_transfer import RULE as REDUNDANT
from graphlint.rules.gl403_repeated_transfer import RULE as REPEATED
from graphlint.rules.gl404_device_mismatch import RULE as MISMATCH
from graphlint.testing import run_example

RULES = (PING_PONG, REDUNDANT, REPEATED, MISMATCH)

HEAD = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RIGHT = {
    "a pipeline over two devices": """
first, last = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 3).to("cuda:1")
for step in range(3):
    hidden = first(torch.randn(4, 8, device="cuda:0"))
    out = last(hidden.to("cuda:1"))
    update(F.cross_entropy(out, torch.randint(0, 3, (4,)).to(out.device)))
""",
    "activations kept on the host by hooks": """
for step in range(3):
    with torch.autograd.graph.save_on_cpu():
        loss = model(torch.tanh(torch.randn(4, 8, device="cuda"))).square().mean()
    update(loss)
""",
    "an activation parked on the host": """
for step in range(3):
    hidden = model(torch.randn(4, 8, device="cuda"))
    parked = hidden.to("cpu")
    del hidden
    other = model(torch.randn(4, 8, device="cuda"))
    parked = parked.to("cuda")
    update((other * parked).mean())
""",
    "a simulator on the host": """
state = torch.randn(4, 8, device="cuda")
for step in range(4):
    update(model(state).square().mean())
    array = state.cpu().numpy()
    state = torch.from_numpy(array * 0.9 + np.sin(array)).to("cuda")
""",
    "a staging buffer that NumPy fills": """
array = np.zeros((4, 8), dtype="float32")
staged = torch.from_numpy(array)
for step in range(3):
    array[:] = step
    update(model(staged.to("cuda")).square().mean())
""",
    "a table that the host keeps": """
table = torch.linspace(0.9, 0.1, 10)
for step in range(3):
    t = torch.randint(0, 10, (4,), device="cuda")
    weight = table[t.cpu()].to("cuda")
    update((weight * model(torch.randn(4, 8, device="cuda")).mean(1)).mean())
""",
    "a student's loss where its teacher is": """
teacher = nn.Linear(8, 3).to("cuda:1").requires_grad_(False)
for step in range(3):
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = teacher(x.to("cuda:1")).softmax(1)
    given = model(x.to("cuda:0")).log_softmax(1).to("cuda:1")
    update(F.kl_div(given, wanted, reduction="batchmean"))
""",
    "pieces of one tensor": """
data = torch.randn(16, 8)
for step in range(3):
    loss = 0
    for piece in data.chunk(4):
        loss = loss + model(piece.to("cuda")).square().mean()
    update(loss)
""",
    "validation on the same batches every epoch": """
train = [torch.randn(4, 8) for _ in range(2)]
held_out = [torch.randn(4, 8) for _ in range(2)]
for epoch in range(3):
    for x in train:
        update(model(x.to("cuda")).square().mean())
    with torch.no_grad():
        print(sum(model(x.to("cuda")).mean().item() for x in held_out))
""",
    "guards in a forward": """
class Guarded(nn.Module):
    def forward(self, x, mask):
        mask = mask.to(x.device)
        x = model(x).to(x.device)
        return (x * mask).to(x.device)
guarded = Guarded()
for step in range(3):
    x = torch.randn(4, 8, device="cuda")
    update(guarded(x, (x[:, :3] > 0).float()).square().mean())
""",
    "clipping and scaling": """
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(4, 8, device="cuda")).square().mean()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "pictures that another network needs too": """
critic = nn.Linear(3, 1)
for step in range(3):
    real = torch.randn(4, 3)
    fake = model(torch.randn(4, 8, device="cuda")).cpu()
    update(critic(fake).mean() - critic(real).mean() + (fake - real).abs().mean())
""",
    "a loss that is better computed on the host": """
for step in range(3):
    scores = model(torch.randn(10, 2, 8, device="cuda")).log_softmax(2)
    lengths = torch.full((2,), 10), torch.full((2,), 3)
    update(F.ctc_loss(scores.cpu(), torch.randint(1, 3, (2, 3)), *lengths))
""",
    "weights put by and put back": """
average = {name: held.detach().cpu().clone() for name, held in model.named_parameters()}
for step in range(3):
    update(model(torch.randn(4, 8, device="cuda")).square().mean())
    with torch.no_grad():
        kept = {name: held.detach().cpu().clone() for name, held in model.named_parameters()}
        for name, held in model.named_parameters():
            held.copy_(average[name].lerp_(kept[name], 0.1))
        model(torch.randn(4, 8, device="cuda"))
        for name, held in model.named_parameters():
            held.copy_(kept[name])
""",
    "an optimizer on the host": """
hosted = [held.detach().cpu().clone().requires_grad_() for held in model.parameters()]
adam = torch.optim.Adam(hosted)
for step in range(3):
    model.zero_grad()
    model(torch.randn(4, 8, device="cuda")).square().mean().backward()
    for host, held in zip(hosted, model.parameters()):
        host.grad = held.grad.cpu()
    adam.step()
    with torch.no_grad():
        for host, held in zip(hosted, model.parameters()):
            held.copy_(host)
""",
    "a mismatch that the script expects": """
for step in range(3):
    update(model(torch.randn(4, 8, device="cuda")).square().mean())
try:
    model(torch.randn(4, 8))
except RuntimeError as error:
    print(error)
""",
}

WRONG = {
    "labels stay, predictions move": (
        """
for step in range(3):
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    scores = model(x.to("cuda"))
    scores = scores.cpu()
    update(F.cross_entropy(scores, y))
""",
        ("GL401", 5, "drop the move at line 16, and move `y` to cuda:0 instead"),
    ),
    "flipped on the host": (
        """
for step in range(3):
    x = torch.randn(4, 8, device="cuda")
    update((model(x) * model(x.cpu().flip(0).to("cuda"))).mean())
""",
        ("GL401", 4, "do with torch on cuda:0 what the cpu does to `x`"),
    ),
    "lengths sent and fetched": (
        """
head = nn.Linear(4, 1)
for step in range(3):
    x, lengths = torch.randn(4, 8), torch.rand(4)
    lengths = lengths.to("cuda")
    on_host = lengths.cpu()
    update((model(x.to("cuda")).sum(1) * lengths).mean() + head(on_host).sum().to("cuda"))
""",
        ("GL401", 6, "keep the tensor on cpu as `on_host` before line 16 moves it"),
    ),
    "a batch whose other half lies on the host": (
        """
head = nn.Linear(11, 1)
def to(batch, device):
    return {key: value.to(device) for key, value in batch.items()}
for step in range(3):
    batch = {"text": torch.randn(4, 8)}
    sent = to(batch, "cuda")
    made = model(sent["text"])
    back = to({"text": sent["text"], "made": made}, "cpu")
    update(head(torch.cat([back["made"], back["text"]], 1)).mean().to("cuda"))
""",
        ("GL401", 4, "before line 18 moves it, and use that instead of the move at line 20"),
    ),
    "shuffled on the host": (
        """
for step in range(3):
    x = torch.randn(4, 8)
    x = x.to("cuda")
    shuffled = x.cpu()[torch.randperm(4)].to("cuda")
    update(model(shuffled).square().mean())
""",
        ("GL401", 5, "keep the tensor on cpu under a name `x_cpu` before line 15 moves it"),
    ),
    "a constant of the loop": (
        """
weights = torch.tensor([0.2, 0.3, 0.5])
for step in range(3):
    x, y = torch.randn(4, 8, device="cuda"), torch.randint(0, 3, (4,), device="cuda")
    update(F.cross_entropy(model(x), y, weight=weights.to("cuda")))
""",
        ("GL403", 5, "move `weights = weights.to('cuda:0')` once before the loop"),
    ),
    "a position made in the forward": (
        """
class Net(nn.Module):
    def forward(self, x):
        shift = torch.arange(8.0)
        return model(x + shift)
net = Net()
for step in range(3):
    update(net(torch.randn(4, 8, device="cuda")).square().mean())
""",
        ("GL404", 5, "make `shift` on cuda:0: `device='cuda:0'` on line 15."),
    ),
    "a model that nobody moved": (
        """
critic = nn.Linear(3, 1)
for step in range(3):
    update(critic(model(torch.randn(4, 8, device="cuda"))).mean())
""",
        ("GL404", 4, "move `critic` to cuda:0 as well"),
    ),
    "an index on another device than its data": (
        """
data = torch.randn(100, 8)
for step in range(3):
    chosen = torch.randint(0, 100, (4,), device="cuda")
    update(model(data[chosen].to("cuda")).square().mean())
""",
        ("GL404", 5, "make `chosen` on cpu: `device='cpu'` on line 15."),
    ),
    "a state made on the host": (
        """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(8, 4, batch_first=True)
    def forward(self, x):
        state = (torch.zeros(1, x.size(0), 4), torch.zeros(1, x.size(0), 4))
        return self.cells(x, state)[0]
net = Recurrent().to("cuda")
for step in range(3):
    update(net(torch.randn(4, 5, 8, device="cuda")).square().mean())
""",
        ("GL404", 8, "make `state[0]` and `state[1]` on cuda:0: `device='cuda:0'` on line 18."),
    ),
    "class weights of a criterion that nobody moved": (
        """
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
for step in range(3):
    x, y = torch.randn(4, 8, device="cuda"), torch.randint(0, 3, (4,), device="cuda")
    update(criterion(model(x), y))
""",
        ("GL404", 5, "move `criterion` to cuda:0 as well: `.to('cuda:0')`."),
    ),
    "a copy that nobody kept": (
        """
for step in range(3):
    x = torch.randn(4, 8)
    x.to("cuda")
    update(model(x).square().mean())
""",
        ("GL404", 5, "keep the copy that line 15 makes: `x = x.to('cuda:0')`."),
    ),
    "labels on the first of two devices": (
        """
last = nn.Linear(3, 3).to("cuda:1")
for step in range(3):
    x, y = torch.randn(4, 8, device="cuda:0"), torch.tensor([0, 1, 2, 0]).to("cuda:0")
    update(F.cross_entropy(last(model(x).to("cuda:1")), y))
""",
        ("GL404", 5, "put `y` on cuda:1 instead: `.to('cuda:1')` on line 15."),
    ),
    "a condition sent four times": (
        """
for step in range(3):
    given, x = torch.randn(4, 3), torch.randn(4, 8, device="cuda")
    real = model(x) * given.cuda()
    fake = (model(x) + given.cuda()) * given.cuda()
    update((real - fake * given.cuda()).mean())
""",
        ("GL403", 5, "keep the copy that line 15 made, and use it instead of the moves at lines 16 and 17."),
    ),
    "a graph and its features sent in every step": (
        """
links, features = torch.eye(4) + 1, torch.randn(4, 8)
for step in range(3):
    update(model(links.cuda() @ features.cuda()).square().mean())
""",
        ("GL403", 4, "Then move `features = features.to('cuda:0')` once before the loop"),
    ),
    "a mismatch after the recorded steps": (
        """
for step in range(9):
    x = torch.randn(4, 8)
    if step < 7:
        x = x.to("cuda")
    update(model(x).square().mean())
""",
        ("GL404", 6, "put `x` on cuda:0 before line 17 uses it"),
    ),
}


def found(code, tmp_path):
    """Returns (code, line below the head, fix) of everything that the device rules find, folded."""
    path = tmp_path / "train.py"
    path.write_text(HEAD + code, encoding="utf-8")
    example = Example(title="a script", code=HEAD + code, simulate=("cuda:0", "cuda:1"))
    trace, error = run_example(example, path)
    assert error is None or "same device" in str(error)
    facts, offset = Facts(trace), HEAD.count("\n")
    sightings = [
        (rule.code, seen.labels[0].line - offset, seen.fix) for rule in RULES for seen in rule.check(facts)
    ]
    return list(dict.fromkeys(sightings))


@pytest.mark.parametrize("title", RIGHT)
def test_right_scripts_are_left_alone(title, tmp_path):
    assert found(RIGHT[title], tmp_path) == []


@pytest.mark.parametrize("title", WRONG)
def test_wrong_scripts_are_told_what_to_do(title, tmp_path):
    code, (rule, line, remedy) = WRONG[title]
    ((seen, at, fix),) = found(code, tmp_path)
    assert (seen, at) == (rule, line)
    assert remedy in fix
