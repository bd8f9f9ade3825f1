"""Turns what the taps see into rows: numbers tensors, modules and optimizers, orders events, folds repeats.

May import `record` and the rest of `capture`. The recorder holds no tensor: tables are filled from what a
tap shows it, and objects are followed by weak references.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphlint.capture.folding import Segment, StepFolder
from graphlint.capture.layers import depends_on_mode
from graphlint.capture.registry import Storages, WeakNumbers, is_lazy, is_leaf, version_of
from graphlint.capture.sink import Sink
from graphlint.capture.sites import Sites
from graphlint.capture.unasked import is_parameter
from graphlint.record.events import AnyEvent, Use
from graphlint.record.identity import ModuleId, OptimizerId, Serial, SiteId, TensorId
from graphlint.record.tables import Module, Name, Optimizer, Parameter, Tensor
from graphlint.record.trace import Record


class Recorder:
    """Issues serials and numbers, and passes rows to the sink, one training step at a time.

    Args:
        sink: takes the rows.
        device: tells where a tensor is, as the script sees it.
    """

    def __init__(self, sink: Sink, device: Callable[[torch.Tensor], str]) -> None:
        self.sink = sink
        self.device = device
        self.sites = Sites(sink.add)
        self.tensors = WeakNumbers()
        self.modules = WeakNumbers()
        self.optimizers = WeakNumbers()
        self.schedulers = WeakNumbers()
        self._storages = Storages()
        self._serial = 0
        self._names: set[tuple[str, int, str, str]] = set()
        self._placed: dict[int, ModuleId] = {}
        self._parts: dict[int, int] = {}
        self._lazy: list[TensorId] = []
        self._made: dict[int, tuple[SiteId | None, Serial]] = {}
        self._fresh: set[int] = set()
        self._members: set[tuple[TensorId, ModuleId, str]] = set()
        self._dtypes: dict[torch.dtype, str] = {}
        self.segment = Segment(level="full")
        self.folder = StepFolder(self._store)

    def next_serial(self) -> Serial:
        """Returns the next serial number."""
        self._serial += 1
        return Serial(self._serial - 1)

    @property
    def last_serial(self) -> Serial:
        """The serial that was issued last; -1 before the first."""
        return Serial(self._serial - 1)

    def emit(self, event: AnyEvent) -> None:
        """Takes an event of the current step."""
        self.segment.events.append(event)

    def emit_row(self, row: Record) -> None:
        """Takes a row of a table."""
        self.sink.add(row)

    def _store(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.sink.add(event)

    # --- tensors -----------------------------------------------------------------------------------------

    def tensor(self, tensor: torch.Tensor) -> TensorId:
        """Returns the tensor's number, and emits its row when it is new."""
        reference = self.tensors.references.get(id(tensor))
        if reference is not None and reference() is tensor:
            return TensorId(reference.number)
        number = TensorId(self.tensors.add(tensor))
        self.sink.add(self._tensor_row(number, tensor))
        if is_lazy(tensor):
            self._lazy.append(number)
        return number

    def storage(self, tensor: torch.Tensor) -> int:
        """Returns the number of the tensor's storage."""
        return self._storages.number(tensor)

    def _tensor_row(self, number: TensorId, tensor: torch.Tensor) -> Tensor:
        dtype = tensor.dtype
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype)
        shape = () if is_lazy(tensor) else sizes_of(tensor)
        return Tensor(
            id=number,
            storage=self._storages.number(tensor),
            shape=shape,
            dtype=name,
            device=self.device(tensor),
            bytes=math.prod(shape) * dtype.itemsize,
            requires_grad=tensor.requires_grad,
            leaf=is_leaf(tensor),
            parameter=is_parameter(tensor),
        )

    def use(self, tensor: torch.Tensor) -> Use:
        """Returns how the tensor stands now, for an operation that reads it."""
        return Use(self.tensor(tensor), version_of(tensor), tensor.requires_grad)

    # --- modules, optimizers, names ----------------------------------------------------------------------

    def module(self, module: torch.nn.Module) -> ModuleId:
        """Returns the module's number; a module met for the first time is entered with all it holds."""
        number = self.modules.find(module)
        if number is None:
            self._add_root(module)
            number = self.modules.find(module)
            assert number is not None  # noqa: S101 - _add_root numbers its argument
        return ModuleId(number)

    def is_root(self, module: ModuleId) -> bool:
        """Tells whether the module was met under no other."""
        return self._placed.get(module) == module

    def refresh(self, root: torch.nn.Module, *, again: bool = False) -> None:
        """Enters what was added to a module, or replaced in it, since it was last looked at.

        It is looked at once a step, unless `again` is given.
        """
        self._enter_shapes()
        number = self.modules.find(root)
        if number in self._fresh and not again:
            return
        if number is not None:
            self._fresh.add(number)
        parts = hash(tuple(id(part) for part in (*root.modules(), *root.parameters(), *root.buffers())))
        if number is not None and self._parts.get(number) != parts:
            self._parts[number] = parts
            self._add_root(root)

    def new_step(self) -> None:
        """Lets every module be looked at anew."""
        self._fresh.clear()

    def _enter_shapes(self) -> None:
        """Enters once more the parameters that had no shape when they were met, and have one now."""
        if not self._lazy:
            return
        live = self.tensors.live()
        for number in self._lazy[:]:
            tensor = live.get(number)
            if tensor is None or not is_lazy(tensor):
                self._lazy.remove(number)
            if tensor is not None and not is_lazy(tensor):
                self.sink.add(self._tensor_row(number, tensor))

    def _add_root(self, root: torch.nn.Module) -> None:
        known = self.modules.find(root)
        root_number = ModuleId(self.modules.add(root) if known is None else known)
        for path, module in root.named_modules():
            found = self.modules.find(module)
            number = ModuleId(self.modules.add(module) if found is None else found)
            place = self._placed.get(number)
            if place is None or (place != root_number and place == number):
                self._placed[number] = root_number
                kind = type(module).__name__
                by_mode = depends_on_mode(module)
                self.sink.add(Module(id=number, type=kind, root=root_number, path=path, by_mode=by_mode))
            self._add_members(number, module)

    def _add_members(self, number: ModuleId, module: torch.nn.Module) -> None:
        held: list[tuple[str, torch.Tensor, bool]] = [
            (name, parameter, False) for name, parameter in module.named_parameters(recurse=False)
        ]
        held += [(name, buffer, True) for name, buffer in module.named_buffers(recurse=False)]
        for name, tensor, is_buffer in held:
            member = (self.tensor(tensor), number, name)
            if member not in self._members:
                self._members.add(member)
                self.sink.add(Parameter(tensor=member[0], module=number, name=name, buffer=is_buffer))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> OptimizerId:
        """Returns the optimizer's number, and emits its groups when it is new."""
        number = self.optimizers.find(optimizer)
        if number is None:
            number = self.optimizers.add(optimizer)
            self.emit_optimizer(optimizer, None)
        return OptimizerId(number)

    def scheduler(self, scheduler: object) -> int:
        """Returns the number of a learning-rate scheduler."""
        number = self.schedulers.find(scheduler)
        return self.schedulers.add(scheduler) if number is None else number

    def emit_optimizer(self, optimizer: torch.optim.Optimizer, site: SiteId | None) -> None:
        """Emits the optimizer with its groups as they are now."""
        number = self.optimizers.find(optimizer)
        groups = tuple(
            tuple(self.tensor(parameter) for parameter in group["params"]) for group in optimizer.param_groups
        )
        lrs = tuple(finite(group.get("lr")) for group in optimizer.param_groups)
        if number is None:
            number = self.optimizers.add(optimizer)
        if site is not None:
            self._made[number] = (site, self.last_serial)
        site, made = self._made.get(number, (None, Serial(-1)))
        self.sink.add(
            Optimizer(
                id=OptimizerId(number),
                type=type(optimizer).__name__,
                groups=groups,
                lrs=lrs,
                site=site,
                made=made,
            )
        )

    def name(self, kind: str, number: int, name: str, scope: str) -> None:
        """Emits a name that the user gave, once."""
        key = (kind, number, name, scope)
        if key not in self._names:
            self._names.add(key)
            self.sink.add(Name(of=kind, id=number, name=name, scope=scope))  # type: ignore[arg-type]


def plain_sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    """Returns a shape; 0 for a size that is a symbol: as a number it would be fixed for good."""
    sizes = tuple(shape)
    if any(type(size) is not int for size in sizes):
        return tuple([size if type(size) is int else 0 for size in sizes])
    return sizes


def sizes_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the tensor's shape; none for a nested tensor, whose parts have each their own."""
    try:
        return plain_sizes(tensor.shape)
    except RuntimeError:
        return ()


def finite(rate: Any) -> float | None:
    """Returns a learning rate or the like, given as a number or a tensor, where it is a finite number."""
    try:
        number = float(rate)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
