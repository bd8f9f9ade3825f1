"""Turns SIGTERM into an exception, so that a job that is told to stop still leaves its report.

Imports the standard library only. A handler that the script sets replaces this one, and forked children get
the default back, so that terminating a worker works as ever.
"""

import os
import signal
import threading
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived; raised in the script where it was."""


class TerminationSignal:
    """Raises `Terminated` in the main thread on the first SIGTERM in the block; a second one kills."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._armed = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self._handle)
        self._armed = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disarm)

    def __exit__(self, *exception: object) -> None:
        self._disarm()

    def _disarm(self) -> None:
        if self._armed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._armed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._disarm()
        if os.getpid() != self._pid:
            os.kill(os.getpid(), number)
            return
        raise Terminated
