"""The modules that hold a set of parameters, as few and as exact as words allow.

May import `record` and the rest of `analysis`. A module is named for a set of parameters only when the set
holds all of its parameters that want gradients: "`agent`" must not stand for its actor alone.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.record.identity import ModuleId, Serial, TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_MOST_MODULES = 3
_MOST_NAMED = 2


class Owners:
    """Finds the modules to name for parameters."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def modules(self, tensors: Iterable[TensorId]) -> tuple[ModuleId, ...]:
        """Returns the outermost modules that hold nothing else than the parameters; none for bare tensors."""
        wanted = frozenset(tensors)
        found: dict[ModuleId, None] = {}
        for tensor in sorted(wanted):
            places = self._facts.names.places(tensor)
            if places:
                found[self._widest(places[0].module, wanted)] = None
        return tuple(found)

    def phrases(self, tensors: Iterable[TensorId]) -> list[str]:
        """Returns words for the holders: modules where there are few, else "parts of `model`"."""
        holders, alone = self.split(tensors)
        return [*holders, *alone]

    def split(self, tensors: Iterable[TensorId]) -> tuple[list[str], list[str]]:
        """Returns words for the holders, and for the parameters that are named one by one."""
        wanted = tuple(tensors)
        names = self._facts.names
        modules = self.modules(wanted)
        alone = self._one_by_one(modules, wanted)
        left = [tensor for tensor in wanted if tensor not in alone]
        modules = self.modules(left)
        bare = [tensor for tensor in left if not names.places(tensor)]
        singles = [names.parameter(tensor) for tensor in (*alone, *bare) if names.parameter_name(tensor)]
        nameless = [tensor for tensor in bare if names.parameter_name(tensor) is None]
        if len(nameless) == 1:
            singles.append(names.parameter(nameless[0]))
        elif nameless:
            singles.append(f"{len(nameless)} parameters that no module holds")
        if len(modules) <= _MOST_MODULES:
            return [names.module(module) for module in modules], singles
        roots = dict.fromkeys(names.root(module) for module in modules)
        return [f"parts of {names.module(root)}" for root in roots], singles

    def _one_by_one(
        self, modules: tuple[ModuleId, ...], wanted: tuple[TensorId, ...]
    ) -> dict[TensorId, None]:
        """Returns the parameters whose module has others too that are not meant, where they are few."""
        partly = [module for module in modules if not self._trained(module) <= set(wanted)]
        if len(modules) > _MOST_MODULES:
            return {}
        found: dict[TensorId, None] = {}
        for module in partly:
            held = [t for t in wanted if self._facts.names.places(t) and module in self.modules((t,))]
            if len(held) <= _MOST_NAMED:
                found.update(dict.fromkeys(held))
        return found

    def _widest(self, module: ModuleId, wanted: frozenset[TensorId]) -> ModuleId:
        best = module
        row = self._facts.trace.modules.get(module)
        while row is not None and self._trained(row.id) <= wanted:
            best = row.id
            above = self._by_path.get((row.root, row.path.rpartition(".")[0])) if row.path else None
            row = self._facts.trace.modules.get(above) if above is not None else None
        return best

    def _trained(self, module: ModuleId) -> frozenset[TensorId]:
        """Returns the parameters of a module and those below it that wanted gradients when last seen."""
        if module not in self._cache:
            self._cache[module] = frozenset(
                tensor
                for tensor in self._facts.values.module_parameters(module)
                if self._facts.values.requires_grad(tensor, self._end)
            )
        return self._cache[module]

    @cached_property
    def _cache(self) -> dict[ModuleId, frozenset[TensorId]]:
        return {}

    @cached_property
    def _end(self) -> Serial:
        return self._facts.trace.events[-1].serial if self._facts.trace.events else Serial(0)

    @cached_property
    def _by_path(self) -> dict[tuple[ModuleId, str], ModuleId]:
        return {(row.root, row.path): row.id for row in self._facts.trace.modules.values()}
