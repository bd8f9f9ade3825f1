"""Decides when a run that is only watched is recorded in full again: while it evaluates, and right after.

May import `record`. A validation usually runs long after the first steps, and what it leaves behind (a model
in eval mode) shows in the training step after it. Each place that begins an evaluation counts a few times,
and all of them together a few times more: a loop that changes modes in every step costs no more than that.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable

from graphlint.record.identity import SiteId

MAX_PHASES_OF_PLACE = 2
"""Phases begun at one line that are recorded in full."""

MAX_PHASES = 16
"""Phases of one run that are recorded in full."""

SEGMENTS_OF_PHASE = 2
"""Batches or steps of a phase that are recorded in full."""

MAX_UNTRAINED_BATCHES = 8
"""Batches of one loader, with no training in between, after which full steps are saved for the training."""

MAX_UNTRAINED = 64
"""Stretches of a run without training that are recorded in full before its steps at the start are."""

MAX_CALLS_OF_PHASE = 8
MAX_OPERATIONS_OF_PHASE = 3_000
"""Calls of whole models, and operations, after which an evaluation that draws no batches has been seen."""

_ATTEMPTS = 3


class Evaluations:
    """Counts phases, and says what is to be recorded in full.

    Args:
        settled: tells whether the steps that are recorded in full at the start have been.
        cut: ends what is recorded now, where that splits no training step; see `Session`.
        count_operations: returns how many operations were recorded since it began.
    """

    def __init__(
        self, settled: Callable[[], bool], cut: Callable[[], None], count_operations: Callable[[], int]
    ) -> None:
        self._settled = settled
        self._cut = cut
        self._count_operations = count_operations
        self._phases: Counter[Hashable] = Counter()
        self._total = 0
        self._left = 0
        self._owed = 0
        self._untrained = 0
        self._untrained_in_full = 0
        self._running = False
        self._calls = 0
        self._iterator: weakref.ref[object] | None = None

    def mode_turned(self, site: SiteId | None, *, training: bool) -> None:
        """A whole model was turned to the other mode: an evaluation begins or ends."""
        self._untrained = 0
        if self._begin((site, training)):
            self._cut()
            self._owed = self._owed if training else _ATTEMPTS

    def batch_wanted(self, iterator: object, site: Callable[[], SiteId | None]) -> None:
        """A batch is asked for: of another loader than the last one?"""
        last = self._iterator
        if last is not None and last() is iterator:
            return
        self._iterator = weakref.ref(iterator)
        self._untrained = 0
        if last is not None and self._total < MAX_PHASES:
            self._begin(site())

    def _begin(self, place: Hashable) -> bool:
        if not self._settled() or self._total >= MAX_PHASES or self._phases[place] >= MAX_PHASES_OF_PLACE:
            return False
        self._phases[place] += 1
        self._total += 1
        self._left = SEGMENTS_OF_PHASE
        return True

    def stored(self, *, trained: bool, full: bool) -> None:
        """A stretch of the run has ended; the first step after an evaluation is owed."""
        self._untrained = 0 if trained else self._untrained + 1
        self._untrained_in_full += full and not trained
        if trained and self._owed:
            self._owed = 0 if full else self._owed - 1
            if self._owed and not self._left:
                self._left = 1

    @property
    def outlasts(self) -> bool:
        """Whether batches come and come and nothing is trained."""
        most = MAX_UNTRAINED_BATCHES if self._untrained_in_full < MAX_UNTRAINED else 1
        return self._untrained >= most

    def take(self) -> bool:
        """Tells, as a stretch begins, whether it is to be recorded in full; each asking uses up one."""
        self._calls = 0
        self._running = self._left > 0
        self._left -= self._running
        return self._running

    def model_called(self) -> None:
        """A whole model's call has ended: enough of an evaluation that draws no batches?"""
        self._calls += 1
        if not self._running or self._calls < MAX_CALLS_OF_PHASE:
            return
        if self._count_operations() >= MAX_OPERATIONS_OF_PHASE:
            self._left = 0
            self._cut()
