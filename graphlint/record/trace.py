"""A whole record in memory: the tables by id, the events in order.

May import the rest of `record` only. `Trace` is what every later stage reads; nobody changes it.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from graphlint.errors import TraceError
from graphlint.record.base import Event
from graphlint.record.events import AnyEvent
from graphlint.record.graph import Graph
from graphlint.record.header import End, Header
from graphlint.record.identity import GraphId, ModuleId, OptimizerId, SiteId, TensorId
from graphlint.record.tables import Module, Name, Optimizer, Parameter, Site, Source, Tensor

Record = Header | Site | Source | Tensor | Module | Parameter | Optimizer | Name | Graph | AnyEvent | End
"""One line of a trace."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run recorded.

    `end` is None when the run was killed before it could say how it ended. `names` keeps the order in
    which names were met. An optimizer that was given more groups later appears in its last state.
    """

    header: Header
    sites: dict[SiteId, Site]
    sources: dict[str, str]
    tensors: dict[TensorId, Tensor]
    modules: dict[ModuleId, Module]
    parameters: tuple[Parameter, ...]
    optimizers: dict[OptimizerId, Optimizer]
    names: tuple[Name, ...]
    graphs: dict[GraphId, Graph]
    events: tuple[AnyEvent, ...]
    end: End | None

    @property
    def complete(self) -> bool:
        """Whether the run was recorded to its end."""
        return self.end is not None

    @classmethod
    def from_records(cls, records: Iterable[Record], *, origin: str = "trace") -> "Trace":
        """Builds a trace from its lines; `origin` names it in errors.

        Raises:
            TraceError: the first record is not a header, or a record follows the end.
        """
        header: Header | None = None
        end: End | None = None
        tables = _Tables()
        for number, record in enumerate(records, start=1):
            if end is not None:
                raise TraceError(f"{origin}:{number}: a record follows the end of the trace")
            if isinstance(record, Header):
                if header is not None:
                    raise TraceError(f"{origin}:{number}: a second header; two traces in one file?")
                header = record
            elif header is None:
                raise TraceError(f"{origin}:{number}: not a graphlint trace: the first line is no header")
            elif isinstance(record, End):
                end = record
            else:
                tables.add(record)
        if header is None:
            raise TraceError(f"{origin}: empty: not a graphlint trace")
        return tables.finish(header, end)


class _Tables:
    """Collects records by kind while a trace is built."""

    def __init__(self) -> None:
        self.sites: dict[SiteId, Site] = {}
        self.sources: dict[str, str] = {}
        self.tensors: dict[TensorId, Tensor] = {}
        self.modules: dict[ModuleId, Module] = {}
        self.parameters: list[Parameter] = []
        self.optimizers: dict[OptimizerId, Optimizer] = {}
        self.names: list[Name] = []
        self.graphs: dict[GraphId, Graph] = {}
        self.events: list[AnyEvent] = []

    def add(
        self, record: Site | Source | Tensor | Module | Parameter | Optimizer | Name | Graph | AnyEvent
    ) -> None:
        """Files one record under its kind."""
        if isinstance(record, Event):
            self.events.append(record)
            return
        match record:
            case Site():
                self.sites[record.id] = record
            case Source():
                self.sources[record.path] = record.text
            case Tensor():
                self.tensors[record.id] = record
            case Module():
                self.modules[record.id] = record
            case Parameter():
                self.parameters.append(record)
            case Optimizer():
                self.optimizers[record.id] = record
            case Name():
                self.names.append(record)
            case Graph():
                self.graphs[record.id] = record
            case _:
                assert_never(record)

    def finish(self, header: Header, end: End | None) -> Trace:
        """Returns the trace, its events in the order of their serials."""
        return Trace(
            header=header,
            sites=self.sites,
            sources=self.sources,
            tensors=self.tensors,
            modules=self.modules,
            parameters=tuple(self.parameters),
            optimizers=self.optimizers,
            names=tuple(self.names),
            graphs=self.graphs,
            events=tuple(sorted(self.events, key=lambda event: event.serial)),
            end=end,
        )
