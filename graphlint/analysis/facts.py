"""`Facts`: everything derived from a trace, each part computed the first time it is asked for.

May import the rest of `analysis` and `record`.
"""

from functools import cached_property

from graphlint.analysis.cuts import Cuts
from graphlint.analysis.devices import Devices
from graphlint.analysis.gradients import Gradients
from graphlint.analysis.graphs import Graphs
from graphlint.analysis.growth import GrowingGraphs
from graphlint.analysis.ledger import Ledger
from graphlint.analysis.modelcalls import ModelCalls
from graphlint.analysis.names import Names
from graphlint.analysis.optimized import Optimized
from graphlint.analysis.owners import Owners
from graphlint.analysis.reach import Reach
from graphlint.analysis.sources import Sources
from graphlint.analysis.stale import StaleOptimizers
from graphlint.analysis.steps import Steps
from graphlint.analysis.unfed import UnfedSteps
from graphlint.analysis.values import Values
from graphlint.analysis.wording import Wording
from graphlint.record.trace import Trace


class Facts:
    """What the rules read. One instance per trace; its parts are cached."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def names(self) -> Names:
        """The words for tensors, modules, parameters and optimizers."""
        return Names(self.trace)

    @cached_property
    def sources(self) -> Sources:
        """The user's statements."""
        return Sources(self.trace)

    @cached_property
    def steps(self) -> Steps:
        """The training steps."""
        return Steps(self.trace)

    @cached_property
    def graphs(self) -> Graphs:
        """The gradient graph of each backward."""
        return Graphs(self.trace)

    @cached_property
    def values(self) -> Values:
        """The value graph."""
        return Values(self.trace)

    @cached_property
    def model_calls(self) -> ModelCalls:
        """The calls of whole models."""
        return ModelCalls(self)

    @cached_property
    def cuts(self) -> Cuts:
        """Where gradients were lost."""
        return Cuts(self)

    @cached_property
    def gradients(self) -> Gradients:
        """The life of each parameter's gradient."""
        return Gradients(self.trace)

    @cached_property
    def ledger(self) -> Ledger:
        """What each gradient holds, and which steps used it."""
        return Ledger(self)

    @cached_property
    def unfed(self) -> UnfedSteps:
        """The steps for which no backward was called."""
        return UnfedSteps(self)

    @cached_property
    def owners(self) -> Owners:
        """The modules that hold parameters."""
        return Owners(self)

    @cached_property
    def reach(self) -> Reach:
        """Which optimizers' parameters the backwards reach."""
        return Reach(self)

    @cached_property
    def optimized(self) -> Optimized:
        """Which tensors optimizers hold, and which get gradients and are in none."""
        return Optimized(self)

    @cached_property
    def stale(self) -> StaleOptimizers:
        """The optimizers whose tensors were replaced in the model."""
        return StaleOptimizers(self)

    @cached_property
    def growth(self) -> GrowingGraphs:
        """What keeps more and more graphs alive."""
        return GrowingGraphs(self)

    @cached_property
    def wording(self) -> Wording:
        """The phrases for events."""
        return Wording(self)

    @cached_property
    def devices(self) -> Devices:
        """Where tensors lie and how they travel."""
        return Devices(self.trace, self.values)
