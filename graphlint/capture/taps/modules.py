"""Sees each module's forward, at the full level, by wrapping `nn.Module._call_impl`.

Global module hooks would see it too, but not the keyword arguments before the call, and they send every
module down torch's slow path.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import CodeType
from typing import Any

import torch

from graphlint.capture.containers import declared_parameters, find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.graphs import CALLS
from graphlint.capture.messages import message_of
from graphlint.capture.registry import node_of
from graphlint.capture.taps.patching import patch
from graphlint.capture.transforms import unrecorded_region
from graphlint.record.events import ModuleCall, ModuleMove
from graphlint.record.header import Capability
from graphlint.record.identity import ModuleId, Serial, SiteId, TensorId


class _Running:
    """A forward on its way."""

    __slots__ = ("arguments", "grad_mode", "inputs", "module", "parent", "serial", "site", "training")

    def __init__(self, module: ModuleId, serial: Serial, parent: Serial | None, site: SiteId | None) -> None:
        self.module = module
        self.serial = serial
        self.parent = parent
        self.site = site
        self.training = True
        self.grad_mode = True
        self.inputs: tuple[TensorId, ...] = ()
        self.arguments: tuple[str, ...] = ()


class ModulesTap:
    """Records module calls with their inputs and outputs."""

    capability: Capability = "modules"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._plain: dict[ModuleId, bool] = {}
        self._declared: dict[ModuleId, tuple[str, ...]] = {}
        self._outermost: Callable[[], torch.nn.Module | None] = lambda: None

    def arm(self, stack: ExitStack) -> None:
        """Wraps the call of every module."""
        patch(stack, torch.nn.Module, "_call_impl", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context

        def _call_impl(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if context.quiet or not context.here() or unrecorded_region() is not None:
                return original(module, *args, **kwargs)
            running = context.guard.run("modules", self._before, module, args, kwargs)
            if running is None:
                return original(module, *args, **kwargs)
            try:
                result = original(module, *args, **kwargs)
            except BaseException as error:
                self._left(running)
                context.guard.run("modules", self._after, running, None, error)
                raise
            self._left(running)
            context.guard.run("modules", self._after, running, result, None)
            return result

        return _call_impl

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Running:
        chain = self._recorder.sites.chain(depth=4)
        self._context.names.look(chain.frames, entering=True)
        calls = self._context.module_calls
        if isinstance(module, torch.jit.ScriptModule):
            self._context.note_unseen("operations inside modules compiled by torch.jit")
        if not calls:
            self._outermost = weakref.ref(module)
            self._recorder.refresh(module)
        elif self._recorder.modules.find(module) is None and (outermost := self._outermost()) is not None:
            # A layer that was put in since the step began belongs under the module that holds it.
            self._recorder.refresh(outermost, again=True)
        number = self._recorder.module(module)
        self._context.settled = chain if self._runs_torch_only(module, number) else None
        serial = self._recorder.next_serial()
        running = _Running(number, serial, calls[-1][1] if calls else None, chain.site)
        running.training = module.training
        running.grad_mode = torch.is_grad_enabled()
        given = [*zip(self._names_of(module, number, len(args)), args, strict=True), *kwargs.items()]
        for name, value in given:
            found = tuple([self._recorder.tensor(tensor) for tensor in find_tensors(value)])
            running.inputs += found
            running.arguments += (name,) * len(found)
        calls.append((number, serial))
        return running

    def _names_of(self, module: torch.nn.Module, number: ModuleId, count: int) -> tuple[str, ...]:
        """Returns the names of the parameters for which so many positional arguments are taken."""
        declared = self._declared.get(number)
        if declared is None:
            declared = self._declared[number] = declared_parameters(module.forward)
        if count <= len(declared):
            return declared[:count]
        return (*declared, *(f"*{index}" for index in range(len(declared), count)))

    def _runs_torch_only(self, module: torch.nn.Module, number: ModuleId) -> bool:
        """Tells whether no code of the user's can run inside the module's forward."""
        if module._forward_hooks or module._forward_pre_hooks or module._modules:
            return False
        plain = self._plain.get(number)
        if plain is None:
            plain = self._is_torchs(module.forward) and not any(map(callable, vars(module).values()))
            # Torch's forward calls methods that a class of the user's may put its own in the place of.
            plain = plain and all(map(self._recorder.sites.is_internal_code, _codes(type(module))))
            self._plain[number] = plain
        return plain

    def _is_torchs(self, forward: Any) -> bool:
        """Tells whether a forward is a function of torch's; one that wraps another may run the user's."""
        code = getattr(forward, "__code__", None)
        return code is not None and not code.co_freevars and self._recorder.sites.is_internal_code(code)

    def _left(self, running: _Running) -> None:
        """Takes the call off those that are running, whatever becomes of its record."""
        self._context.settled = None
        calls = self._context.module_calls
        while calls and calls.pop()[1] != running.serial:
            continue

    def _after(self, running: _Running, result: Any, error: BaseException | None) -> None:
        outputs = find_tensors(result)
        self._recorder.emit(
            ModuleCall(
                serial=running.serial,
                site=running.site,
                module=running.module,
                end=self._recorder.next_serial(),
                parent=running.parent,
                inputs=running.inputs,
                arguments=running.arguments,
                outputs=tuple(self._recorder.tensor(tensor) for tensor in outputs),
                training=running.training,
                grad_mode=running.grad_mode,
                error=None if error is None else message_of(error),
            )
        )
        if running.parent is None:
            for tensor in outputs:
                if (node := node_of(tensor)) is not None:
                    node.metadata[CALLS] = (*node.metadata.get(CALLS, ()), running.serial)
            self._context.evaluations.model_called()


class ModuleMovesTap:
    """Records `Module.to`, `.cuda` and `.cpu`, whose single transfers are of no interest."""

    capability: Capability = "operations"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder

    def arm(self, stack: ExitStack) -> None:
        """Wraps the three methods."""
        for name in ("to", "cuda", "cpu"):
            patch(stack, torch.nn.Module, name, partial(self._wrap, name))

    def _wrap(self, name: str, original: Any) -> Any:
        context = self._context

        def move(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if context.quiet or not context.here():
                return original(module, *args, **kwargs)
            before = context.guard.run("operations", self._devices, module)
            context.quiet += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                context.quiet -= 1
            context.guard.run("operations", self._after, module, name, before)
            return result

        move.__name__ = move.__qualname__ = name
        return move

    def _after(self, module: torch.nn.Module, method: str, before: list[str] | None) -> None:
        after = self._devices(module)
        if before is None or not after:
            return
        chain = self._recorder.sites.chain(depth=4)
        self._context.names.look(chain.frames)
        held = list(module.parameters()) + list(module.buffers())
        moved = [tensor for tensor, old, new in zip(held, before, after, strict=False) if old != new]
        self._recorder.emit(
            ModuleMove(
                serial=self._recorder.next_serial(),
                site=chain.site,
                module=self._recorder.module(module),
                to_device=after[0],
                tensors=len(held),
                moved=len(moved),
                bytes=sum(tensor.numel() * tensor.element_size() for tensor in moved),
                method=method,
            )
        )

    def _devices(self, module: torch.nn.Module) -> list[str]:
        return [self._recorder.device(tensor) for tensor in (*module.parameters(), *module.buffers())]


def _codes(kind: type) -> Iterator[CodeType]:
    """Yields the code of the methods and properties of a class and of those that it inherits from."""
    for base in kind.__mro__:
        for held in vars(base).values():
            for function in (held, getattr(held, "fget", None), getattr(held, "__func__", None)):
                code = getattr(function, "__code__", None)
                if isinstance(code, CodeType):
                    yield code
