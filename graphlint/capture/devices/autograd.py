"""Code of the user that autograd calls back sees the devices too; imports torch.

torch takes a function mode off while it handles a call. Hooks on saved tensors run inside such calls, and a
whole backward runs inside `Tensor.backward`: custom backwards, gradient hooks, checkpointing's second
forward. The patches here put the mode back for them, and label the gradients that the engine hands out.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.autograd.graph
import torch.utils.hooks
from torch.autograd.function import BackwardCFunction

from graphlint.capture.devices.labels import Label, tensors_in
from graphlint.capture.devices.mode import SimulationMode, joint_label
from graphlint.capture.devices.patches import Patches


def patch_autograd(patches: Patches, mode: SimulationMode) -> None:
    """Installs the patches of this module."""
    _patch_engine(patches, mode)
    _patch_custom_backward(patches, mode)
    _patch_saved_tensor_hooks(patches, mode)
    _patch_module_hooks(patches, mode)


def _patch_engine(patches: Patches, mode: SimulationMode) -> None:
    real = torch.autograd.graph._engine_run_backward

    @wraps(real)
    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        roots = [mode.label(root) for root in tensors_in(tuple(t_outputs))]
        with mode.engine(joint_label(roots)):
            return real(t_outputs, *args, **kwargs)

    patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
    patches.set(torch.autograd, "_engine_run_backward", run_backward)


def _patch_custom_backward(patches: Patches, mode: SimulationMode) -> None:
    def adopting(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def apply(ctx: Any, *gradients: Any) -> Any:
            mode.adopt_in_engine(gradients)
            return real(ctx, *gradients)

        return apply

    for name in ("apply", "apply_boxed"):
        real = getattr(BackwardCFunction, name, None)
        if real is not None:
            patches.set(BackwardCFunction, name, adopting(real))


def _patch_saved_tensor_hooks(patches: Patches, mode: SimulationMode) -> None:
    def enter(hooks: Any) -> None:
        pack, unpack = hooks.pack_hook, hooks.unpack_hook

        def pack_in_sight(tensor: torch.Tensor) -> Any:
            with mode.enabled():
                mode.adopt_in_call((tensor,))
                return pack(tensor)

        def unpack_in_sight(packed: Any) -> Any:
            with mode.enabled():
                return unpack(packed)

        torch._C._autograd._push_saved_tensors_default_hooks(pack_in_sight, unpack_in_sight)

    patches.set(torch.autograd.graph.saved_tensors_hooks, "__enter__", enter)


def _patch_module_hooks(patches: Patches, mode: SimulationMode) -> None:
    """Labels the gradients given to full backward hooks from the module's inputs and outputs."""
    wrapped_class = torch.nn.modules.module._WrappedHook
    real_call = wrapped_class.__call__

    @wraps(real_call)
    def call(hook: Any, *args: Any, **kwargs: Any) -> Any:
        mode.adopt_in_engine(args)
        return real_call(hook, *args, **kwargs)

    patches.set(wrapped_class, "__call__", call)
    hook_class = torch.utils.hooks.BackwardHook

    def remembering(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def setup(hook: Any, args: Any) -> Any:
            result = real(hook, args)
            given = args if isinstance(args, tuple) else (args,)
            labels = [mode.label(arg) if isinstance(arg, torch.Tensor) else None for arg in given]
            setattr(hook, name, labels)
            return result

        return setup

    def pack_with_none(hook: Any, indices: Any, values: Any, size: int) -> Any:
        of_outputs = indices is hook.output_tensors_index
        labels: list[Label | None] = getattr(hook, "_output_labels" if of_outputs else "_input_labels", [])
        for index, value in zip(indices, values, strict=False):
            if isinstance(value, torch.Tensor) and index < len(labels):
                mode.adopt((value,), labels[index])
        return real_pack(hook, indices, values, size)

    real_pack = patches.set(hook_class, "_pack_with_none", pack_with_none)
    patches.set(hook_class, "setup_input_hook", remembering("_input_labels", hook_class.setup_input_hook))
    patches.set(hook_class, "setup_output_hook", remembering("_output_labels", hook_class.setup_output_hook))
