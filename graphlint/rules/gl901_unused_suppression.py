"""A comment or a `graphlint.expect` that declares a fault as meant suppresses nothing.

## What it does

Reports a comment `# graphlint: ignore[...]`, and a `graphlint.expect(...)`, under which the rules that it
names were checked and found nothing. It also reports a comment that names no rule there is, that can't be
read (the brackets are missing, say), that stands at a line which a finding labels but isn't reported at, or
that repeats what another one of the same statement says.

## Why it matters

A declaration that has outlived its fault hides the next one on that line. One with a slip in it suppresses
nothing, while whoever wrote it believes that it does.

## Example

    optimizer.zero_grad()
    loss = model(inputs).mean()
    loss.backward()
    optimizer.step()  # graphlint: ignore[GL301] gradients are accumulated by hand

## Use instead

    optimizer.zero_grad()
    loss = model(inputs).mean()
    loss.backward()
    optimizer.step()

## Known limits

Silent where nothing is proved: a rule that was not checked or not selected, a line that the run is not known
to have come by, a run that an exception or a signal cut short. In a run that `--steps` stopped it is a hint
only, of severity info: the fault may need more steps. What is meant on one kind of machine alone names GL901
beside its rule: `# graphlint: ignore[GL401, GL901] two GPUs only`.
"""

from collections.abc import Iterator

from graphlint.analysis.facts import Facts
from graphlint.analysis.wording import counted, listed
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.rule import Example, Rule
from graphlint.lint.suppressed import Idle

_FORM = "`# graphlint: ignore[GL301] reason`"


def review(facts: Facts, idle: tuple[Idle, ...]) -> Iterator[Occurrence]:
    """Yields a finding for each declaration that was of no use."""
    for found in idle:
        yield _occurrence(facts, found)


def _occurrence(facts: Facts, idle: Idle) -> Occurrence:
    message, label, fix = _words(facts, idle)
    return Occurrence(
        message=message,
        labels=(Label(path=idle.path, line=idle.line, text=label),),
        fix=fix,
        cause=(idle.path, idle.line, idle.by, idle.why, *idle.entries),
        severity=None if idle.ended else "info",
    )


def _words(facts: Facts, idle: Idle) -> tuple[str, str, str]:
    """Returns the message, the label and the fix."""
    what = "comment" if idle.by == "comment" else "`graphlint.expect`"
    named = listed([f"`{entry}`" for entry in idle.entries])
    several = len(idle.entries) > 1
    drop = f"remove the {what}" if idle.whole else f"take {named} out of it"
    if idle.why == "unreadable":
        message = f"This comment is addressed to graphlint, but {idle.detail}: it suppresses nothing."
        return message, "suppresses nothing", f"write {_FORM}, or remove it."
    if idle.why == "unknown":
        verb, them = ("name", "them") if several else ("names", "it")
        message = f"{named} {verb} no rule: nothing is suppressed by {them}."
        fix = f"name a rule by its code or name (`graphlint rules` lists them: {idle.detail}), or {drop}."
        return message, f"{named} {'are' if several else 'is'} unknown", fix
    if idle.why == "repeated":
        message = f"The comment in line {idle.detail} suppresses {named} at this statement already."
        return message, "says it again", f"{drop}."
    if idle.why == "beside":
        message = f"{named} is reported at {idle.detail}, not here: this comment suppresses nothing."
        return message, "labelled beside it only", f"move the comment to {idle.detail}."
    where = "at this statement" if idle.by == "comment" else "in its block"
    message = (
        f"This {what} suppresses nothing: {named} {'were' if several else 'was'} checked in this run of "
        f"{counted(facts.steps.count, 'step')}, and found nothing {where}. It would hide a fault that comes "
        "up there later."
    )
    label = f"{named} {'find' if several else 'finds'} nothing here"
    return message, label, f"{drop}; or name GL901 in it too, if the fault shows in other runs only."


_LOOP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

_UNUSED = Example(
    title="a comment that has outlived its fault",
    code=_LOOP
    + """\
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()  # graphlint: ignore[GL101] a retained graph  # <- GL901
""",
)

_SLIP = Example(
    title="comments that can't be read or name no rule",
    code=_LOOP
    + """\
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()  # graphlint: ignore GL101  # <- GL901
    # graphlint: ignore[GL999] no such rule  # <- GL901
    optimizer.step()
""",
)

_IDLE_BLOCK = Example(
    title="a block that expects a fault which doesn't happen in it",
    code="import graphlint\n"
    + _LOOP
    + """\
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    with graphlint.expect("GL101", reason="the graph is used again"):  # <- GL901
        loss.backward()
    optimizer.step()
""",
)

_USED = Example(
    title="a comment on a fault that is meant",
    code=_LOOP
    + """\
for step in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()  # graphlint: ignore[GL301] the gradient is to gather momentum by itself
    optimizer.step()
""",
)

_EXPECTED = Example(
    title="a block around a fault that is meant",
    code="import graphlint\n"
    + _LOOP
    + """\
for step in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    with graphlint.expect("missing-zero-grad", reason="the gradient is to gather momentum"):
        loss.backward()
        optimizer.step()
""",
)

_BESIDE = Example(
    title="a comment at a line that the report only adds to its own",
    code=_LOOP
    + """\
for step in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()  # <- GL301
    optimizer.step()  # graphlint: ignore[GL301] meant  # <- GL901
""",
)

_IN_TEXT = Example(
    title="the same words in a string are no comment",
    code=_LOOP
    + """\
print("write # graphlint: ignore[GL101] behind the line")
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
)

_NOT_REACHED = Example(
    title="a line that the run did not come by",
    code=_LOOP
    + """\
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    if step > 100:
        loss.detach_()  # graphlint: ignore[GL101] late in long runs
    optimizer.step()
""",
)

RULE = Rule(
    code="GL901",
    name="unused-suppression",
    severity="warning",
    since="0.1.0",
    needs=("expectations",),
    review=review,
    bad=(_UNUSED, _SLIP, _IDLE_BLOCK, _BESIDE),
    good=(_USED, _EXPECTED, _IN_TEXT, _NOT_REACHED),
)
