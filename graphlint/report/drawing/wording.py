"""Words for what a picture shows: the user's names, source lines, sizes. Imports `record` only."""

import os.path
from collections import defaultdict

from graphlint.record.identity import ModuleId, SiteId, TensorId
from graphlint.record.tables import Frame, Parameter
from graphlint.record.trace import Trace

_KIB = 1024


class Words:
    """Answers how things of one trace are called. Built once per drawing."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        for name in trace.names:
            self._names[name.of, name.id].setdefault(name.scope, name.name)
        self._parameters: dict[TensorId, Parameter] = {}
        for parameter in trace.parameters:
            self._parameters.setdefault(parameter.tensor, parameter)
        self._lines = {path: text.splitlines() for path, text in trace.sources.items()}

    def frame(self, site: SiteId | None) -> Frame | None:
        """Returns the user's innermost frame at a site."""
        found = self._trace.sites.get(site) if site is not None else None
        return found.frames[0] if found is not None and found.frames else None

    def outer_frame(self, site: SiteId | None) -> Frame | None:
        """Returns the user's outermost frame at a site."""
        found = self._trace.sites.get(site) if site is not None else None
        return found.frames[-1] if found is not None and found.frames else None

    def path(self, path: str) -> str:
        """Returns a path relative to the run's directory where it lies below it."""
        directory = self._trace.header.directory
        if directory and path.startswith(directory.rstrip("/\\") + os.path.sep):
            return path[len(directory.rstrip("/\\")) + 1 :]
        return path

    def code(self, frame: Frame) -> str:
        """Returns the stripped text of a frame's line; empty where the source isn't in the trace."""
        lines = self._lines.get(frame.path, [])
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def place(self, frame: Frame) -> str:
        """Returns `train.py:65: the line's text`."""
        code = self.code(frame)
        return f"{self.path(frame.path)}:{frame.line}" + (f": {code}" if code else "")

    def tensor(self, tensor: TensorId, scope: str | None = None) -> str:
        """Returns a tensor's name, a parameter's dotted one; empty when the user gave none.

        `scope` is the function whose name for it is preferred.
        """
        parameter = self._parameters.get(tensor)
        if parameter is not None:
            return f"{self.module(parameter.module)}.{parameter.name}"
        return self._named("tensor", tensor, scope)

    def _named(self, of: str, identity: int, scope: str | None) -> str:
        names = self._names.get((of, identity), {})
        if scope is not None and scope in names:
            return names[scope]
        return next(iter(names.values()), "")

    def parameter(self, tensor: TensorId) -> Parameter | None:
        """Returns a tensor's place in a module, or None."""
        return self._parameters.get(tensor)

    def module(self, module: ModuleId) -> str:
        """Returns a module's dotted name from the variable that holds its root: `discriminator.out`."""
        found = self._trace.modules.get(module)
        if found is None:
            return "module"
        own = self._named("module", found.root, None)
        if not own:
            root = self._trace.modules.get(found.root, found)
            own = root.type
        return f"{own}.{found.path}" if found.path else own

    def module_type(self, module: ModuleId) -> str:
        """Returns the name of a module's class."""
        found = self._trace.modules.get(module)
        return found.type if found is not None else "Module"


def size(count: int) -> str:
    """Returns a number of bytes in words: `16 KiB`."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < _KIB or unit == "GiB":
            return f"{value:.0f} {unit}" if value == int(value) or unit == "bytes" else f"{value:.1f} {unit}"
        value /= _KIB
    raise AssertionError


def plural(count: int, noun: str) -> str:
    """Returns `1 node`, `2 nodes`; `leaf` becomes `leaves`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} " + ("leaves" if noun == "leaf" else f"{noun}s")


def clip(text: str, width: int) -> str:
    """Returns `text` cut to `width` characters, the cut shown."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
