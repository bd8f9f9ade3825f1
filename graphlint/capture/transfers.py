"""Writes down moves of tensors between devices.

May import the rest of `capture` and torch.
"""

from collections.abc import Mapping
from typing import Any

import torch

from graphlint.capture.recorder import Recorder
from graphlint.record.events import Op, Transfer, Use

_MAX_DIGESTED = 1 << 18
_WORDS: Mapping[int, torch.dtype] = {4: torch.int32, 8: torch.int64}
_MIX = 0x9E3779B1


class TransferWriter:
    """Emits a `Transfer` for a call that asked for a device, an `Op` for one that only converted the type."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def moved(
        self, use: Use, source: torch.Tensor, result: torch.Tensor, facts: dict[str, Any], method: str
    ) -> None:
        """Takes a call of `to`, `cuda` or `cpu` that came back."""
        origin, destination = self._recorder.device(source), self._recorder.device(result)
        number = self._recorder.tensor(result)
        converted = source.dtype != result.dtype
        noop = result is source
        if origin == destination and not noop:
            op = Op(
                name=f"torch.Tensor.{method}",
                inputs=(use,),
                outputs=(number,),
                output_grads=(result.requires_grad,),
                **facts,
            )
            self._recorder.emit(op)
            return
        across = origin != destination
        self._recorder.emit(
            Transfer(
                source=use,
                result=number,
                from_device=origin,
                to_device=destination,
                bytes=result.numel() * result.element_size() if across else 0,
                method=method,
                noop=noop,
                dtype_changed=converted,
                digest=_digest(source if origin == "cpu" else result) if across and not converted else None,
                **facts,
            )
        )


def _digest(tensor: torch.Tensor) -> int | None:
    """Returns a checksum that doesn't depend on the order of the elements; None where it would say little.

    Taken on the side of the host, where the copy has ended. Small tensors and constant ones are left out.
    """
    word = _WORDS.get(tensor.element_size())
    if word is None or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    if not 1 < tensor.numel() <= _MAX_DIGESTED:
        return None
    words = tensor.detach().resolve_conj().contiguous().view(word).to(torch.int64).flatten()
    if bool((words == words[0]).all()):
        return None
    mixed = words * _MIX
    return int((mixed ^ (mixed >> 29)).sum()) & 0x7FFFFFFFFFFFFFFF
