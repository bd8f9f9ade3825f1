"""`Facts`: everything derived from a trace, each part computed the first time it is asked for.

May import the rest of `analysis` and `record`.
"""

from graphlint.record.trace import Trace


class Facts:
    """What the rules read. One instance per trace; its parts are cached."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
