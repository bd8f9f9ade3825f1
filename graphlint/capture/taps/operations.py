"""Sees every call into torch that the user's thread makes, at the full level.

A `TorchFunctionMode` sees what the dispatcher can't: a no-op `.to()`, `.detach()`, `.data`, `.item()`.
A composite Python function is one call to it. It sees neither other threads nor compiled regions.
"""

import sys
from contextlib import ExitStack
from types import BuiltinFunctionType, FrameType, MethodDescriptorType, MethodWrapperType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from graphlint.capture.callers import made_by_torch
from graphlint.capture.containers import find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.gradmode import GradModeSites
from graphlint.capture.hostvalues import HostValues
from graphlint.capture.messages import message_of
from graphlint.capture.modes import insert_mode, installed_modes, remove_mode
from graphlint.capture.registry import is_leaf, version_of
from graphlint.capture.sites import CallChain
from graphlint.capture.taps import kinds
from graphlint.capture.taps.replaced import Originals
from graphlint.capture.transfers import TransferWriter
from graphlint.capture.transforms import unrecorded_region
from graphlint.record.events import Change, GradRead, GradWrite, HostRead, Op, Use, ZeroGrad
from graphlint.record.header import Capability
from graphlint.record.identity import ModuleId, Serial, TensorId

MAX_OPERATIONS = 60_000
"""Operations of one step that are recorded; what comes after is said to be unseen."""


_NATIVE = frozenset({BuiltinFunctionType, MethodDescriptorType, MethodWrapperType})


class _Call:
    """A call on its way: what was known before it ran."""

    __slots__ = (
        "asks_device",
        "by_torch",
        "chain",
        "function",
        "grad_mode",
        "had_grad",
        "host_inputs",
        "inputs",
        "seq",
        "tensors",
    )

    def __init__(
        self, function: Any, chain: CallChain, tensors: list[torch.Tensor], inputs: tuple[Use, ...]
    ) -> None:
        self.function = function
        self.chain = chain
        self.tensors = tensors
        self.inputs = inputs
        self.host_inputs: tuple[Serial, ...] = ()
        self.asks_device = False
        self.by_torch = False
        self.had_grad = False
        self.grad_mode = torch.is_grad_enabled()
        self.seq = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


class OperationsTap:
    """Records operations, transfers and host reads. Cost: about 15 us a call.

    Args:
        context: the capture.
        below: types of the modes that the recording one lies above: torch's device context, the simulation.
    """

    capability: Capability = "operations"

    def __init__(self, context: CaptureContext, below: tuple[type[TorchFunctionMode], ...]) -> None:
        self._context = context
        self._below = below
        self._recorder = context.recorder
        self._host = HostValues()
        self._grad_mode = GradModeSites(context)
        self._transfers = TransferWriter(context.recorder)
        self._names: dict[Any, str] = {}
        self._grad_owners: dict[TensorId, TensorId] = {}
        self._count = 0
        self._armed = False
        self._mode = _RecordingMode(self, context)

    def arm(self, stack: ExitStack) -> None:
        """Puts the mode below the user's own modes, above the simulated devices."""
        self._count = 0
        self._grad_mode.arm(stack)
        stack.callback(self._disarm)
        self._armed = True
        self._mode.install(self._below)

    def _disarm(self) -> None:
        self._armed = False
        self._mode.uninstall()

    def new_step(self) -> None:
        """Starts counting the operations of a step anew."""
        self._count = 0
        self._context.values.new_step()

    @property
    def count(self) -> int:
        """Operations seen since the step began."""
        return self._count

    def suspend(self) -> None:
        """Takes the mode off the stack while torch's own code makes calls of no interest."""
        if self._armed:
            self._mode.uninstall()

    def resume(self) -> None:
        """Puts the mode back."""
        if self._armed:
            self._mode.install(self._below)

    def remove(self) -> None:
        """Takes the mode off for good, outside every call."""
        remove_mode(self._mode)

    def before(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """Notes what a call is given; None when the call is of no interest."""
        if self._context.quiet or kinds.is_ignored(function):
            return None
        if (region := unrecorded_region()) is not None:
            self._context.note_unseen(region)
            return None
        settled = self._context.settled
        chain = self._recorder.sites.chain(depth=4) if settled is None else settled
        if chain.in_optimizer:
            return None
        if self._count >= MAX_OPERATIONS:
            self._context.note_unseen(f"operations of a step beyond the first {MAX_OPERATIONS}")
            return None
        self._count += 1
        if settled is None:
            self._context.names.look(chain.frames)
        tensors = find_tensors(args)
        if kwargs:
            tensors += find_tensors(kwargs)
        inputs = tuple(self._recorder.use(tensor) for tensor in tensors)
        call = _Call(function, chain, tensors, inputs)
        call.host_inputs = self._host.find(args)
        if kinds.asks_device(function, args, kwargs):
            call.asks_device = not self._called_by_torch(sys._getframe(3))
        if kinds.is_host_read(function):
            call.by_torch = made_by_torch(sys._getframe(3), kinds.short_name(function))
        if kinds.is_grad_assignment(function):
            call.had_grad = is_leaf(tensors[0]) and tensors[0].grad is not None
        return call

    def _called_by_torch(self, frame: FrameType | None) -> bool:
        """Tells whether torch's own code makes a call, as a gradient scaler does: the user didn't ask for it.

        A device context of the user's hands calls on from torch's code too.
        """
        while frame is not None and frame.f_code.co_name == "__torch_function__":
            frame = frame.f_back
        return frame is not None and self._recorder.sites.is_internal_code(frame.f_code)

    def after(self, call: _Call, result: Any, error: BaseException | None) -> None:
        """Emits the event of a call that came back or raised."""
        function = call.function
        if error is None and kinds.is_host_read(function):
            self._host_read(call, result)
        elif error is None and call.asks_device and call.tensors and isinstance(result, torch.Tensor):
            self._transfers.moved(
                call.inputs[0], call.tensors[0], result, self._facts(call), kinds.short_name(function)
            )
        elif kinds.is_grad_access(function):
            self._grad_access(call, result)
        else:
            self._operation(call, result, error)

    def _facts(self, call: _Call) -> dict[str, Any]:
        """Returns the fields that operations and transfers share."""
        serial = self._recorder.next_serial()
        end = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        running = self._context.module_calls[-1] if self._context.module_calls else None
        if end > call.seq:
            self._context.log.add(call.seq, end, serial, call.chain.site, running)
        module: ModuleId | None = running[0] if running else None
        inside: Serial | None = running[1] if running else None
        return {
            "serial": serial,
            "site": call.chain.site,
            "seq": (call.seq, end),
            "module": module,
            "call": inside,
            "grad_mode": call.grad_mode,
            "grad_site": None if call.grad_mode else self._grad_mode.innermost(),
        }

    def _operation(self, call: _Call, result: Any, error: BaseException | None) -> None:
        outputs = find_tensors(result)
        if not (outputs or call.tensors) or (
            kinds.is_conversion(call.function) and result is call.tensors[0]
        ):
            return
        changed = tuple(
            Change(use.tensor, use.version, version)
            for use, tensor in zip(call.inputs, call.tensors, strict=True)
            if (version := version_of(tensor)) != use.version
        )
        facts = self._facts(call)
        self._recorder.emit(
            Op(
                name=self._name(call.function),
                inputs=call.inputs,
                outputs=tuple(self._recorder.tensor(tensor) for tensor in outputs),
                output_grads=tuple(tensor.requires_grad for tensor in outputs),
                changed=changed,
                host_inputs=call.host_inputs,
                error=None if error is None else message_of(error),
                **facts,
            )
        )
        if outputs and self._context.values.asks(call.function, outputs):
            self._context.guard.run("gradient-values", self._look, call, outputs, changed, facts["serial"])
        if outputs and call.seq != facts["seq"][1]:
            self._context.log.add_device(facts["serial"], self._recorder.device(outputs[0]))
        if changed:
            self._after_change(call, changed, facts["serial"])

    def _look(
        self, call: _Call, outputs: list[torch.Tensor], changed: tuple[Change, ...], serial: Serial
    ) -> None:
        overwritten = {change.tensor for change in changed}
        self._context.values.look(
            serial,
            [
                (use, tensor)
                for use, tensor in zip(call.inputs, call.tensors, strict=True)
                if use.tensor not in overwritten
            ],
            [(self._recorder.tensor(tensor), tensor) for tensor in outputs],
        )

    def _after_change(self, call: _Call, changed: tuple[Change, ...], serial: Serial) -> None:
        for change in changed:
            owner = self._grad_owners.get(change.tensor)
            if owner is not None and kinds.zeroes(call.function):
                zeroed = ZeroGrad(
                    serial=self._recorder.next_serial(),
                    site=call.chain.site,
                    tensor=owner,
                    cleared=(owner,),
                    set_to_none=False,
                )
                self._recorder.emit(zeroed)
        for tensor in call.tensors:
            if tensor.requires_grad and is_leaf(tensor):
                self._context.clock.leaf_changed(serial)

    def _host_read(self, call: _Call, result: Any) -> None:
        if not call.tensors:
            return
        tensor = call.tensors[0]
        serial = self._recorder.next_serial()
        self._host.remember(result, serial)
        self._recorder.emit(
            HostRead(
                serial=serial,
                site=call.chain.site,
                tensor=call.inputs[0],
                method=kinds.short_name(call.function).strip("_"),
                device=self._recorder.device(tensor),
                bytes=tensor.numel() * tensor.element_size(),
                by_torch=call.by_torch,
            )
        )

    def _grad_access(self, call: _Call, result: Any) -> None:
        """Follows `.grad`: which tensor is whose gradient, and assignments by hand."""
        if not call.tensors:
            return
        owner = call.inputs[0].tensor
        if isinstance(result, torch.Tensor):
            self._grad_read(call, owner, self._recorder.tensor(result))
            return
        if not kinds.is_grad_assignment(call.function):
            return
        serial = self._recorder.next_serial()
        site = call.chain.site
        if len(call.inputs) > 1:
            grad = call.inputs[1].tensor
            self._grad_owners[grad] = owner
            self._recorder.emit(GradWrite(serial=serial, site=site, tensor=owner, grad=grad))
        else:
            cleared = (owner,) if call.had_grad else ()
            self._recorder.emit(
                ZeroGrad(
                    serial=serial, site=site, tensor=owner, cleared=cleared, already_clear=1 - len(cleared)
                )
            )

    def _grad_read(self, call: _Call, owner: TensorId, grad: TensorId) -> None:
        if self._grad_owners.get(grad) != owner:
            self._grad_owners[grad] = owner
            serial = self._recorder.next_serial()
            self._recorder.emit(GradRead(serial=serial, site=call.chain.site, tensor=owner, grad=grad))

    def _name(self, function: Any) -> str:
        name = self._names.get(function)
        if name is None:
            name = resolve_name(function) or getattr(function, "__name__", repr(function))
            self._names[function] = name
        return name


class _RecordingMode(TorchFunctionMode):
    """Hands each call to the tap, before and after; the call itself is made here, unguarded."""

    def __init__(self, tap: OperationsTap, context: CaptureContext) -> None:
        super().__init__()
        self._tap = tap
        self._context = context
        self._originals = Originals()
        self._active = False
        self._running = 0

    def install(self, above: tuple[type[TorchFunctionMode], ...]) -> None:
        """Puts the mode on the stack. Inside one of its own calls torch has it off and puts it back."""
        if not self._running and not any(mode is self for mode in installed_modes()):
            insert_mode(self, above=above)
        self._active = True

    def uninstall(self) -> None:
        """Takes the mode off; inside one of its own calls it stays, and does nothing."""
        self._active = False
        if not self._running:
            remove_mode(self)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        context = self._context
        if not (self._active and context.here()):
            return func(*args, **kwargs)
        if type(func) not in _NATIVE:
            func = self._originals.entered(func)
        call = context.guard.run("operations", self._tap.before, func, args, kwargs)
        self._running += 1
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                context.guard.run("operations", self._tap.after, call, None, error)
            # The traceback holds this frame: what was only in it must not live as long.
            call, args, kwargs = None, (), {}
            raise
        finally:
            self._running -= 1
        if call is not None:
            context.guard.run("operations", self._tap.after, call, result, None)
        return result
