"""Where the gradient was lost: the edges that the value graph has and the gradient graph lacks.

May import `record` and the rest of `analysis`. Whether a call carried the gradient on is decided by what the
record says of it (the mode, who wanted gradients, the result's type, whether a node was built); the name of
a call only words what it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphlint.analysis.values import Link, Producer, Source
from graphlint.record.events import Backward, HostRead, ModuleCall, Op, Transfer
from graphlint.record.identity import Serial, SiteId, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

Kind = Literal[
    "detach", "no-grad", "data", "host", "rewrapped", "integer", "comparison", "derivative", "other"
]

_INDEXING = frozenset({"argmax", "argmin", "argsort", "max", "min", "sort", "topk", "multinomial", "unique"})

_DIFFERENTIABLE = ("torch.float", "torch.bfloat", "torch.complex", "torch.half")


@dataclass(frozen=True, slots=True)
class Cut:
    """A call whose input had a way back to the parameters and whose result has none.

    Attributes:
        kind: what sort of cut it is.
        words: the same in words, for a label (`.detach()`).
        source: the tensor that still had a way back.
        result: the one that had none.
        site: where it happened.
        grad_site: where the `no_grad` block was entered, for that kind.
        serial: when it happened.
    """

    kind: Kind
    words: str
    source: TensorId
    result: TensorId
    site: SiteId | None
    grad_site: SiteId | None
    serial: Serial


@dataclass(frozen=True, slots=True)
class Connection:
    """How a tensor hangs on a set of parameters.

    Attributes:
        used: the parameters from which values flow to the tensor.
        carried: those from which the gradient has a way too.
        frozen: those of `used` that did not want gradients where they were used.
        cuts: where the way was lost, in time order.
        complete: whether the record shows how every tensor on the way was made.
    """

    used: frozenset[TensorId]
    carried: bool
    frozen: frozenset[TensorId]
    cuts: tuple[Cut, ...]
    complete: bool


class Cuts:
    """Answers how tensors hang on parameters."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def connection(self, tensor: TensorId, before: Serial, parameters: Iterable[TensorId]) -> Connection:
        """Returns how the value of `tensor` at `before` hangs on the parameters."""
        wanted = frozenset(parameters)
        flow = self._facts.values.flow(tensor, before)
        links = sorted(flow.links, key=_time)
        valued, carried = self._spread(links, wanted & flow.tensors)
        used, frozen = self._read(links, wanted & flow.tensors)
        cuts: dict[tuple[SiteId | None, Serial], Cut] = {}
        for result, link in links:
            if self._carries(link, result) or self._stands_beside(link, result):
                continue
            for source in link.sources:
                if source.tensor in carried and source.requires_grad and source.tensor != result:
                    cut = self._cut(link, source, result)
                    cuts.setdefault((cut.site, cut.serial), cut)
        return Connection(
            used=used,
            carried=tensor in carried,
            frozen=frozen,
            cuts=tuple(sorted(cuts.values(), key=lambda cut: cut.serial)) if tensor in valued else (),
            complete=not flow.orphans,
        )

    def left_to_python(
        self, parameters: Iterable[TensorId], after: Serial, before: Serial
    ) -> tuple[HostRead, ...]:
        """Returns the reads into Python, between two serials, of values computed from the parameters."""
        reached = set(parameters)
        reads: list[HostRead] = []
        for event in self._facts.trace.events:
            if not after < event.serial < before:
                continue
            if isinstance(event, HostRead):
                if event.tensor.tensor in reached:
                    reads.append(event)
            elif isinstance(event, Op | Transfer | ModuleCall) and any(
                source.tensor in reached for source in self._facts.values.sources(event)
            ):
                reached.update(_results(event))
        return tuple(reads)

    def _spread(
        self, links: Sequence[tuple[TensorId, Link]], start: frozenset[TensorId]
    ) -> tuple[set[TensorId], set[TensorId]]:
        """Returns the tensors that values from `start` reach, and those with a way back for the gradient."""
        valued, carried = set(start), set(start)
        grown = True
        while grown:
            grown = False
            for result, link in links:
                if result not in valued and any(s.tensor in valued for s in link.sources):
                    valued.add(result)
                    grown = True
                back = any(s.tensor in carried and s.requires_grad for s in link.sources)
                if back and result not in carried and self._carries(link, result):
                    carried.add(result)
                    grown = True
        return valued, carried

    def _read(
        self, links: Sequence[tuple[TensorId, Link]], wanted: frozenset[TensorId]
    ) -> tuple[frozenset[TensorId], frozenset[TensorId]]:
        used: set[TensorId] = set()
        asking: set[TensorId] = set()
        for result, link in links:
            for source in link.sources:
                # What wrote to the parameter itself, to initialise it, is no use of it.
                if source.tensor in wanted and result not in wanted:
                    used.add(source.tensor)
                    if source.requires_grad:
                        asking.add(source.tensor)
        return frozenset(used), frozenset(used - asking)

    def _carries(self, link: Link, result: TensorId) -> bool:
        """Tells whether the gradient of `result` can go back through the link."""
        match link.event:
            case Op() as op:
                if result in op.outputs:
                    place = op.outputs.index(result)
                    asks = place < len(op.output_grads) and op.output_grads[place]
                else:
                    asks = any(op.output_grads)
                passed = any(use.tensor == result for use in op.inputs)
                return asks and (op.seq[1] > op.seq[0] or passed)
            case Transfer() as transfer:
                return transfer.noop or transfer.seq[1] > transfer.seq[0]
            case Backward() as backward:
                return backward.create_graph
            case ModuleCall() | None:
                row = self._facts.trace.tensors.get(result)
                return row is not None and row.requires_grad and not row.leaf

    def _stands_beside(self, link: Link, result: TensorId) -> bool:
        """Tells whether a call that gives several tensors carries the gradient on in another of them.

        Then a result of numbers without a gradient was made from the other arguments, as the second of
        `torch.broadcast_tensors(mean, scale)`; a result of positions is a cut all the same.
        """
        op = link.event
        row = self._facts.trace.tensors.get(result)
        if not isinstance(op, Op) or row is None or not row.dtype.startswith(_DIFFERENTIABLE):
            return False
        others = zip(op.outputs, op.output_grads, strict=False)
        return op.grad_mode and result in op.outputs and any(asks for t, asks in others if t != result)

    def _cut(self, link: Link, source: Source, result: TensorId) -> Cut:
        event = link.event
        kind, words = self._kind(event, source, result)
        site = event.site if event is not None else None
        serial = event.serial if event is not None else source.serial
        grad_site = event.grad_site if isinstance(event, Op | Transfer) and kind == "no-grad" else None
        if source.host is not None and site is None:
            site = source.host.site
        return Cut(kind, words, source.tensor, result, site, grad_site, serial)

    def _kind(self, event: Producer | None, source: Source, result: TensorId) -> tuple[Kind, str]:
        if source.host is not None:
            return "host", f"`.{source.host.method}()` takes the value out of torch"
        match event:
            case Backward():
                return "derivative", "`torch.autograd.grad` without create_graph=True"
            case None:
                return "rewrapped", "wrapped anew, without its graph"
            case ModuleCall():
                return "other", "the module returns a tensor without a graph"
            case Transfer() | Op():
                return self._kind_of_call(event, result)

    def _kind_of_call(self, event: Op | Transfer, result: TensorId) -> tuple[Kind, str]:
        short = _short_name(event)
        row = self._facts.trace.tensors.get(result)
        dtype = row.dtype if row is not None else ""
        if short in {"detach", "detach_"}:
            return "detach", f"`.{short}()`"
        if short == "data":
            return "data", "`.data`"
        if not event.grad_mode:
            return "no-grad", "computed under `no_grad`"
        if dtype and not dtype.startswith(_DIFFERENTIABLE):
            return self._kind_by_dtype(event, dtype)
        if isinstance(event, Op) and event.seq[0] == event.seq[1]:
            return "rewrapped", f"{_spoken(event)} makes a new tensor without the graph"
        return "other", f"{_spoken(event)} returns a tensor without a graph"

    def _kind_by_dtype(self, event: Op | Transfer, dtype: str) -> tuple[Kind, str]:
        if dtype == "torch.bool":
            return "comparison", f"{_spoken(event)} gives True or False, which has no gradient"
        gives = "positions" if _short_name(event) in _INDEXING else "integers"
        return "integer", f"{_spoken(event)} gives {gives}, which have no gradient"


def _time(entry: tuple[TensorId, Link]) -> tuple[int, int]:
    tensor, link = entry
    if link.event is not None:
        return link.event.serial, tensor
    return max((source.serial for source in link.sources), default=-1), tensor


def _results(event: Op | Transfer | ModuleCall) -> tuple[TensorId, ...]:
    if isinstance(event, Transfer):
        return (event.result,)
    changed = tuple(change.tensor for change in event.changed) if isinstance(event, Op) else ()
    return (*event.outputs, *changed)


def _short_name(event: Op | Transfer) -> str:
    """Returns the last part of a call's name: `detach`, `data`, `argmax`."""
    if isinstance(event, Transfer):
        return event.method
    parts = [part for part in event.name.split(".") if part not in {"__get__", "__set__", "apply"}]
    return parts[-1] if parts else event.name


_SPOKEN: Mapping[str, str] = {
    "gt": ">",
    "__gt__": ">",
    "lt": "<",
    "__lt__": "<",
    "ge": ">=",
    "__ge__": ">=",
    "le": "<=",
    "__le__": "<=",
    "eq": "==",
    "__eq__": "==",
    "ne": "!=",
    "__ne__": "!=",
}


def _spoken(event: Op | Transfer) -> str:
    short = _short_name(event)
    return f"`{_SPOKEN.get(short, short)}`"
