"""Draws training programs: loops as people write them, with the slips that people make.

Each program is a row of updates, one optimizer's each, right unless a slip was drawn.
"""

from itertools import count

from hypothesis import strategies as st
from programs import language as lang

SLIPS = (
    "no zero",
    "zero before step",
    "zero after",
    "no backward",
    "no step",
    "retain",
    "twice",
    "detached input",
    "detached output",
    "earlier value",
    "earlier loss",
    "joined loss",
    "part first",
    "shift",
    "foreign network",
    "attached input",
)


class _Writer:
    """Writes a body statement by statement; every name is new."""

    def __init__(self) -> None:
        self.body: list[lang.Statement] = []
        self.values = [lang.BATCH]
        self.losses: list[str] = []
        self._numbers = {kind: count() for kind in ("h", "loss")}

    def name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers[kind])}"

    def forward(self, module: str, source: str, *, tanh: bool) -> str:
        target = self.name("h")
        self.body.append(lang.Forward(target, module, source, tanh))
        self.values.append(target)
        return target

    def detach(self, source: str) -> str:
        target = self.name("h")
        self.body.append(lang.Detach(target, source))
        return target

    def loss(self, source: str, *, squared: bool) -> str:
        target = self.name("loss")
        self.body.append(lang.Loss(target, source, squared))
        self.losses.append(target)
        return target

    def join(self, kind: str, left: str, right: str, sign: str = "+") -> str:
        target = self.name(kind)
        self.body.append(lang.Join(target, left, right, sign))  # type: ignore[arg-type]
        (self.losses if kind == "loss" else self.values).append(target)
        return target


@st.composite
def programs(draw: st.DrawFn) -> lang.Program:
    """A program of one to three updates over two or three modules."""
    modules = ("a", "b", "c")[: draw(st.integers(2, 3))]
    together = draw(st.sampled_from((1, 1, 1, 2)))
    groups = [modules[:together], *((module,) for module in modules[together:])]
    optimizers = tuple((f"{''.join(group)}_optimizer", tuple(group)) for group in groups)
    writer = _Writer()
    carries = draw(st.sampled_from((False,) * 5 + (True,)))
    if carries:
        writer.values.append(lang.CARRIED)
    for optimizer, group in draw(st.lists(st.sampled_from(optimizers), min_size=1, max_size=3)):
        most = draw(st.sampled_from((0, 1, 1, 2)))
        slips = draw(st.sets(st.sampled_from(SLIPS), min_size=min(most, 1), max_size=most))
        _update(draw, writer, optimizer, group, modules, slips)
    if carries:
        value = draw(st.sampled_from([value for value in writer.values if value != lang.CARRIED]))
        writer.body.append(lang.Carry(value, detached=draw(st.booleans())))
    return lang.Program(modules, optimizers, tuple(writer.body))


def _update(
    draw: st.DrawFn,
    writer: _Writer,
    optimizer: str,
    group: tuple[str, ...],
    modules: tuple[str, ...],
    slips: set[str],
) -> None:
    """Writes one update of an optimizer: zero, forward, loss, backward, step."""
    late = draw(st.booleans())
    zeroes = not slips & {"no zero", "zero before step", "zero after"}
    if zeroes and not late:
        writer.body.append(lang.Zero(optimizer))
    loss = _loss(draw, writer, group, modules, slips)
    if zeroes and late:
        writer.body.append(lang.Zero(optimizer))
    if "no backward" not in slips:
        if "earlier loss" in slips:
            loss = draw(st.sampled_from(writer.losses))
        writer.body.append(lang.Backward(loss, retain=bool(slips & {"retain", "twice"})))
        if "twice" in slips:
            writer.body.append(lang.Backward(loss))
    if "zero before step" in slips:
        writer.body.append(lang.Zero(optimizer))
    if "no step" not in slips:
        writer.body.append(lang.Step(optimizer))
    if "zero after" in slips:
        writer.body.append(lang.Zero(optimizer))


def _loss(
    draw: st.DrawFn, writer: _Writer, group: tuple[str, ...], modules: tuple[str, ...], slips: set[str]
) -> str:
    """Writes a forward pass and returns the name of its loss."""
    value = draw(st.sampled_from(writer.values)) if "earlier value" in slips else lang.BATCH
    if "detached input" in slips:
        value = writer.detach(value)
    others = [module for module in modules if module not in group]
    if others and draw(st.booleans()):
        # Another network's output, as a discriminator sees a generator's: cut off, as is right.
        value = writer.forward(draw(st.sampled_from(others)), value, tanh=False)
        value = value if "attached input" in slips else writer.detach(value)
    for module in group:
        value = writer.forward(module, value, tanh=draw(st.booleans()))
    if "foreign network" in slips and others:
        value = writer.forward(draw(st.sampled_from(others)), value, tanh=draw(st.booleans()))
    if "shift" in slips:
        writer.body.append(lang.Shift(draw(st.sampled_from(writer.values))))
    if "detached output" in slips:
        value = writer.detach(value)
    loss = writer.loss(value, squared=draw(st.booleans()))
    if "part first" in slips:
        writer.body.append(lang.Backward(loss, retain=True))
        return writer.join("loss", loss, writer.loss(value, squared=True))
    if "joined loss" in slips and len(writer.losses) > 1:
        return writer.join("loss", loss, draw(st.sampled_from(writer.losses[:-1])))
    return loss
