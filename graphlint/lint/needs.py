"""Whether a trace holds what a rule needs, and in plain words why not; may import `record` only.

A rule that lacked its data must say so: silence would read as a clean bill.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from graphlint.record.events import Backward, OptimizerStep
from graphlint.record.faults import CaptureFault
from graphlint.record.header import Capability
from graphlint.record.trace import Trace

FULL_ONLY: frozenset[Capability] = frozenset({"operations", "modules"})
"""What only the full level records."""

NO_STEP = "no training step was recorded"
CUT_SHORT = "the trace breaks off before the run ended"

_WORDS: Mapping[Capability, str] = MappingProxyType(
    {
        "operations": "operations",
        "modules": "module calls",
        "backward": "backward calls",
        "optimizer": "optimizer steps",
        "zero-grad": "calls of zero_grad",
        "batches": "batches drawn from loaders",
        "cleanup": "calls of gc.collect and empty_cache",
        "custom-functions": "custom autograd functions",
        "clipping": "calls that clip gradients",
        "schedulers": "steps of learning-rate schedulers",
        "scalers": "calls of gradient scalers",
        "modes": "changes between train and eval mode",
        "gradient-values": "the values of gradients",
        "live-graphs": "graphs that are still held",
        "expectations": "blocks of graphlint.expect",
    }
)


def lacking(needs: Sequence[Capability], trace: Trace) -> str | None:
    """Returns why a rule with these needs can't judge the trace; None when it can."""
    for need in needs:
        if reason := _missing(need, trace):
            return reason
    return None


def trained(trace: Trace) -> bool:
    """Returns whether the trace holds any part of a training step."""
    return any(isinstance(event, Backward | OptimizerStep) for event in trace.events)


def _missing(need: Capability, trace: Trace) -> str | None:
    words = _WORDS[need]
    if need in FULL_ONLY and trace.header.level == "watch":
        return f"{words} are recorded at the full level only, and this run was at the watch level"
    if trace.end is None:
        return _missing_when_cut(trace)
    reports = [tap for tap in trace.end.taps if tap.capability == need]
    for tap in reports:
        if tap.fault is not None:
            return f"{words} were no longer recorded after a fault of graphlint's own: {tap.fault}"
    if not any(tap.armed for tap in reports):
        return f"{words} were not recorded"
    return None


def _missing_when_cut(trace: Trace) -> str | None:
    """A trace that breaks off has no last line to say what became of each tap; any fault may be the one."""
    for event in trace.events:
        if isinstance(event, CaptureFault):
            return f"the trace breaks off after a fault of graphlint's own: {event.message}"
    return None
