"""A value is read from the device into Python in every training step.

## What it does

Finds `.item()`, `float()`, `.tolist()`, `.numpy()`, a tensor in a condition or an f-string, and copies to the
host that are read there, where they read a value of an accelerator in every step. Reads of one function are
one finding. It is a warning where a loss or a score is read before the step's work is all queued, or many
values are read one by one; a hint elsewhere: after the update, or where the value may decide how to go on.

## Why it matters

Python queues work for the device and runs ahead. To read a value it must wait until all of that work is done;
meanwhile nothing new is queued, and the device idles until Python has caught up.

## Example

    for images, labels in loader:
        loss = criterion(model(images), labels)
        log.debug(f"loss {loss.item()}")
        loss.backward()

## Use instead

    for step, (images, labels) in enumerate(loader):
        loss = criterion(model(images), labels)
        loss.backward()
        if step % 100 == 0:
            log.info(f"loss {loss.item()}")

## Known limits

Only values on an accelerator, real or simulated, count, and only reads in steps that are recorded in full. A
read every few steps or once an epoch is not reported, nor is one whose value goes back into torch, what an
evaluation without gradients reads, and what torch reads for itself (a gradient scaler does). A read after
the update counts only in a loop over a DataLoader: elsewhere a step may be a whole epoch.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from graphlint.analysis.devices_wording import sentence, sized
from graphlint.analysis.facts import Facts
from graphlint.analysis.host_reads import HostReads, Read
from graphlint.analysis.wording import counted, listed
from graphlint.lint.finding import Label, Occurrence, Severity
from graphlint.lint.rule import Example, Rule

_ONE_BY_ONE = 16
_LABELS = 8
_READS = re.compile(r"\.(item|tolist|numpy|cpu)\(|\b(float|int|bool)\(")
_ADDS = re.compile(r"\+=\s*[^\s\[(]")
_LOGS = re.compile(r"\.(debug|info|log)\(")
_ITEM = ".item()"
_BULK = frozenset({"tolist", "numpy", "array", "contains", "repr"})

_Function = tuple[str, int, str]


def check(facts: Facts) -> Iterator[Occurrence]:
    """Yields the reads of each function that are made in every step, once for each step."""
    reads = HostReads(facts)
    lines = {line for line in {read.line for read in reads.all} if reads.every_step(line)}
    groups: dict[_Function, list[Read]] = {}
    for read in reads.all:
        if read.line in lines:
            function = (read.frame.path, read.frame.first_line, read.frame.function)
            groups.setdefault(function, []).append(read)
    for function, group in groups.items():
        by_step: dict[int, list[Read]] = {}
        for read in group:
            by_step.setdefault(read.step, []).append(read)
        usual = max(by_step.values(), key=len)
        message, labels, fix = _message(facts, usual), tuple(_labels(usual)), _fix(facts, usual)
        severity = _severity(usual)
        for step in by_step:
            yield Occurrence(
                message=message,
                labels=labels,
                fix=fix,
                step=step,
                cause=("read in every step", *function),
                severity=severity,
            )


def _severity(reads: Sequence[Read]) -> Severity:
    """Returns whether a step's reads cost much: they hold up a pass, to read what only a person looks at."""
    per_line = Counter(read.line for read in reads if not read.waits)
    one_by_one = bool(per_line) and max(per_line.values()) >= _ONE_BY_ONE
    shown = any(
        r.waits and r.tracked and r.inside and not r.answered and r.event.method != "bool" for r in reads
    )
    return "warning" if one_by_one or shown else "info"


# --- words --------------------------------------------------------------------------------------------------


def _message(facts: Facts, reads: Sequence[Read]) -> str:
    devices = listed(list(dict.fromkeys(read.device for read in reads)))
    names = list(dict.fromkeys(_named(facts, read) for read in reads))
    bytes_read = sized(sum((read.move or read.event).bytes for read in reads))
    waits = max(1, sum(read.waits for read in reads))
    times = f", {counted(waits, 'time')} a step" if waits > 1 else ""
    return sentence(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} read from {devices} into Python in every step "
        f"({counted(len(reads), 'read')}, {bytes_read}). There Python waits until {devices} has done all "
        f"that was queued{times}, and queues nothing ahead meanwhile."
    )


def _named(facts: Facts, read: Read) -> str:
    """Returns the name of what is read; the expression that reads it where it has none."""
    tensor = read.event.tensor.tensor if read.move is None else read.move.source.tensor
    name = facts.names.tensor_name(tensor, read.frame.function)
    if name is not None:
        return f"`{name}`"
    spelled = facts.sources.call(read.frame.path, read.frame.line, _READS)
    return f"`{spelled}`" if spelled is not None else facts.names.tensor(tensor, read.frame.function)


def _labels(reads: Sequence[Read]) -> Iterator[Label]:
    """Yields the lines that read, those that wait most first."""
    by_line: dict[tuple[str, int], list[Read]] = {}
    for read in reads:
        by_line.setdefault(read.line, []).append(read)
    ordered = sorted(by_line.items(), key=lambda item: (-sum(r.waits for r in item[1]), item[0]))
    for (path, line), found in ordered[:_LABELS]:
        ways = listed(list(dict.fromkeys(_way(read) for read in found)))
        often = f" {len(found)} times" if len(found) > 1 else ""
        yield Label(path=path, line=line, text=f"{ways} waits for {found[0].device}{often}, every step")


_WAYS: Mapping[str, str] = MappingProxyType(
    {
        "bool": "the truth of a tensor",
        "format": "a tensor made into text",
        "repr": "a tensor made into text",
        "float": "`float()`",
        "int": "`int()`",
        "index": "a tensor used as an index",
        "array": "a tensor given to NumPy",
        "contains": "`in`",
    }
)


def _way(read: Read) -> str:
    """Returns what reads, as a subject of a sentence."""
    if read.move is not None:
        return f"`.{read.move.method}()`"
    return _WAYS.get(read.event.method, f"`.{read.event.method}()`")


def _fix(facts: Facts, reads: Sequence[Read]) -> str:
    methods = {read.event.method for read in reads}
    device = reads[0].device
    per_line = Counter(read.line for read in reads)
    if max(per_line.values()) >= _ONE_BY_ONE:
        return "read all of them at once, with one `.tolist()` of the whole tensor."
    if methods == {"bool"}:
        return (
            f"decide on {device} with `torch.where`, or check every few steps; a check that must run in each "
            "step is declared with `# graphlint: ignore[GL405] reason`."
        )
    if methods <= _BULK:
        return f"do this on {device} with torch, or only in the steps that show it."
    if all(read.tracked and not read.answered for read in reads):
        return _keep(facts, reads)
    return (
        f"keep the values on {device}, or read those that Python needs together, once a step; what must be "
        "read is declared with `# graphlint: ignore[GL405] reason`."
    )


def _keep(facts: Facts, reads: Sequence[Read]) -> str:
    """Returns the remedy for losses that are read to be shown."""
    kept = list(dict.fromkeys(_held(facts, read) for read in reads))
    one = len(kept) == 1
    names = listed([f"`{name}.detach()`" for name in kept if name is not None])
    if None in kept:
        names = "the tensor itself" if one else "the tensors themselves, detached"
    lines = [facts.sources.line(*read.line) or "" for read in reads]
    if all(_ADDS.search(line) for line in lines):
        return f"add up {names} on {reads[0].device}, and read the sum once, where it is printed."
    logged = "; a logger that is given the tensor as an argument reads it only when it prints"
    if any(_decides(facts, read) for read in reads):
        logged = "; a check that must run in each step is declared with `# graphlint: ignore[GL405] reason`"
    elif not any(_LOGS.search(line) for line in lines):
        logged = ""
    return f"keep {names}, and read {'it' if one else 'them'} only in the steps that print{logged}."


def _decides(facts: Facts, read: Read) -> bool:
    """Tells whether the source asks a question of the number that is read, in a condition."""
    inside = facts.sources.function(read.frame) or facts.sources.tree(read.frame.path)
    if inside is None:
        return False
    nodes = list(ast.walk(inside))
    kept = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and node.lineno <= read.frame.line <= (node.end_lineno or 0)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for test in [
        node.test for node in nodes if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert)
    ]:
        if test.lineno <= read.frame.line <= (test.end_lineno or 0) and _READS.search(ast.unparse(test)):
            return True
        if any(isinstance(name, ast.Name) and name.id in kept for name in ast.walk(test)):
            return True
    return False


def _held(facts: Facts, read: Read) -> str | None:
    """Returns the tensor to keep instead of the number, as the source has it; None where it can't be told."""
    tensor = read.event.tensor.tensor if read.move is None else read.move.source.tensor
    name = facts.names.tensor_name(tensor, read.frame.function)
    spelled = facts.sources.call(read.frame.path, read.frame.line, _READS)
    if name is None and spelled is not None and spelled.endswith(_ITEM):
        return spelled.removesuffix(_ITEM)
    return name


_FSTRING = """\
import logging

import torch
from torch import nn

torch.manual_seed(0)
log = logging.getLogger("train")
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    log.debug(f"step {step}: loss {loss.item():.3f}")  # <- GL405
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_PARTS = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    scores = model(torch.randn(4, 8, device="cuda"))
    fit = (scores - 1).square().mean()
    print("fit", fit.item())  # <- GL405
    size = sum(p.square().sum() for p in model.parameters())
    print("size", float(size.detach()))
    spread = model(torch.randn(4, 8, device="cuda")).std()
    print(f"spread {spread}")
    optimizer.zero_grad()
    (fit + 0.1 * size - 0.1 * spread).backward()
    optimizer.step()
"""

_SELDOM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = torch.zeros((), device="cuda")
for step in range(6):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.detach()
    if step % 5 == 0:
        print(running.item())
"""

_HOST = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""

_SCALER = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for step in range(5):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

_EVALUATION = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for batch in range(3):
            print(model(torch.randn(4, 8, device="cuda")).square().mean().item())
"""

RULE = Rule(
    code="GL405",
    name="hidden-sync",
    severity="info",
    since="0.1.0",
    needs=("operations", "backward", "optimizer"),
    check=check,
    bad=(
        Example(title="a debug message that nobody sees", code=_FSTRING, simulate=("cuda",)),
        Example(title="each part of a loss", code=_PARTS, simulate=("cuda",)),
    ),
    good=(
        Example(title="read every few steps", code=_SELDOM, simulate=("cuda",)),
        Example(title="a run on the CPU", code=_HOST),
        Example(title="what a gradient scaler reads", code=_SCALER, simulate=("cuda",)),
        Example(title="an evaluation after each epoch", code=_EVALUATION, simulate=("cuda",)),
    ),
)
