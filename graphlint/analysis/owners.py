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
        wanted = tuple(tensors)
        names = self._facts.names
        bare = [names.parameter(tensor) for tensor in wanted if not names.places(tensor)]
        modules = self.modules(wanted)
        if len(modules) <= _MOST_MODULES:
            return [*(names.module(module) for module in modules), *bare]
        roots = dict.fromkeys(names.root(module) for module in modules)
        return [*(f"parts of {names.module(root)}" for root in roots), *bare]

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
