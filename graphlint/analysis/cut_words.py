"""The words for a cut: where it is, what it is, and what would mend it.

May import `record` and the rest of `analysis`. Nothing is decided here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.cuts import Cut
from graphlint.analysis.wording import listed, place
from graphlint.record.events import Backward, HostRead, Op
from graphlint.record.identity import Serial, SiteId, TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_METHODS = frozenset({"item", "tolist", "numpy"})
_DRAWN = re.compile(r"\.sample\(")
_HARD = (
    "replace the hard choice{where} by something with a gradient for training (a softmax, a sigmoid, a "
    "straight-through estimate)"
)
_ANEW = "go on with {source} itself: a tensor made anew{where} has no history"
_REMEDIES: Mapping[str, str] = {
    "host": _ANEW,
    "rewrapped": _ANEW,
    "integer": _HARD,
    "comparison": _HARD,
    "derivative": "pass create_graph=True where the derivative enters the loss{where}",
    "other": "compute it{where} by operations that keep the graph",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A line to show with a cut, and what to say of it."""

    frame: Frame
    text: str


class CutWords:
    """Puts cuts into words, for a reader who stands at one site."""

    def __init__(self, facts: "Facts", seen_from: SiteId | None) -> None:
        self._facts = facts
        self._seen_from = seen_from

    def distinct(self, cuts: tuple[Cut, ...], most: int) -> tuple[Cut, ...]:
        """Returns the first `most` cuts that lie on lines of their own."""
        kept: dict[tuple[str, int] | None, Cut] = {}
        for cut in cuts:
            frame = self.block(cut) or self._facts.graphs.frame(cut.site)
            kept.setdefault((frame.path, frame.line) if frame is not None else None, cut)
        if len(kept) > 1:
            kept.pop(None, None)
        return tuple(kept.values())[:most]

    def places(self, cut: Cut) -> tuple[Place, ...]:
        """Returns the lines of a cut, the cut itself first."""
        inner = self._facts.graphs.frame(cut.site)
        if cut.kind == "no-grad":
            return self._no_grad_places(cut)
        if inner is None:
            return ()
        found = [Place(inner, f"cut here: {cut.words}")]
        if cut.kind == "host":
            found.extend(self._read_place(cut, inner))
        call = self._facts.graphs.common_frame(cut.site, self._seen_from)
        if call is not None and (call.path, call.line) != (inner.path, inner.line):
            found.append(Place(call, "called from here"))
        return tuple(found)

    def _read_place(self, cut: Cut, inner: Frame) -> list[Place]:
        for read in self._facts.values.consumers(cut.source):
            if isinstance(read, HostRead):
                frame = self._facts.graphs.frame(read.site)
                if frame is not None and (frame.path, frame.line) != (inner.path, inner.line):
                    return [Place(frame, "read into Python here")]
        return []

    def _no_grad_places(self, cut: Cut) -> tuple[Place, ...]:
        call = self._facts.graphs.common_frame(cut.site, cut.grad_site or self._seen_from)
        block = self.block(cut)
        if block is None:
            return (
                (Place(call, "cut here: computed with gradients switched off"),) if call is not None else ()
            )
        decorated = self._decorated(cut)
        if decorated is not None:
            found = [
                Place(block, "cut here: the decorator switches gradients off in the function"),
                Place(decorated, "computed without a graph"),
            ]
            return (*found, Place(call, "called here")) if call is not None else tuple(found)
        if self._in_library(cut):
            return (Place(block, "cut here: what this line calls computes without gradients"),)
        found = [Place(block, "cut here: gradients are switched off from here on")]
        if call is not None and (call.path, call.line) != (block.path, block.line):
            found.append(Place(call, "computed without a graph"))
        return tuple(found)

    def block(self, cut: Cut) -> Frame | None:
        """Returns the line of the `no_grad` block around a cut, or of the decorator, when it is known."""
        entered = self._facts.graphs.frame(cut.grad_site)
        if entered is None:
            return None
        statement = self._facts.sources.statement(entered.path, entered.line)
        if statement is not None and statement.opens_block:
            return entered
        called = self._decorated(cut)
        if called is not None:
            return Frame(called.path, called.first_line, called.function, called.first_line)
        return entered

    def _decorated(self, cut: Cut) -> Frame | None:
        """Returns the frame of the decorated function that a cut lies in; None where no decorator made it.

        A decorated function enters the block at each call; its own first line is the decorator's.
        """
        entered = self._facts.graphs.frame(cut.grad_site)
        statement = self._facts.sources.statement(entered.path, entered.line) if entered is not None else None
        if entered is None or (statement is not None and statement.opens_block):
            return None
        frames = self._facts.graphs.frames(cut.site)
        outer = [(frame.path, frame.line, frame.function) for frame in frames]
        at = (entered.path, entered.line, entered.function)
        return frames[outer.index(at) - 1] if at in outer and outer.index(at) > 0 else None

    def remedy(self, cut: Cut, loss: str, kept_for: str | None = None) -> str:
        """Returns what would mend the cut, without a full stop; `kept_for` is a loss that needs it."""
        inner = self._facts.graphs.frame(cut.site)
        where = f" ({place(inner)})" if inner is not None else ""
        source = self._name(cut.source, inner)
        match cut.kind:
            case "detach" | "data":
                also = f"; the detached tensor is right for {kept_for}" if kept_for else ""
                if source is None or source == loss:
                    return f"go on with the tensor itself instead of {cut.words}{where}{also}"
                return f"build {loss} from {source} itself, without {cut.words}{where}{also}"
            case "no-grad":
                return self._remedy_no_grad(cut)
            case _:
                return _REMEDIES[cut.kind].format(where=where, source=source or "the tensor")

    def _remedy_no_grad(self, cut: Cut) -> str:
        block = self.block(cut)
        if block is not None and self._decorated(cut) is not None:
            return f"take the decorator off ({place(block)})"
        call = self._facts.graphs.common_frame(cut.site, cut.grad_site or self._seen_from)
        if block is not None and self._in_library(cut):
            drawn = self._facts.sources.call(block.path, block.line, _DRAWN) is not None
            return f"use a call that keeps the gradient{' (rsample)' if drawn else ''} at {place(block)}"
        if call is not None and block is not None and not self._opens_block(block):
            return (
                f"switch gradients on again after {place(block)}, or use `with torch.no_grad():` there: "
                f"`set_grad_enabled` holds until it is called again"
            )
        if block is None and call is not None:
            return f"switch gradients on again before {place(call)}, as torch.set_grad_enabled(True) does"
        quoted = self._facts.wording.call_at(call) if call is not None else None
        entered = f" ({place(block)})" if block is not None else ""
        return f"run {quoted or 'that call'} with gradients on, outside of `no_grad`{entered}"

    def _opens_block(self, frame: Frame) -> bool:
        statement = self._facts.sources.statement(frame.path, frame.line)
        return statement is None or statement.opens_block

    def _in_library(self, cut: Cut) -> bool:
        """Tells whether the call that cuts switched gradients off for itself, as torch's `sample` does."""
        entered, at = self._facts.graphs.frame(cut.grad_site), self._facts.graphs.frame(cut.site)
        if entered is None or entered != at or self._decorated(cut) is not None:
            return False
        statement = self._facts.sources.statement(entered.path, entered.line)
        return statement is not None and not statement.opens_block

    def reads(self, backward: Backward, parameters: tuple[TensorId, ...]) -> tuple[Frame, ...]:
        """Returns the lines that read values computed from the parameters into Python before a backward."""
        frames = (self._facts.graphs.frame(read.site) for read in self._host_reads(backward, parameters))
        return tuple(dict.fromkeys(frame for frame in frames if frame is not None))

    def rewrapped(self, backward: Backward, parameters: tuple[TensorId, ...], loss: str) -> str | None:
        """Returns the remedy for a loss that its line made anew from numbers which it read of tensors.

        None unless the reads and the making stand on one line, and all that was read has a name.
        """
        root = backward.roots[0] if len(backward.roots) == 1 else None
        maker = self._facts.values.producer(root, backward.serial) if root is not None else None
        if not isinstance(maker, Op) or maker.inputs:
            return None
        at = self._facts.graphs.frame(maker.site)
        reads = [
            read
            for read in self._host_reads(backward, parameters)
            if at is not None and self._facts.graphs.frame(read.site) == at and read.serial < maker.serial
        ]
        names = [self._name(read.tensor.tensor, at) for read in reads]
        known = [name for name in names if name is not None and name != loss]
        if at is None or not known or len(known) != len(names):
            return None
        alone = len(set(known)) == 1
        taken = [f"`.{read.method}()`" if read.method in _METHODS else f"`{read.method}()`" for read in reads]
        without = listed([*taken, f"`{maker.name}`"])
        return (
            f"build {loss} from {listed(known)} {'itself' if alone else 'themselves'}, without {without} "
            f"({place(at)})"
        )

    def _host_reads(self, backward: Backward, parameters: tuple[TensorId, ...]) -> tuple[HostRead, ...]:
        step = self._facts.steps.of(backward.serial)
        if step is None:
            return ()
        return self._facts.cuts.left_to_python(parameters, Serial(step.first - 1), backward.serial)

    def _name(self, tensor: TensorId, frame: Frame | None) -> str | None:
        name = self._facts.names.tensor_name(tensor, frame.function if frame is not None else None)
        return f"`{name}`" if name is not None else None
