"""What the taps of one capture share; built by the session.

May import the rest of `capture`. No tap knows another: they meet in these parts only.
"""

import os
import threading

from graphlint.capture.clock import StepClock
from graphlint.capture.evaluation import Evaluations
from graphlint.capture.graphs import GraphStore, NodeStamps, SequenceLog
from graphlint.capture.guard import Guard
from graphlint.capture.names import NameFinder
from graphlint.capture.recorder import Recorder
from graphlint.capture.sites import CallChain
from graphlint.capture.stop import StopRun
from graphlint.capture.values import ValueWatch
from graphlint.record.identity import ModuleId, Serial


class CaptureContext:
    """The shared state of a capture: recorder, guard, clock, names, values, graphs, where in the run it is.

    Attributes:
        quiet: depth of regions whose operations are torch's own business: a batch being collated, a custom
            function's forward, a backward. Operations in them are not recorded.
        module_calls: the module calls that are running, outermost first.
        settled: the call chain of the module call that is running, where torch's own code alone runs in it:
            each operation in it has the same. Set for the time of that call only.
        evaluations: when to record in full again.
        full: whether the full level is armed now.
        unseen: what was not recorded, in words, in the order in which it was noticed.
        stop_wanted: the script is to be ended at the next chance.
    """

    def __init__(self, recorder: Recorder, clock: StepClock, evaluations: Evaluations) -> None:
        self.recorder = recorder
        self.clock = clock
        self.evaluations = evaluations
        self.guard = Guard(recorder)
        self.names = NameFinder(recorder)
        self.values = ValueWatch(recorder)
        self.log = SequenceLog()
        self.stamps = NodeStamps()
        self.graphs = GraphStore(recorder, self.stamps, self.log)
        self.quiet = 0
        self.module_calls: list[tuple[ModuleId, Serial]] = []
        self.settled: CallChain | None = None
        self.full = False
        self.unseen: dict[str, None] = {}
        self.stop_wanted = False
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def here(self) -> bool:
        """Tells whether this is the thread and process that the capture belongs to."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def note_unseen(self, what: str) -> None:
        """Notes, once, something that was not recorded."""
        self.unseen.setdefault(what)

    def note_elsewhere(self, what: str) -> None:
        """Notes that `what` happened in another thread; what a forked child does is its own affair."""
        if os.getpid() == self._process:
            self.note_unseen(f"{what} in other threads than the one that graphlint was started in")

    def check_stop(self) -> None:
        """Ends the script when enough steps are recorded; called by taps outside the guard.

        Raises:
            StopRun: once for each step that ended after the last one wanted.
        """
        if self.stop_wanted:
            self.stop_wanted = False
            raise StopRun
