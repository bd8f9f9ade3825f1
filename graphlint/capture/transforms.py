"""Tells where calls are not recorded though they can be seen; imports torch alone.

Inside a `torch.func` transform tensors are wrappers without a graph of their own. Under fake tensors, and
while a function is traced into another form (`torch.export`, `make_fx`), tensors have no values and sizes may
be symbols: to read a size as a number would fix it in what is being traced.
"""

import torch

IN_TRANSFORMS = "operations inside torch.func transforms"
IN_JIT = "operations inside functions compiled by torch.jit"
IN_TRACING = "operations on fake tensors and in exported functions"

_KEYS = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def unrecorded_region() -> str | None:
    """Returns what is not recorded here, in the record's words; None where everything is."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return IN_TRANSFORMS
    if torch._C._get_tracing_state() is not None:
        return IN_JIT
    if torch._C._len_torch_dispatch_stack() and any(
        torch._C._get_dispatch_mode(key) is not None for key in _KEYS
    ):
        return IN_TRACING
    return None
