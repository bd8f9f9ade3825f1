"""Round trips between devices that a training step makes for nothing; facts only, wording is the rule's.

May import `record` and the rest of `analysis`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.devices import Local, Reduction
from graphlint.analysis.devices_journeys import Stop
from graphlint.record.events import HostRead, Op, Transfer
from graphlint.record.identity import Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

HOST = "cpu"

_BETTER_ON_THE_HOST = (
    "torch.linalg.",
    "torch.bernoulli",
    "torch.ctc_loss",
    "torch.multinomial",
    "torch.nn.functional.ctc_loss",
    "torch.normal",
    "torch.rand",
    "torch.svd",
    "torch.Tensor.svd",
    "torch.Tensor.multinomial",
    "torch.Tensor.bernoulli",
)
"""What torch is often asked to do on the host for speed, or for the same numbers everywhere."""


@dataclass(frozen=True, slots=True)
class Return:
    """A value that comes back to a device where it still lies: it left `home` by `out`, ended by `back`."""

    home: Stop
    out: Transfer
    back: Transfer


@dataclass(frozen=True, slots=True)
class Detour:
    """A value that left an accelerator by `out` to be worked on by the host, and came back by `back`.

    `works` are the operations, or the reads into Python, in between. `rearranged` tells that the elements
    that came back are those that left.
    """

    out: Transfer
    back: Transfer
    works: tuple[Op | HostRead, ...]
    rearranged: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """Predictions that moved to a device where they were only reduced to a loss.

    `along` are other arguments of the loss that moved with them; `native` those that were there all along.
    """

    move: Transfer
    reduction: Reduction
    along: tuple[Transfer, ...]
    native: tuple[TensorId, ...]


def find_return(facts: "Facts", back: Transfer) -> Return | None:
    """Returns the round trip that a move ends, where its value is unchanged and goes on into a backward.

    A copy that an accelerator gave up in between, to save its memory, is no round trip for nothing: the one
    that stayed must have been read later.
    """
    arrival = facts.devices.journeys.arrival(back.serial)
    if arrival is None or not arrival.returned or arrival.earlier is None:
        return None
    home = arrival.earlier
    out = next(stop.transfer for stop in arrival.stop.route() if stop.previous is home)
    if out is None or not _same_content(out, back):
        return None
    if home.device != HOST and not facts.devices.used_after(home.tensor, back.serial):
        return None
    return Return(home, out, back) if facts.devices.feeds_backward(back.result) else None


def _same_content(first: Transfer, second: Transfer) -> bool:
    return first.digest is None or second.digest is None or first.digest == second.digest


def find_detour(facts: "Facts", back: Transfer) -> Detour | None:
    """Returns the detour over the host that a move ends, where the value then goes on into a backward."""
    if back.from_device != HOST or not facts.devices.feeds_backward(back.result):
        return None
    return _through_torch(facts, back) or _through_python(facts, back)


def _through_torch(facts: "Facts", back: Transfer) -> Detour | None:
    local = facts.devices.local(back.source.tensor, Serial(back.serial - 1))
    if not local.operations or not _needs_only_the_value(local):
        return None
    out = local.arrivals[-1]
    same_size = facts.devices.elements(out.source.tensor) == facts.devices.elements(back.result)
    if not same_size or out.from_device != back.to_device or _serves_the_host(facts, out, local, back):
        return None
    rearranged = out.digest is not None and out.digest == back.digest
    return Detour(out, back, tuple(reversed(local.operations)), rearranged)


def _needs_only_the_value(local: Local) -> bool:
    """Tells whether the result was computed from one value that moved in, and what was made on the way.

    A table that the host keeps is a reason to ask the host.
    """
    if local.parameters or local.given or local.opaque:
        return False
    if len({arrival.source.tensor for arrival in local.arrivals}) != 1:
        return False
    if any(op.serial < local.arrivals[0].serial for op in local.made):
        return False
    own = all(op.name.startswith("torch.") for op in local.operations)
    return own and not _belong_to_the_host((*local.operations, *local.made))


def _belong_to_the_host(operations: tuple[Op, ...]) -> bool:
    return any(op.name.startswith(_BETTER_ON_THE_HOST) for op in operations)


def _serves_the_host(facts: "Facts", out: Transfer, local: Local, back: Transfer) -> bool:
    """Tells whether the value is used on the host for anything else than to go back."""
    known = {op.serial for op in local.operations}
    on_the_way = {out.result, *(tensor for op in local.operations for tensor in op.outputs)}
    for tensor in on_the_way:
        for event in facts.values.consumers(tensor):
            goes_back = isinstance(event, Transfer) and (event.noop or event.to_device == back.to_device)
            if event.serial not in known and not goes_back:
                return True
    return False


def _through_python(facts: "Facts", back: Transfer) -> Detour | None:
    """A value that went through NumPy: the elements that came back are those that left, in whatever order."""
    step = facts.steps.of(back.serial)
    if back.digest is None or step is None or not _continuous(facts, back.source.tensor):
        return None
    reads = [e for e in step.events if isinstance(e, HostRead) and e.method in {"numpy", "tolist"}]
    for read in reversed([read for read in reads if read.serial < back.serial]):
        for out in facts.devices.local(read.tensor.tensor, read.serial).arrivals:
            same = out.digest == back.digest and out.bytes == back.bytes
            if same and out.from_device == back.to_device:
                return Detour(out, back, (read,), rearranged=True)
    return None


def _continuous(facts: "Facts", tensor: TensorId) -> bool:
    """Tells whether equal sets of elements prove anything: two tensors of labels have them by chance."""
    row = facts.trace.tensors.get(tensor)
    return row is not None and row.dtype.startswith(("torch.float", "torch.bfloat", "torch.complex"))


def find_hop(facts: "Facts", move: Transfer) -> Hop | None:
    """Returns the hop that a move begins: predictions that another device only reduces to a loss.

    The other arguments of the loss must be at hand where the predictions come from, or cost less to move.
    """
    if not move.source.requires_grad or not move.grad_mode:
        return None
    if not facts.devices.local(move.source.tensor, Serial(move.serial - 1)).parameters:
        return None
    reduction = facts.devices.reduction(move)
    if reduction is None or (move.to_device == HOST and _belong_to_the_host(reduction.operations)):
        return None
    cost = 0
    along: list[Transfer] = []
    native: list[TensorId] = []
    for other in reduction.others:
        local = facts.devices.local(other, reduction.operations[-1].serial)
        if local.parameters or local.opaque or _at_home(facts, local, reduction):
            return None
        cost += sum(facts.devices.bytes(tensor) for tensor in local.given)
        native += [] if local.arrivals else [other]
        along += [arrival for arrival in local.arrivals if arrival.from_device == move.from_device]
    return Hop(move, reduction, tuple(along), tuple(native)) if cost <= move.bytes else None


def _at_home(facts: "Facts", local: Local, reduction: Reduction) -> bool:
    """Tells whether an argument of the loss is needed on that device for something else as well."""
    known = {op.serial for op in (*reduction.operations, *local.operations)}
    consumers = (event for tensor in local.given for event in facts.values.consumers(tensor))
    return any(event.serial not in known for event in consumers)


def real_moves(facts: "Facts") -> Iterator[Transfer]:
    """Yields the moves of tensors of more than one element between two devices, in time order."""
    for transfer in facts.devices.transfers:
        if not transfer.noop and facts.devices.elements(transfer.source.tensor) > 1:
            yield transfer
