"""Tells whether a `torch.func` transform is running; imports torch alone.

Inside one, tensors are wrappers without a graph of their own: nothing there is recorded, and that is said.
"""

import torch

IN_TRANSFORMS = "operations inside torch.func transforms"


def in_transform() -> bool:
    """Tells whether a transform, such as `grad` or `vmap`, is running now."""
    return torch._C._functorch.peek_interpreter_stack() is not None
