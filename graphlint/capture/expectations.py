"""Notes where `graphlint.expect(...)` blocks begin and end, at both levels.

May import `record`, `capture.context` and `capture.open_blocks`. Nothing is patched for it: the block comes
and tells, and those that are open when the capture begins are asked for.
"""

from graphlint.capture.context import CaptureContext
from graphlint.capture.open_blocks import OpenBlock, opened_here
from graphlint.record.expectations import ExpectBegin, ExpectEnd
from graphlint.record.header import Capability
from graphlint.record.identity import Serial


class Expectations:
    """Takes the beginnings and ends of the blocks of one capture.

    Args:
        context: the capture.
    """

    capability: Capability = "expectations"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context

    def begin_open_ones(self) -> None:
        """Notes the blocks that were entered before the capture began."""
        for block in opened_here():
            self.begin(block)

    def begin(self, block: OpenBlock) -> None:
        """Notes that a block begins, if that is in the thread and process that is recorded."""
        if self._context.here():
            self._context.guard.run(self.capability, self._begin, block)

    def end(self, block: OpenBlock) -> None:
        """Notes the end of a block, if its beginning was noted by this capture."""
        if block.noted is not None and block.noted[0] is self and self._context.here():
            self._context.guard.run(self.capability, self._end, Serial(block.noted[1]))

    def _begin(self, block: OpenBlock) -> None:
        recorder = self._context.recorder
        serial = recorder.next_serial()
        site = recorder.sites.place(block.code, block.line)
        recorder.emit(ExpectBegin(serial=serial, site=site, rules=block.rules, reason=block.reason))
        block.noted = (self, serial)

    def _end(self, begin: Serial) -> None:
        recorder = self._context.recorder
        recorder.emit(ExpectEnd(serial=recorder.next_serial(), begin=begin))
