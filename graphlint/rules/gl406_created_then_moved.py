"""A tensor is made on the host only to be moved to the device.

## What it does

Finds what `torch.zeros`, `torch.ones`, `torch.full`, `torch.arange`, `torch.randn` and the like make on the
host in the training steps, where the move to another device is all that is done with it. A hint.

## Why it matters

The host fills memory, and the copy waits for the bus, for values that the device could have made itself, in a
fraction of the time.

## Example

    noise = torch.randn(batch_size, 64).to(device)
    labels = torch.ones(batch_size, 1).to(device)

## Use instead

    noise = torch.randn(batch_size, 64, device=device)
    labels = torch.ones(batch_size, 1, device=device)

## Known limits

Tensors made from data of Python's or NumPy's (`torch.tensor`, `torch.from_numpy`) must be copied in any case
and are left out. A device draws other random numbers than the host from the same seed. A constant that is
made and moved beside values which GL403 reports is told there.
"""

import ast
import re
from collections.abc import Iterator

from graphlint.analysis.devices_made import DRAWN, Made, constants_in, made_to_be_moved
from graphlint.analysis.devices_resent import sent_every_step
from graphlint.analysis.devices_wording import called, sentence, sized
from graphlint.analysis.facts import Facts
from graphlint.lint.finding import Occurrence
from graphlint.lint.labels import distinct, label
from graphlint.lint.rule import Example, Rule

_MOVES = re.compile(r"\.(to|cuda)\(")


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields each tensor that is made only to be moved, once for each step."""
    told = {
        (one.frame.path, one.frame.line)
        for function in sent_every_step(facts)
        for one in constants_in(facts, function)
    }  # by GL403, with the values that the same function sends in every step
    for line, sightings in made_to_be_moved(facts).items():
        if line not in told:
            yield from (_occurrence(facts, one) for one in sightings)


def _occurrence(facts: Facts, found: Made) -> Occurrence:
    transfer, frame = found.move.transfer, found.frame
    device = transfer.to_device
    return Occurrence(
        message=sentence(
            f"{called(facts, found.move)} is made on the host by `{found.made.name}` and only moved to "
            f"{device}: {sized(transfer.bytes)} are filled and copied in every step that {device} could fill "
            "itself."
        ),
        labels=distinct(
            (
                label(frame, f"made on the host: {sized(transfer.bytes)}"),
                label(found.move.frame, f"moved to {device}, its only use"),
            )
        ),
        fix=_fix(facts, found),
        step=found.move.step,
        cause=(frame.path, frame.line),
    )


def _fix(facts: Facts, found: Made) -> str:
    device = found.move.transfer.to_device
    drawn = " The random numbers will be others." if found.made.name in DRAWN else ""
    spelled = None
    if found.frame == found.move.frame:
        spelled = _made_there(facts.sources.call(found.frame.path, found.frame.line, _MOVES))
    if spelled is not None:
        return f"make it where it is used: `{spelled}`.{drawn}"
    return f"give `device={device!r}` to `{found.made.name}`, and drop the move.{drawn}"


def _made_there(spelled: str | None) -> str | None:
    """Returns "torch.ones(8, device=device)" for "torch.ones(8).to(device)"; None for anything else."""
    if spelled is None:
        return None
    call = ast.parse(spelled, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.keywords:
        return None
    inner = call.func.value
    if not isinstance(inner, ast.Call) or len(call.args) > 1:
        return None
    given = call.args[0] if call.args else ast.Constant("cuda")
    inner.keywords.append(ast.keyword(arg="device", value=given))
    return ast.unparse(inner)


_NOISE = """\
import torch
from torch import nn

torch.manual_seed(0)
generator, discriminator = nn.Linear(4, 8).to("cuda"), nn.Linear(8, 1).to("cuda").requires_grad_(False)
optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
for step in range(3):
    noise = torch.randn(16, 4).to("cuda")  # <- GL406
    scores = discriminator(generator(noise))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, torch.ones(16, 1).to("cuda"))  # <- GL406
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_TWO_LINES = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 8, device="cuda")
    weights = torch.linspace(0, 1, 4)  # <- GL406
    weights = weights.cuda()
    loss = (weights * model(x).squeeze(1).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_THERE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = (model(torch.randn(4, 8, device="cuda")) - torch.ones(4, 1, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_USED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    order = torch.randperm(8)
    host = torch.arange(32.0).view(4, 8)[:, order]
    loss = model(host.to("cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_DATA = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.tensor([[0.1 * step, 0.2]]).to("cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_ONCE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, target = torch.randn(4, 8).to("cuda"), torch.zeros(4, 1).to("cuda")
for step in range(3):
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="GL406",
    name="created-then-moved",
    severity="info",
    since="0.1.0",
    needs=("operations", "optimizer"),
    check=check,
    bad=(
        Example(title="noise and labels moved as they are made", code=_NOISE, simulate=("cuda",)),
        Example(title="made in one line, moved in the next", code=_TWO_LINES, simulate=("cuda",)),
    ),
    good=(
        Example(title="made on the device", code=_THERE, simulate=("cuda",)),
        Example(title="used on the host", code=_USED, simulate=("cuda",)),
        Example(title="data of Python's", code=_DATA, simulate=("cuda",)),
        Example(title="once, before the loop", code=_ONCE, simulate=("cuda",)),
    ),
)
