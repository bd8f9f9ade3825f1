"""Sees optimizers being made, given groups, and stepping, at both levels.

Steps come through torch's own global hooks. The one after a step isn't called when the step raises: then the
profiler's block that torch opens around each step tells its end. Which parameters a step wrote is told by
their version counters; a fused step raises none, and writes every parameter that has a gradient.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from graphlint.capture.context import CaptureContext
from graphlint.capture.extents import extent_of
from graphlint.capture.messages import message_of
from graphlint.capture.registry import version_of
from graphlint.capture.stop import StopRun
from graphlint.capture.taps.patching import patch
from graphlint.capture.transforms import unrecorded_region
from graphlint.record.events import Change, OptimizerStep, ZeroGrad
from graphlint.record.header import Capability
from graphlint.record.identity import OptimizerId, Serial, SiteId, TensorId

_TORCHS_OWN = "torch.optim."
MAX_TOLD_AGAIN = 4
"""How often the same zero gradients are recorded for an optimizer at the watch level."""


class _Stepping:
    """A step on its way: versions before it, by position in the groups, and the name of torch's block.

    `held` are the versions of the gradients before it, None where there is none; empty where not looked at.
    """

    __slots__ = ("block", "closure", "gradients", "held", "optimizer", "serial", "site", "versions")

    def __init__(self, optimizer: OptimizerId, serial: Serial, site: SiteId | None, *, closure: bool) -> None:
        self.block = ""
        self.optimizer = optimizer
        self.serial = serial
        self.site = site
        self.closure = closure
        self.versions: list[int] = []
        self.held: list[int | None] = []
        self.gradients: _Gradients | None = None


class _Gradients(NamedTuple):
    """The parameters whose gradient is zero everywhere, and those whose holds a NaN or an infinity."""

    zero: tuple[TensorId, ...]
    bad: tuple[TensorId, ...]


class OptimizerTap:
    """Records optimizers and their steps.

    Args:
        context: the capture.
        suspend: takes the recording of operations off while an optimizer computes; a closure runs with it on.
        resume: puts it back.
    """

    capability: Capability = "optimizer"

    def __init__(
        self, context: CaptureContext, suspend: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._context = context
        self._suspend = suspend
        self._resume = resume
        self._recorder = context.recorder
        self._running: list[_Stepping] = []
        self._seen: set[OptimizerId] = set()
        self._taken: dict[OptimizerId, int] = {}
        self._told: dict[OptimizerId, tuple[_Gradients | None, int]] = {}

    def arm(self, stack: ExitStack) -> None:
        """Wraps the constructor and `add_param_group`, and registers the step hooks."""
        patch(stack, torch.autograd.profiler.record_function, "__exit__", self._wrap_exit)
        patch(stack, torch.optim.Optimizer, "__init__", self._wrap_init)
        patch(stack, torch.optim.Optimizer, "add_param_group", self._wrap_add)
        stack.callback(register_optimizer_step_pre_hook(self._starts).remove)
        stack.callback(register_optimizer_step_post_hook(self._ended).remove)
        self._context.guard.arm("gradient-values")

    def _wrap_init(self, original: Any) -> Any:
        context = self._context

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - in place of it
            original(optimizer, *args, **kwargs)
            if context.here():
                context.guard.run("optimizer", self._made, optimizer)

        return __init__

    def _wrap_add(self, original: Any) -> Any:
        context = self._context

        def add_param_group(optimizer: Any, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            if torch.compiler.is_compiling() or not context.here():
                return
            if self._recorder.optimizers.find(optimizer) is not None:
                context.guard.run("optimizer", self._recorder.emit_optimizer, optimizer, None)

        return add_param_group

    def _wrap_exit(self, original: Any) -> Any:
        running = self._running

        def __exit__(block: Any, kind: Any, error: Any, trace: Any) -> Any:  # noqa: N807 - in place of it
            if error is not None and running and block.name == running[-1].block and self._context.here():
                self._left(error)
            return original(block, kind, error, trace)

        return __exit__

    def _left(self, error: BaseException) -> None:
        """Ends the innermost step, whose block an exception is leaving."""
        stepping = self._running.pop()
        if not isinstance(error, StopRun):
            self._context.guard.run("optimizer", self._raised, stepping, error)
        self._came_back()

    def _came_back(self) -> None:
        """Records operations again, unless a step is still computing around the one that ended."""
        if not any(not stepping.closure for stepping in self._running):
            self._resume()

    def _raised(self, stepping: _Stepping, error: BaseException | None) -> None:
        optimizer = self._recorder.optimizers.live().get(stepping.optimizer)
        if optimizer is not None:
            self._emit(stepping, optimizer, None if error is None else message_of(error))

    def _made(self, optimizer: torch.optim.Optimizer) -> None:
        self._recorder.emit_optimizer(optimizer, self._recorder.sites.chain(depth=4).site)

    def _starts(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        context = self._context
        if torch.compiler.is_compiling():
            if type(optimizer).__module__.startswith(_TORCHS_OWN):
                # torch breaks the graph in the steps of its own optimizers: so here, to see the step run.
                torch._dynamo.graph_break()
            else:
                return
        if not context.here():
            context.note_elsewhere("optimizer steps")
            return
        context.guard.run("optimizer", self._before, optimizer, args, kwargs)
        context.check_stop()

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        chain = self._recorder.sites.chain(depth=4)
        number = self._recorder.optimizer(optimizer)
        if self._context.full or number not in self._seen:
            self._seen.add(number)
            self._context.names.look_again(chain.frames)
        self._context.clock.optimizer_starts(number)
        closure = (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
        stepping = _Stepping(number, self._recorder.next_serial(), chain.site, closure=closure)
        stepping.versions = [version_of(parameter) for parameter in _parameters(optimizer)]
        stepping.block = f"Optimizer.step#{type(optimizer).__name__}.step"
        self._running.append(stepping)
        if not closure:
            self._look_at_gradients(stepping, optimizer)
            if self._context.full:
                stepping.held = [_gradient_version(parameter) for parameter in _parameters(optimizer)]
            self._suspend()

    def _look_at_gradients(self, stepping: _Stepping, optimizer: torch.optim.Optimizer) -> None:
        """Looks at the gradients that a step is given: at the full level always, else ever more seldom."""
        taken = self._taken.get(stepping.optimizer, 0) + 1
        self._taken[stepping.optimizer] = taken
        full = self._context.full
        if (full or taken & (taken - 1) == 0) and unrecorded_region() is None:
            stepping.gradients = self._context.guard.run(
                "gradient-values", self._gradients, optimizer, full=full
            )
            if stepping.gradients is not None:
                suspects = self._context.values.zero_gradients
                (suspects.add if stepping.gradients.zero else suspects.discard)(stepping.optimizer)
                if not self._is_news(stepping.optimizer, stepping.gradients) and not full:
                    stepping.gradients = None

    def _is_news(self, optimizer: OptimizerId, gradients: _Gradients) -> bool:
        """Tells whether the record doesn't know that yet: what stays as it was must not tell steps apart."""
        last, times = self._told.get(optimizer, (None, 0))
        self._told[optimizer] = (gradients, times + 1 if gradients == last else 1)
        return gradients != last or (bool(gradients.zero) and times < MAX_TOLD_AGAIN)

    def _gradients(self, optimizer: torch.optim.Optimizer, *, full: bool) -> _Gradients | None:
        """Returns what the gradients are; None where a watched step would have to wait for a device."""
        zero, bad = [], []
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is None:
                continue
            if not full and not gradient.is_cpu:
                return None
            extent = extent_of(gradient)
            if extent == "zero":
                zero.append(self._recorder.tensor(parameter))
            elif extent in {"nan", "inf"}:
                bad.append(self._recorder.tensor(parameter))
        if getattr(optimizer, "found_inf", None) is not None:
            bad.clear()  # a scaler has the step itself leave such gradients out
        return _Gradients(tuple(zero), tuple(bad))

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        context = self._context
        if torch.compiler.is_compiling():
            if type(optimizer).__module__.startswith(_TORCHS_OWN):
                torch._dynamo.graph_break()
            else:
                return
        if context.here():
            if self._running and self._recorder.optimizers.find(optimizer) == self._running[-1].optimizer:
                stepping = self._running.pop()
                context.guard.run("optimizer", self._emit, stepping, optimizer, None)
                self._came_back()
            context.check_stop()

    def _emit(self, stepping: _Stepping, optimizer: torch.optim.Optimizer, error: str | None) -> None:
        if stepping.closure:
            self._look_at_gradients(stepping, optimizer)
        gradients = stepping.gradients or _Gradients((), ())
        changed, without, unchanged = [], [], []
        removed, zeroed = self._cleared(stepping, optimizer)
        silent = any(group.get("fused") for group in optimizer.param_groups)
        for parameter, before in zip(_parameters(optimizer), stepping.versions, strict=False):
            number = self._recorder.tensor(parameter)
            after = version_of(parameter)
            if after != before or (silent and parameter.grad is not None):
                changed.append(Change(number, before, after))
            if parameter.grad is None and number not in removed:
                without.append(number)
            elif after == before and not silent:
                unchanged.append(number)
        end = self._recorder.next_serial()
        self._recorder.emit(
            OptimizerStep(
                serial=stepping.serial,
                site=stepping.site,
                optimizer=stepping.optimizer,
                changed=tuple(changed),
                without_grad=tuple(without),
                unchanged=tuple(unchanged),
                closure=stepping.closure,
                gradients_checked=stepping.gradients is not None,
                zero_gradients=gradients.zero,
                bad_gradients=gradients.bad,
                losses=tuple(self._context.values.losses) if gradients.bad else (),
                error=error,
                end=end,
            )
        )
        for cleared, to_none in ((removed, True), (zeroed, False)):
            if cleared:
                serial = self._recorder.next_serial()
                self._recorder.emit(
                    ZeroGrad(
                        serial=serial,
                        site=stepping.site,
                        optimizer=stepping.optimizer,
                        cleared=cleared,
                        set_to_none=to_none,
                    )
                )
        if error is None:
            self._context.clock.optimizer_ended(stepping.optimizer, end)

    def _cleared(
        self, stepping: _Stepping, optimizer: torch.optim.Optimizer
    ) -> tuple[tuple[TensorId, ...], tuple[TensorId, ...]]:
        """Returns whose gradients the step itself took away, and whose it set to zero."""
        removed, zeroed = [], []
        for parameter, before in zip(_parameters(optimizer), stepping.held, strict=False):
            gradient = parameter.grad
            if before is None or before == _gradient_version(parameter):
                continue
            if gradient is None:
                removed.append(self._recorder.tensor(parameter))
            elif extent_of(gradient) == "zero":
                zeroed.append(self._recorder.tensor(parameter))
        return tuple(removed), tuple(zeroed)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _gradient_version(parameter: torch.Tensor) -> int | None:
    gradient = parameter.grad
    return None if gradient is None else version_of(gradient)
