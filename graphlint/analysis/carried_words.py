"""What to detach where one pass hands a tensor on to the next, in the words of the user's own loop.

May import `record` and the rest of `analysis`. Nothing is decided here: which tensors are carried is
`Reentry.entered`.
"""

import re
from typing import TYPE_CHECKING

from graphlint.analysis.reentry import Entered, Reentry
from graphlint.analysis.wording import listed, place
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_ITEM = re.compile(r"(\w+)\[(\d+)\]")
_MOST_SPELLED = 3


class CarriedWords:
    """Words the remedy for a graph that grows from pass to pass, for a reader who stands at `frame`."""

    def __init__(self, facts: "Facts", case: Reentry, frame: Frame) -> None:
        self._facts = facts
        self._case = case
        self._frame = frame

    def remedy(self) -> str:
        """Returns what to detach, and where, without a full stop."""
        taken = self._taken()
        names = self._loop_names(taken) if taken is not None else ()
        own = "so that each pass has a graph of its own"
        if taken is None or not names:
            return f"detach {self._described()} before the next pass, {own}"
        spelled = self._spelled(names)
        shown = tuple(dict.fromkeys(_holder(name, names) for name in names))
        them = "it" if len(shown) == 1 else "them"
        what = listed([f"`{name}`" for name in shown])
        where = f"{self._after()}before {place(taken, near=self._frame)} uses {them} again"
        return f"detach {what} {where}{spelled}, {own}"

    def _taken(self) -> Frame | None:
        """Returns the line of the loop at which what is carried goes in again; None where that differs."""
        site = self._case.backward.site
        frames = {self._facts.graphs.common_frame(one.taker.site, site) for one in self._case.entered}
        return frames.pop() if len(frames) == 1 else None

    def _loop_names(self, taken: Frame) -> tuple[str, ...]:
        """Returns the names by which that line takes what is carried; none unless all of it has one."""
        statement = self._facts.sources.statement(taken.path, taken.line)
        names: list[str] = []
        for one in self._case.entered:
            given = self._facts.names.names_in(one.tensor, taken.function)
            read = [
                name
                for name in given
                if statement is not None and re.search(rf"\b{re.escape(_base(name))}\b", statement.text)
            ]
            plain = [name for name in read if _base(name) == name]
            if not read:
                return ()
            names.append((plain or read)[0])
        return tuple(dict.fromkeys(names))

    def _spelled(self, names: tuple[str, ...]) -> str:
        """Returns ": `h = h.detach()`"; nothing where the line can't be spelled."""
        holders = {_holder(name, names) for name in names}
        if len(holders) == 1 and len(names) > 1:
            holder = holders.pop()
            return f": `{holder} = tuple(state.detach() for state in {holder})`"
        if len(names) > _MOST_SPELLED or not all(name.isidentifier() for name in names):
            return ""
        return f": `{', '.join(names)} = {', '.join(f'{name}.detach()' for name in names)}`"

    def _after(self) -> str:
        """Returns "after line 28, ": the backward that is done with the graph."""
        earlier = self._case.earlier
        if earlier is None:
            return ""
        frame = self._facts.graphs.common_frame(earlier.site, self._case.backward.site)
        return f"after {place(frame, near=self._frame)}, " if frame is not None else ""

    def _described(self) -> str:
        """Returns the words for what is carried where the loop has no name for it: an attribute, say."""
        made = (*self._case.handed_on, *self._case.entrances)
        built = made[0] if made else None
        if built is None:
            return "what one pass hands on to the next"
        where = place(built.inner, near=self._frame)
        statement = self._facts.sources.statement(built.inner.path, built.inner.line)
        kept = [target for target in statement.targets if "." in target] if statement is not None else []
        names = [self._name(one, built.inner.function) for one in self._case.entered]
        if not names and len(built.tensors) == 1:
            names = [self._facts.names.tensor_name(built.tensors[0], built.inner.function)]
        named = kept or [name for name in dict.fromkeys(names) if name is not None]
        if not kept and len(named) != len(set(names)):
            named = []
        if named:
            return f"{listed([f'`{name}`' for name in named])} ({where})"
        return f"what {where} hands on"

    def _name(self, one: Entered, scope: str) -> str | None:
        tensor: TensorId = one.tensor
        return self._facts.names.tensor_name(tensor, scope)


def _base(name: str) -> str:
    return re.split(r"[.\[]", name, maxsplit=1)[0]


def _holder(name: str, names: tuple[str, ...]) -> str:
    """Returns the sequence that a name is an item of, where the names are all of its first items."""
    found = _ITEM.fullmatch(name)
    if found is None:
        return name
    holder = found.group(1)
    places = {
        int(other.group(2)) for n in names if (other := _ITEM.fullmatch(n)) and other.group(1) == holder
    }
    return holder if len(places) > 1 and places == set(range(len(places))) else name
