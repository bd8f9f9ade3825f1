"""Proves after every test that nothing of a capture is left in torch or in Python."""

import gc
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same programs and records each time: what a change breaks, it breaks at once, and not some day later.
# Others are drawn by benchmarks/model.py.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background with Ctrl-C ignored, and tests send it to their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def installed() -> dict[str, object]:
    """Returns everything that a capture replaces, as it is now."""
    torch = sys.modules["torch"]
    from torch._dynamo import eval_frame
    from torch.nn.modules import module as modules
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer as optimizers
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    owners = {
        torch.autograd: ("_engine_run_backward",),
        torch.autograd.graph: ("_engine_run_backward",),
        torch.autograd.Function: ("apply",),
        torch.autograd.profiler.record_function: ("__enter__", "__exit__"),
        torch.optim.Optimizer: ("__init__", "zero_grad", "add_param_group", "__init_subclass__"),
        torch.nn.Module: (
            "_call_impl",
            "__call__",
            "zero_grad",
            "to",
            "cuda",
            "cpu",
            "train",
            "__init_subclass__",
        ),
        torch.no_grad: ("__enter__", "__exit__"),
        torch.inference_mode: ("__enter__", "__exit__"),
        _BaseDataLoaderIter: ("__init__", "__next__"),
        torch.cuda: ("empty_cache",),
        torch.cuda.memory: ("empty_cache",),
        gc: ("collect",),
        torch: ("compile",),
        torch.jit: ("script",),
        torch.utils: ("swap_tensors",),
        torch.jit._trace: ("_trace_impl",),
        torch.export: ("export",),
        torch.optim.lr_scheduler.LRScheduler: ("__setattr__",),
        torch.amp.GradScaler: ("scale", "unscale_", "step", "update", "get_scale"),
        clip_grad: ("clip_grad_value_", "_clip_grads_with_norm_"),
        eval_frame: ("set_eval_frame", "_maybe_set_eval_frame"),
    }
    found: dict[str, object] = {
        f"{owner.__name__}.{name}": vars(owner).get(name) for owner, names in owners.items() for name in names
    }
    for base in (torch.optim.Optimizer, torch.nn.Module):
        for kind in base.__subclasses__():
            if "zero_grad" in vars(kind):
                found[f"{kind.__module__}.{kind.__qualname__}.zero_grad"] = vars(kind)["zero_grad"]
    for function in (clip_grad.clip_grad_value_, clip_grad._clip_grads_with_norm_):
        found[f"what {function.__name__} calls"] = function.__closure__[0].cell_contents
    found["function modes"] = tuple(_get_current_function_mode_stack())
    found["parameter hooks"] = tuple(modules._global_parameter_registration_hooks.values())
    found["step hooks before"] = tuple(optimizers._global_optimizer_pre_hooks.values())
    found["step hooks after"] = tuple(optimizers._global_optimizer_post_hooks.values())
    return found


def of_graphlint(value: object) -> bool:
    """Tells whether an object is graphlint's own code."""
    if isinstance(value, tuple):
        return any(map(of_graphlint, value))
    plain = getattr(value, "__func__", value)
    code = getattr(plain, "__code__", None)
    origin = code.co_filename if code is not None else type(plain).__module__
    return "graphlint/capture" in origin.replace("\\", "/").replace(".", "/")


def left_over(before: dict[str, object] | None) -> list[str]:
    """Returns the names of what isn't as it was."""
    if "torch" not in sys.modules:
        return []
    now = installed()
    changed = [name for name, value in now.items() if of_graphlint(value)]
    if before is not None:
        changed += [
            name
            for name, value in before.items()
            if name in now and now[name] is not value and now[name] != value
        ]
    return sorted(set(changed))


@pytest.fixture(autouse=True)
def nothing_is_left_installed() -> Iterator[None]:
    before = installed() if "torch" in sys.modules else None
    yield
    assert left_over(before) == []
