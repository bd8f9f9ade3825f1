"""What torch said when a backward raised: which of the three faults of an autograd graph it met.

May import `record` only. These texts are torch's own verdict and part of the record; `tests/torch_facts`
holds each of them.
"""

import re
from dataclasses import dataclass

from graphlint.record.events import Backward

_FREED = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"
_NO_GRAPH = "does not require grad and does not have a grad_fn"
_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_SHAPE = re.compile(r"\[([\d, ]*)\]\]")


@dataclass(frozen=True, slots=True)
class ChangedTensor:
    """What torch tells of the saved tensor that had changed: its shape and the two version counters."""

    shape: tuple[int, ...] | None
    version: int
    expected: int


def met_freed_graph(backward: Backward) -> bool:
    """Tells whether torch refused to enter a node whose saved tensors were freed."""
    return backward.error is not None and _FREED in backward.error


def met_changed_tensor(backward: Backward) -> ChangedTensor | None:
    """Returns what torch told of a saved tensor that had been written to; None when it wasn't that."""
    if backward.error is None or _CHANGED not in backward.error:
        return None
    versions = _VERSIONS.search(backward.error)
    shape = _SHAPE.search(backward.error)
    sizes = tuple(int(size) for size in shape.group(1).split(",") if size.strip()) if shape else None
    if versions is None:
        return ChangedTensor(sizes, -1, -1)
    return ChangedTensor(sizes, int(versions.group(1)), int(versions.group(2)))


def met_no_graph(backward: Backward) -> bool:
    """Tells whether the tensor that the backward was called on had no graph at all."""
    return backward.error is not None and _NO_GRAPH in backward.error
