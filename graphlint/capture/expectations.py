"""Notes where `graphlint.expect(...)` blocks begin and end, at both levels.

May import `record` and `capture.context`. Nothing is patched for it: the block comes and tells.
"""

from graphlint.capture.context import CaptureContext
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

    def begin(self, rules: tuple[str, ...], reason: str) -> Serial | None:
        """Notes that a block begins here, and returns its number.

        None where nothing is noted: in another thread or process than the one recorded.
        """
        if not self._context.here():
            return None
        return self._context.guard.run(self.capability, self._begin, rules, reason)

    def end(self, begin: Serial) -> None:
        """Notes the end of the block with that number."""
        if self._context.here():
            self._context.guard.run(self.capability, self._end, begin)

    def _begin(self, rules: tuple[str, ...], reason: str) -> Serial:
        recorder = self._context.recorder
        serial = recorder.next_serial()
        site = recorder.sites.chain(depth=4).site
        recorder.emit(ExpectBegin(serial=serial, site=site, rules=rules, reason=reason))
        return serial

    def _end(self, begin: Serial) -> None:
        recorder = self._context.recorder
        recorder.emit(ExpectEnd(serial=recorder.next_serial(), begin=begin))
