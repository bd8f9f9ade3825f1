"""GL101: the labels show the line to change, also where the graph itself was built elsewhere."""

HEAD = "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\n"

MEMORY = f"""{HEAD}
class Memory:
    def __init__(self):
        self.cells = torch.zeros(8, 6)

    def read(self, key):
        weights = torch.softmax(key @ self.cells.t(), dim=-1)
        return weights, weights @ self.cells

    def write(self, weights, value):
        self.cells = self.cells + weights.t() @ value


memory, key, value = Memory(), nn.Linear(5, 6), nn.Linear(5, 6)
optimizer = torch.optim.SGD([*key.parameters(), *value.parameters()], lr=0.1)
for step in range(3):
    x = torch.randn(4, 5)
    weights, read = memory.read(key(x))
    memory.write(weights, value(x))
    loss = read.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

BANK = f"""{HEAD}
encoder, bank = nn.Linear(6, 4), torch.randn(20, 4)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for step in range(3):
    index = torch.randperm(20)[:8]
    z = torch.tanh(encoder(torch.randn(8, 6)))
    loss = nn.functional.cross_entropy(z @ bank.clone().t(), index)
    bank[index] = 0.5 * bank[index] + 0.5 * z
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

HELPER = f"""{HEAD}
def gram(x):
    return x @ x.t()


features = nn.Linear(6, 4)
target = gram(features(torch.randn(3, 6)))
canvas = torch.randn(3, 6, requires_grad=True)
optimizer = torch.optim.SGD([canvas], lr=0.1)
for step in range(3):
    loss = (gram(features(canvas)) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAKE = f"""{HEAD}
generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(2):
    fake = torch.tanh(generator(torch.randn(8, 3)))
    opt_c.zero_grad()
    c_loss = critic(fake).mean()
    c_loss.backward()
    opt_c.step()
    opt_g.zero_grad()
    g_loss = -critic(fake).mean()
    g_loss.backward()
    opt_g.step()
"""


def _line(code: str, text: str) -> int:
    return next(n for n, line in enumerate(code.splitlines(), 1) if text in line)


def _texts(judged) -> dict[int, str]:
    return {label.line: label.text for label in judged.only("GL101").labels}


def test_a_memory_is_written_beside_the_loss(run):
    judged = run(MEMORY)
    line = _line(MEMORY, "self.cells = self.cells +")
    assert _texts(judged)[line] == "handed on to later passes from here"
    assert f"detach `self.cells` (line {line})" in judged.only("GL101").fix


def test_rows_of_a_bank_keep_the_graph_of_what_was_put_in(run):
    judged = run(BANK)
    line = _line(BANK, "bank[index] = ")
    assert _texts(judged)[line] == "handed on to later passes from here"
    assert judged.only("GL101").fix.startswith(f"detach what line {line} hands on, ")


def test_a_target_kept_from_a_helper_shows_the_call_too(run):
    texts = _texts(run(HELPER))
    assert texts[_line(HELPER, "return x @")].startswith("built here")
    assert texts[_line(HELPER, "target = gram")] == "built by way of this call"


def test_the_line_that_lets_an_earlier_loss_into_what_is_shared(run):
    judged = run(FAKE)
    line = _line(FAKE, "c_loss = ")
    assert _texts(judged)[line] == "`c_loss` enters it from here"
    assert f"from `fake.detach()` at line {line}" in judged.only("GL101").fix
