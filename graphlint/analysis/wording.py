"""Phrases for events, as a person reads them in a message: calls quoted, things listed and counted.

May import `record` and the rest of `analysis`. Nothing is ever decided here.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from graphlint.record.events import Backward, OptimizerStep, ZeroGrad
from graphlint.record.identity import SiteId, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_LISTED = 3
_BACKWARDS = re.compile(r"\.backward\(|\bgrad\(")
_STEPS = re.compile(r"\.step\(")
_EXPRESSION_LIMIT = 48


class Wording:
    """Words the events of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def frame(self, site: SiteId | None) -> Frame | None:
        """Returns the innermost user frame of a site."""
        return self._facts.graphs.frame(site)

    def call_at(self, frame: Frame) -> str | None:
        """Returns the call that stands at a frame's line, quoted; None when there is no source to quote."""
        statement = self._facts.sources.statement(frame.path, frame.line)
        if statement is None or not statement.calls:
            return None
        quoted = self._facts.sources.quote(frame.path, frame.line)
        return f"`{quoted}`" if quoted is not None else None

    def call_of(self, site: SiteId | None) -> str | None:
        """Returns the call that stands at a site's line, quoted; None when there is none to quote."""
        frame = self.frame(site)
        return self.call_at(frame) if frame is not None else None

    def backward(self, backward: Backward) -> str:
        """Returns "`generator_loss.backward()`", as the source has it."""
        frame = self.frame(backward.site)
        if frame is not None:
            call = self._facts.sources.call(frame.path, frame.line, _BACKWARDS)
            quoted = f"`{call}`" if call is not None else self.call_at(frame)
            if quoted is not None:
                return quoted
        root = self._facts.names.tensor_name(backward.roots[0]) if backward.roots else None
        if root is None:
            return "a backward"
        return f"`{root}.backward()`" if backward.call == "Tensor.backward" else f"a backward of `{root}`"

    def loss(self, backward: Backward) -> str:
        """Returns the tensor that a backward was called on, "`generator_loss`".

        One without a name is quoted as the line has it, "`real_loss + fake_loss`"; "the loss" where it is too
        long for that.
        """
        frame = self.frame(backward.site)
        scope = frame.function if frame is not None else None
        names = [self._facts.names.tensor_name(root, scope) for root in backward.roots]
        if names == [None] and frame is not None:
            names = [self.expression(backward)]
        quoted = [f"`{name}`" for name in names if name is not None]
        return listed(quoted) if quoted and len(quoted) == len(names) else "the loss"

    def expression(self, backward: Backward) -> str | None:
        """Returns what a backward was called on, bare, as its line has it; None when that can't be quoted."""
        frame = self.frame(backward.site)
        if frame is None:
            return None
        spelled = self._facts.sources.differentiated(frame.path, frame.line)
        return spelled if spelled is not None and len(spelled) <= _EXPRESSION_LIMIT else None

    def step(self, step: OptimizerStep) -> str:
        """Returns "`discriminator_optimizer.step()`"."""
        name = self._facts.names.optimizer_name(step.optimizer)
        if name is not None:
            return f"`{name}.step()`"
        return f"the step of {self._facts.names.optimizer(step.optimizer)}"

    def step_call(self, step: OptimizerStep) -> str:
        """Returns the call that made a step, as its line has it: "`scaler.step(optimizer)`"."""
        frame = self.frame(step.site)
        spelled = self._facts.sources.call(frame.path, frame.line, _STEPS) if frame is not None else None
        return f"`{spelled}`" if spelled is not None else self.step(step)

    def zero(self, zero: ZeroGrad) -> str:
        """Returns "`optimizer.zero_grad()`", or what else cleared the gradients."""
        names = self._facts.names
        if zero.optimizer is not None:
            name = names.optimizer_name(zero.optimizer)
            return f"`{name}.zero_grad()`" if name else f"zero_grad of {names.optimizer(zero.optimizer)}"
        if zero.module is not None:
            name = names.module_name(zero.module)
            return f"`{name}.zero_grad()`" if name else f"zero_grad of {names.module(zero.module)}"
        return "clearing `.grad` by hand"

    def at(self, site: SiteId | None, *, near: Frame | None = None) -> str:
        """Returns " (line 66)", with the file's name where it is not `near`'s; empty without a site."""
        frame = self.frame(site)
        return f" ({place(frame, near=near)})" if frame is not None else ""

    def owners(self, tensors: Iterable[TensorId]) -> str:
        """Returns the modules that hold some parameters, "`generator` and `encoder`"."""
        return listed(self._facts.owners.phrases(tensors))

    def parameters(self, tensors: Sequence[TensorId]) -> str:
        """Returns "4 parameters of `generator`", or the names of those that go by their own."""
        holders, alone = self._facts.owners.split(tensors)
        if not holders:
            return listed(alone)
        return f"{counted(len(tensors), 'parameter')} of {listed([*holders, *alone])}"


def place(frame: Frame, *, near: Frame | None = None) -> str:
    """Returns "line 66", or "line 66 of models.py" when that is another file than `near`'s."""
    if near is not None and near.path != frame.path:
        file = frame.path.replace("\\", "/").rpartition("/")[2]
        return f"line {frame.line} of {file}"
    return f"line {frame.line}"


def listed(phrases: Sequence[str], *, limit: int = _LISTED) -> str:
    """Returns "a", "a and b", "a, b and c", or "a, b, c and 4 more"."""
    unique = list(dict.fromkeys(phrases)) or ["nothing"]
    if len(unique) > limit:
        unique = [*unique[:limit], f"{len(unique) - limit} more"]
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} and {unique[-1]}"


def counted(number: int, noun: str) -> str:
    """Returns "1 node", "6 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
