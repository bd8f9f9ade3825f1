"""The words for what a record numbers: the user's own names, or a description where there is none.

May import `record` only. Names word a message; nothing is ever decided by them.
"""

from functools import cached_property

from graphlint.record.identity import ModuleId, OptimizerId, TensorId
from graphlint.record.tables import Name, Parameter
from graphlint.record.trace import Trace

_OWN_FORWARD = "forward"


class Names:
    """Names of a trace's objects. The phrases carry backticks where they quote a name."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _given(self) -> dict[tuple[str, int], tuple[Name, ...]]:
        """The names of each object, in the order in which they were met."""
        given: dict[tuple[str, int], list[Name]] = {}
        for name in self._trace.names:
            if name.name != "self":
                given.setdefault((name.of, name.id), []).append(name)
        return {key: tuple(names) for key, names in given.items()}

    @cached_property
    def _places(self) -> dict[TensorId, tuple[Parameter, ...]]:
        places: dict[TensorId, list[Parameter]] = {}
        for place in self._trace.parameters:
            places.setdefault(place.tensor, []).append(place)
        return {tensor: tuple(found) for tensor, found in places.items()}

    def places(self, tensor: TensorId) -> tuple[Parameter, ...]:
        """Returns where a parameter or buffer sits; empty for any other tensor."""
        return self._places.get(tensor, ())

    def tensor_name(self, tensor: TensorId, scope: str | None = None) -> str | None:
        """Returns the bare name of a tensor, one given in `scope` if there is one; None when nameless."""
        if self.places(tensor):
            return self.parameter_name(tensor)
        return self._best("tensor", tensor, scope)

    def names_in(self, tensor: TensorId, scope: str) -> tuple[str, ...]:
        """Returns the bare names that a tensor was given in one function, in the order they were met."""
        return tuple(name.name for name in self._given.get(("tensor", tensor), ()) if name.scope == scope)

    def tensor(self, tensor: TensorId, scope: str | None = None) -> str:
        """Returns "`fake_images`", or "a tensor of shape (8, 1)" when it has no name."""
        name = self.tensor_name(tensor, scope)
        if name is not None:
            return f"`{name}`"
        row = self._trace.tensors.get(tensor)
        if row is None:
            return "a tensor"
        return f"a tensor of shape {tuple(row.shape)}" if row.shape else "a tensor of one element"

    def module_name(self, module: ModuleId, scope: str | None = None) -> str | None:
        """Returns `discriminator.out`, bare; None when neither the module nor its root has a name."""
        row = self._trace.modules.get(module)
        if row is None:
            return self._best("module", module, scope)
        root = self._best("module", row.root, scope)
        if root is not None:
            return f"{root}.{row.path}" if row.path else root
        return self._best("module", module, scope) or row.path or None

    def module(self, module: ModuleId, scope: str | None = None) -> str:
        """Returns "`discriminator.out`", or "the Linear module" when it has no name."""
        name = self.module_name(module, scope)
        if name is not None:
            return f"`{name}`"
        row = self._trace.modules.get(module)
        return f"the {row.type} module" if row is not None else "a module"

    def parameter_name(self, tensor: TensorId) -> str | None:
        """Returns `discriminator.out.weight`, bare, the shortest where it sits at several places."""
        spelled: list[str] = []
        for place in self.places(tensor):
            owner = self.module_name(place.module)
            if owner is None and place.module in self._trace.modules:
                owner = self._trace.modules[place.module].type
            spelled.append(f"{owner}.{place.name}" if owner else place.name)
        if spelled:
            return min(spelled, key=lambda name: (name.count("."), len(name)))
        return self._best("tensor", tensor, None)

    def parameter(self, tensor: TensorId) -> str:
        """Returns "`discriminator.out.weight`", or a description when it has no name."""
        name = self.parameter_name(tensor)
        if name is not None:
            return f"`{name}`"
        row = self._trace.tensors.get(tensor)
        return f"a parameter of shape {tuple(row.shape)}" if row is not None else "a parameter"

    def optimizer_name(self, optimizer: OptimizerId, scope: str | None = None) -> str | None:
        """Returns the bare name of an optimizer; None when it has none."""
        return self._best("optimizer", optimizer, scope)

    def optimizer(self, optimizer: OptimizerId, scope: str | None = None) -> str:
        """Returns "`optimizer_gen`", or "the Adam optimizer made at line 12" when it has no name."""
        name = self.optimizer_name(optimizer, scope)
        if name is not None:
            return f"`{name}`"
        row = self._trace.optimizers.get(optimizer)
        if row is None:
            return "an optimizer"
        site = self._trace.sites.get(row.site) if row.site is not None else None
        made = f" made at line {site.frames[0].line}" if site is not None and site.frames else ""
        return f"the {row.type} optimizer{made}"

    def scheduler_name(self, scheduler: int) -> str | None:
        """Returns the bare name of a learning-rate scheduler; None when it has none."""
        return self._best("scheduler", scheduler, None)

    def root(self, module: ModuleId) -> ModuleId:
        """Returns the outermost module that a module was met under."""
        row = self._trace.modules.get(module)
        return row.root if row is not None else module

    def _best(self, of: str, identity: int, scope: str | None) -> str | None:
        """Returns the name that a reader of `scope` knows the object by.

        Inside a `forward` everything is called x; such a name is the last choice.
        """
        given = self._given.get((of, identity), ())
        if not given:
            return None
        own = [name for name in given if name.scope == scope]
        outer = [name for name in given if name.scope.rpartition(".")[2] != _OWN_FORWARD]
        candidates = own or outer or list(given)
        plain = [name for name in candidates if "[" not in name.name]
        return (plain or candidates)[0].name
