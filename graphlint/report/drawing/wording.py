"""Words for what a picture shows, on top of the names and sources that `analysis` knows.

Imports `record` and `analysis`.
"""

import os.path

from graphlint.analysis.facts import Facts
from graphlint.record.events import Backward
from graphlint.record.identity import ModuleId, SiteId, TensorId
from graphlint.record.tables import Frame, Parameter

CODE_WIDTH = 46
"""Characters of a source line that a box shows."""

TIMES = "\N{MULTIPLICATION SIGN}"


class Words:
    """Answers how things of one trace are called."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._trace = facts.trace

    def frame(self, site: SiteId | None) -> Frame | None:
        """Returns the user's innermost frame at a site."""
        found = self._trace.sites.get(site) if site is not None else None
        return found.frames[0] if found is not None and found.frames else None

    def path(self, path: str) -> str:
        """Returns a path relative to the run's directory where it lies below it."""
        directory = self._trace.header.directory.rstrip("/\\")
        if directory and path.startswith(directory + os.path.sep):
            return path[len(directory) + 1 :]
        return path

    def code(self, frame: Frame) -> str:
        """Returns a frame's line as a box shows it: `65 | loss.backward()`, cut where it is long."""
        statement = self._facts.sources.statement(frame.path, frame.line)
        text = self._line(frame)
        if statement is not None and statement.last_line > statement.first_line:
            text = statement.text
        return clip(f"{frame.line} | {text}", CODE_WIDTH)

    def _line(self, frame: Frame) -> str:
        """Returns the text of a frame's line, without the comment behind its statement."""
        text = self._facts.sources.line(frame.path, frame.line) or ""
        statement = self._facts.sources.statement(frame.path, frame.line)
        if statement is not None and text.startswith(statement.text):
            comment = text.removeprefix(statement.text).lstrip().startswith("#")
            return statement.text if comment else text
        return text

    def place(self, frame: Frame) -> str:
        """Returns `train.py:65: the line's text`."""
        code = self._line(frame)
        return f"{self.path(frame.path)}:{frame.line}" + (f": {code}" if code else "")

    def tensor(self, tensor: TensorId, scope: str | None = None) -> str:
        """Returns a tensor's name, a parameter's dotted one; empty when the user gave none."""
        return self._facts.names.tensor_name(tensor, scope) or ""

    def parameter(self, tensor: TensorId) -> Parameter | None:
        """Returns a tensor's place in a module, or None."""
        return next(iter(self._facts.names.places(tensor)), None)

    def owned(self, tensor: TensorId, module: str) -> str:
        """Returns a parameter's name at that of its places which lies in a module, by its dotted name."""
        for place in self._facts.names.places(tensor):
            name = f"{self.module(place.module)}.{place.name}"
            if name.startswith(module + "."):
                return name
        return self.tensor(tensor)

    def module(self, module: ModuleId) -> str:
        """Returns a module's dotted name from the variable that holds its root: `discriminator.out`."""
        return self._facts.names.module_name(module) or self.module_type(module)

    def module_type(self, module: ModuleId) -> str:
        """Returns the name of a module's class."""
        found = self._trace.modules.get(module)
        return found.type if found is not None else "Module"

    def backward(self, backward: Backward) -> str:
        """Returns a backward's call as the source has it: `discriminator_loss.backward()`."""
        return self._facts.wording.backward(backward).strip("`")

    def loss(self, backward: Backward) -> str:
        """Returns the name of the first tensor that a backward was called on; `loss` when nameless."""
        return next(iter(self.losses(backward)), "") or "loss"

    def losses(self, backward: Backward) -> tuple[str, ...]:
        """Returns the names of the tensors that a backward was called on, empty where there is none.

        A single one without a name is shown as its line has it.
        """
        frame = self.frame(backward.site)
        scope = frame.function if frame is not None else None
        names = tuple(self.tensor(root, scope) for root in backward.roots)
        return (self._facts.wording.expression(backward) or "",) if names == ("",) else names


def plural(count: int, noun: str) -> str:
    """Returns `1 node`, `2 nodes`; `leaf` becomes `leaves`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} " + ("leaves" if noun == "leaf" else f"{noun}s")


def clip(text: str, width: int) -> str:
    """Returns `text` cut to `width` characters, the cut shown."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
