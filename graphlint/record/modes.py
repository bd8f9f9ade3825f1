"""The event of a module's mode; part of the union in `record.events`.

May import the rest of `record` only.
"""

from graphlint.record.base import Event
from graphlint.record.identity import ModuleId


class ModeChange(Event, frozen=True, kw_only=True, tag="mode-change"):
    """`Module.train()` or `Module.eval()`; at the watch level only where it turned something.

    `changed` are the modules that it turned to the mode `training`, the module's own parts included;
    `opposed` are the parts that it turned the other way, as a part's own `train` can.
    """

    module: ModuleId
    training: bool
    changed: tuple[ModuleId, ...] = ()
    opposed: tuple[ModuleId, ...] = ()
