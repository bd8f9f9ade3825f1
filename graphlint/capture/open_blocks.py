"""The `graphlint.expect(...)` blocks that are open in this process, whether or not anything records.

Imports nothing of graphlint's and no torch. A capture that begins inside a block must know of it, and a block
has to cost next to nothing where there is no capture.
"""

import threading
from types import CodeType


class OpenBlock:
    """A block that was entered.

    Args:
        rules: the rules that are meant in it, as the user named them.
        reason: why.
        code: the user's code that declared it.
        line: the line there.

    Attributes:
        noted: what a capture made of it: the capture's own object, and the number that it gave.
        thread: the thread that entered it.
    """

    __slots__ = ("code", "line", "noted", "reason", "rules", "thread")

    def __init__(self, rules: tuple[str, ...], reason: str, code: CodeType, line: int) -> None:
        self.rules = rules
        self.reason = reason
        self.code = code
        self.line = line
        self.thread = threading.get_ident()
        self.noted: tuple[object, int] | None = None


class _OpenBlocks:
    """Holds the open blocks of all threads, in the order in which they were entered."""

    def __init__(self) -> None:
        self.blocks: list[OpenBlock] = []


_open = _OpenBlocks()


def enter(block: OpenBlock) -> None:
    """Opens a block."""
    _open.blocks.append(block)


def leave(block: OpenBlock) -> None:
    """Ends a block."""
    _open.blocks.remove(block)


def opened_here() -> tuple[OpenBlock, ...]:
    """Returns the blocks that this thread has open, the outermost first."""
    thread = threading.get_ident()
    return tuple(block for block in _open.blocks if block.thread == thread)
