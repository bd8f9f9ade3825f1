"""Finds the user's source lines on the stack and numbers them.

May import `record`. A frame belongs to the user unless it lies in torch, in graphlint, in the standard
library or in an installed package; where no frame does, the innermost one of an installed package other
than torch stands in. The reference trainer is there to be copied and audited: its frames count as a user's.
"""

import linecache
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

from graphlint.record.identity import SiteId
from graphlint.record.tables import Frame, Site, Source

_Owner = Literal["user", "package", "internal", "optimizer"]

_MAX_FRAMES = 8
_TYPED_BY_USER = ("<ipython", "<string>", "<stdin>", "<example")
_MAX_SOURCE_BYTES = 400_000


class CallChain:
    """The user's frames of one call, innermost first, with the number of their site.

    Holds live frames: use it and let it go, never keep it.
    """

    __slots__ = ("frames", "in_optimizer", "site")

    def __init__(self, site: SiteId | None, frames: list[FrameType], *, in_optimizer: bool) -> None:
        self.site = site
        self.frames = frames
        self.in_optimizer = in_optimizer


class Sites:
    """Numbers the places from which torch is called, and emits each place and its source once.

    Args:
        emit: takes the `Site` and `Source` rows as they become known.
    """

    def __init__(self, emit: Callable[[Site | Source], None]) -> None:
        self._emit = emit
        self._codes: list[CodeType] = []
        self._owners: dict[int, _Owner] = {}
        self._sites: dict[tuple[int, ...], SiteId] = {}
        self._sources: set[str] = set()
        self._roots = _library_roots()

    def chain(self, depth: int = 1) -> CallChain:
        """Returns the user's frames above the caller; `depth` frames of graphlint's are skipped at once."""
        frame: FrameType | None = sys._getframe(depth)
        frames: list[FrameType] = []
        stand_in: FrameType | None = None
        in_optimizer = False
        direct = True
        owners = self._owners
        while frame is not None:
            code = frame.f_code
            owner = owners.get(id(code)) or self._classify(code)
            if owner == "user":
                frames.append(frame)
                if len(frames) == _MAX_FRAMES or code.co_name == "<module>":
                    break
            elif owner == "optimizer":
                in_optimizer = in_optimizer or not frames
            elif owner == "package" and not frames:
                direct = False
                stand_in = stand_in or frame
            frame = frame.f_back
        if not frames and stand_in is not None:
            frames.append(stand_in)
        return CallChain(self._number(frames, direct=direct), frames, in_optimizer=in_optimizer)

    def _number(self, frames: list[FrameType], *, direct: bool) -> SiteId | None:
        if not frames:
            return None
        parts = [int(direct)]
        for frame in frames:
            parts.append(id(frame.f_code))
            parts.append(frame.f_lineno)
        key = tuple(parts)
        site = self._sites.get(key)
        if site is None:
            site = SiteId(len(self._sites))
            self._sites[key] = site
            rows = tuple(_frame_row(frame.f_code, frame.f_lineno) for frame in frames)
            for row in rows:
                self.embed_source(row.path)
            self._emit(Site(id=site, frames=rows, direct=direct))
        return site

    def place(self, code: CodeType, line: int) -> SiteId:
        """Returns the number of a single line, told apart from the calls that are made there."""
        if id(code) not in self._owners:
            self._classify(code)  # holds the code, so that its address stays its own
        key = (-1, id(code), line)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = SiteId(len(self._sites))
            self.embed_source(code.co_filename)
            self._emit(Site(id=site, frames=(_frame_row(code, line),)))
        return site

    def embed_source(self, path: str) -> None:
        """Emits the text of the file at `path`, once, when it can be read and isn't huge."""
        if path in self._sources:
            return
        self._sources.add(path)
        linecache.checkcache(path)  # the file may have been edited since an earlier capture of this process
        text = "".join(linecache.getlines(path))
        if text and len(text) <= _MAX_SOURCE_BYTES:
            self._emit(Source(path=path, text=text))

    def is_user_code(self, code: CodeType) -> bool:
        """Tells whether a code object is the user's own."""
        return (self._owners.get(id(code)) or self._classify(code)) == "user"

    def is_internal_code(self, code: CodeType) -> bool:
        """Tells whether a code object is torch's, graphlint's or the standard library's."""
        return (self._owners.get(id(code)) or self._classify(code)) == "internal"

    def _classify(self, code: CodeType) -> _Owner:
        """Files a code object by its address, which stays its own because it is held from now on.

        Code objects hash by their contents, which costs more than all the rest of a look at the stack.
        """
        owner = _owner(code.co_filename, self._roots)
        self._codes.append(code)
        self._owners[id(code)] = owner
        return owner


def _owner(filename: str, roots: "_Roots") -> _Owner:
    if filename.startswith(roots.torch):
        return "optimizer" if "/optim/" in filename[len(roots.torch) - 1 :].replace("\\", "/") else "internal"
    if filename.startswith((roots.graphlint, "<frozen")):
        return "user" if filename.startswith(roots.reference) else "internal"
    if filename.startswith(roots.packages):
        return "package"
    if filename.startswith(roots.standard):
        return "internal"
    if filename.startswith("<") and not filename.startswith(_TYPED_BY_USER):
        return "internal"
    return "user"


class _Roots:
    """Where code that isn't the user's lives; each ends in a separator."""

    __slots__ = ("graphlint", "packages", "reference", "standard", "torch")

    def __init__(
        self, torch: str, graphlint: str, packages: tuple[str, ...], standard: tuple[str, ...]
    ) -> None:
        self.torch = torch
        self.graphlint = graphlint
        self.reference = graphlint + "reference" + graphlint[-1]
        self.packages = packages
        self.standard = standard


def _library_roots() -> _Roots:
    import torch

    paths = sysconfig.get_paths()
    separator = "/" if "/" in torch.__file__ else "\\"
    return _Roots(
        torch=str(Path(torch.__file__).parent) + separator,
        graphlint=str(Path(__file__).parents[1]) + separator,
        packages=tuple({paths["purelib"] + separator, paths["platlib"] + separator}),
        standard=tuple({paths["stdlib"] + separator, paths["platstdlib"] + separator}),
    )


def _frame_row(code: CodeType, line: int) -> Frame:
    return Frame(code.co_filename, line, code.co_qualname, code.co_firstlineno)


def frame_rows(frames: list[FrameType]) -> tuple[Frame, ...]:
    """Returns live frames as rows of the record."""
    return tuple(_frame_row(frame.f_code, frame.f_lineno) for frame in frames)
