"""An operation met tensors on different devices, and torch refused it.

## What it does

Explains torch's error about devices: which argument was on which device, which one was left behind, and
where it was made, moved or passed in last.

## Why it matters

Torch names two devices and an internal function, and stops in the line where the tensors met. The line to
change is usually another one: where a tensor was made on the host, was moved for another purpose, or took
the place of the one that should have been passed.

## Example

    model = Model().to("cuda")
    noise = torch.randn(8, 32)
    images = model(noise)

## Use instead

    model = Model().to("cuda")
    noise = torch.randn(8, 32, device="cuda")
    images = model(noise)

## Known limits

After the first steps operations are not recorded one by one; then the tensors that the line names are all
that is known.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from graphlint.analysis.devices_mismatch import Left, Mismatch, find_mismatch
from graphlint.analysis.devices_wording import sentence
from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import listed, place
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

_LABELS = 8


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields the mismatch that ended the run, if one did."""
    found = find_mismatch(facts)
    if found is None:
        return
    names, wrong = _names(facts, found), listed(sorted({item.device for item in found.left}))
    be = "is" if len(found.left) == 1 and not found.left[0].parameter else "are"
    what = f"{found.holder} lies on {found.wanted}" if found.holder else f"the rest lies on {found.wanted}"
    met = f"They meet in {_inside(found)}, and" if found.raised != found.blamed else "They meet here, and"
    yield Occurrence(
        message=sentence(f"{names} {be} on {wrong} while {what}. {met} torch raises."),
        labels=tuple(dict.fromkeys(_labels(facts, found)))[:_LABELS],
        fix=_fix(facts, found),
        step=facts.steps.step_of(found.serial),
        cause=("mismatch", found.blamed.path, found.blamed.line),
    )


def _names(facts: Facts, found: Mismatch) -> str:
    """Returns the names of what was left behind; parameters go by their module's name."""
    parameters = [item.tensor for item in found.left if item.parameter and item.tensor is not None]
    others = [item for item in found.left if not (item.parameter and item.tensor is not None)]
    alike = Counter(_spelled(item) for item in others if item.name is None)
    names = [_several(_spelled(item), alike[_spelled(item)]) for item in others]
    if parameters:
        what = "parameters" if set(parameters) & facts.devices.parameters else "buffers"
        names.insert(0, f"the {what} of {facts.wording.owners(parameters)}")
    return listed(names)


def _several(described: str, number: int) -> str:
    """Returns "2 tensors of shape (1, 4, 6)" for two tensors without a name."""
    return described.replace("a tensor", f"{number} tensors", 1) if number > 1 else described


def _spelled(left: Left) -> str:
    return f"`{left.name}`" if left.name is not None else left.described


def _inside(found: Mismatch) -> str:
    return f"`{found.raised.function}` ({place(found.raised, near=found.blamed)})"


def _labels(facts: Facts, found: Mismatch) -> Iterator[Label]:
    names = _names(facts, found)
    if any(item.passed for item in found.left):
        yield _label(found.blamed, f"{names} passed in here")
    else:
        yield _label(found.blamed, f"torch raises here: {names} on {found.left[0].device}")
    if found.raised != found.blamed:
        yield _label(found.raised, f"torch raises here: the rest lies on {found.wanted}")
    for item in found.left:
        for frame in item.asked[-2:]:
            yield _label(frame, f"{_spelled(item)} was put on {item.device} here")
        for frame in (made for made in item.made if made not in item.asked and not item.parameter):
            yield _label(frame, f"{_spelled(item)} was made on {item.device} here")
        for frame in item.copied:
            yield _label(frame, f"copies {_spelled(item)} to {found.wanted} here, and the copy is not used")
        if item.parameter and item.tensor is not None:
            yield from _built(facts, item.tensor, item.device)
        if item.kept is not None:
            yield _label(item.kept, f"{_spelled(item)} is kept as a plain attribute here")
    for frame in found.moved:
        yield _label(frame, f"{found.holder or 'the module'} was moved to {found.wanted} here")


def _built(facts: Facts, parameter: TensorId, device: str) -> Iterator[Label]:
    """Yields where a parameter's memory was filled: the line that built its module."""
    born = facts.optimized.born(parameter)
    frame = facts.graphs.frame(born.site) if born is not None else None
    if frame is not None:
        yield _label(frame, f"built on {device} here")


def _fix(facts: Facts, found: Mismatch) -> str:
    """Returns the remedy: what to move where, and the line to do it on."""
    first, to = found.left[0], found.wanted
    if first.parameter and first.tensor is not None:
        owner = facts.wording.owners([item.tensor for item in found.left if item.tensor is not None])
        when = ", before the optimizer is made" if first.tensor in facts.devices.parameters else ""
        return f"move {owner} to {to} as well{when}: `.to({to!r})`."
    if first.held:
        name = first.name.rpartition(".")[2] if first.name is not None else "name"
        where = f"at {place(first.kept, near=found.blamed)}" if first.kept is not None else "in its __init__"
        return (
            f"register it in the module {where}, `self.register_buffer({name!r}, ...)`: a moved module takes "
            f"its buffers along, a plain attribute stays behind."
        )
    asked, made = _at(found.left, "asked"), _at(found.left, "made")
    them = "it" if len(found.left) == 1 else "them"
    names = _names(facts, found) if all(item.name is not None for item in found.left) else them
    if len(found.left) == 1 and first.copied:
        kept = f"`{first.name} = {first.name}.to({to!r})`" if first.name is not None else "give it a name"
        return f"keep the copy that {place(first.copied[-1], near=found.blamed)} makes: {kept}."
    if asked:
        return f"put {names} on {to} instead: `.to({to!r})` on {asked}."
    if made and all(item.factory for item in found.left):
        return f"make {names} on {to}: `device={to!r}` on {made}."
    return f"put {names} on {to} before {place(found.blamed)} uses {them}: `.to({to!r})`."


def _at(left: Sequence[Left], which: str) -> str:
    frames: list[Frame] = [frame for item in left for frame in getattr(item, which)[-1:]]
    lines = sorted({frame.line for frame in frames})
    if not lines:
        return ""
    return f"{'line' if len(lines) == 1 else 'lines'} {listed([str(line) for line in lines])}"


def _label(frame: Frame, text: str) -> Label:
    return Label(path=frame.path, line=frame.line, text=text)


_PASSED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(3):
    x = torch.randn(4, 8)
    loss = model(x).square().mean()  # <- GL404
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_HELD = """\
import torch
from torch import nn

torch.manual_seed(0)


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        table = torch.zeros(16, 8)
        self.table = table

    def forward(self, x):
        return self.layer(x) + self.table[: x.size(0)]  # <- GL404


model = Shifted().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_TARGET = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for step in range(3):
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    logits = model(x.to("cuda"))
    loss = criterion(logits, y)  # <- GL404
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_ALL_MOVED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
images, labels = torch.randn(3, 4, 8), torch.randint(0, 3, (3, 4))

for x, y in zip(images, labels):
    loss = criterion(model(x.to("cuda")), y.to("cuda")) * torch.tensor(0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_OTHER_ERROR = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(3):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        torch.randn(4, 8, device="cuda") @ torch.randn(4, 8, device="cuda")
"""

RULE = Rule(
    code="GL404",
    name="device-mismatch",
    severity="error",
    since="0.1",
    needs=(),
    check=check,
    bad=(
        Example(title="noise left on the host", code=_PASSED, simulate=("cuda",), raises="same device"),
        Example(title="a plain attribute stays behind", code=_HELD, simulate=("cuda",), raises="same device"),
        Example(title="the target left on the host", code=_TARGET, simulate=("cuda",), raises="same device"),
    ),
    good=(
        Example(title="everything moved, and a number that may mix", code=_ALL_MOVED, simulate=("cuda",)),
        Example(title="an error about shapes", code=_OTHER_ERROR, simulate=("cuda",), raises="shapes"),
    ),
)
