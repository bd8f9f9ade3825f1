"""Tells whether torch's own code made a call that a function mode sees, or somebody else's.

May import torch. A gradient scaler reads tensors for itself, which a user can't help.
"""

from pathlib import Path
from types import FrameType

import torch
from torch.overrides import handle_torch_function

_TORCH = str(Path(torch.__file__).parent)
_DISPATCHER = handle_torch_function.__code__


def made_by_torch(frame: FrameType | None, name: str) -> bool:
    """Returns whether a call of `name` that reached a mode from `frame` came out of torch's code.

    A method written in Python is a frame of torch's by itself, and so is torch's dispatcher below it.
    """
    if frame is not None and frame.f_code is _DISPATCHER:
        frame = frame.f_back
        if frame is not None and frame.f_code.co_name == name:
            frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)
