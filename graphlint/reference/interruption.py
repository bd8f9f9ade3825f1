"""Ctrl-C that waits for the end of the step; standard library only."""

import signal
import threading
from types import FrameType
from typing import Self


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a run, and what it had reached is saved; the text says how to go on."""


class Interruption:
    """Notes the first Ctrl-C in the block instead of raising; the second raises `KeyboardInterrupt` as ever.

    In a thread beside the main one, or where somebody else handles the signal, nothing is changed.

    Attributes:
        asked: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._armed = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._armed = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._disarm()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
        self._disarm()

    def _disarm(self) -> None:
        if self._armed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._armed = False
