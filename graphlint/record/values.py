"""What was seen of the values of tensors and gradients: whether they are finite, and where that ended.

May import `record.identity` and `record.base` only. No value itself is recorded, but the loss's own.
"""

from typing import Literal

import msgspec

from graphlint.record.base import Event
from graphlint.record.identity import Serial, TensorId

Extent = Literal["zero", "finite", "nan", "inf"]
"""All elements zero; all finite, not all zero; a NaN among them; an infinity among them, and no NaN."""


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An edge of a backward's graph (0-based indexes) on which a gradient ceased to be what it was.

    Node `source` was given a gradient whose elements were all finite, and gave `target` one that is all zeros
    although its own wasn't (`zero`), or that holds a NaN or an infinity.
    """

    source: int
    target: int
    to: Literal["zero", "nan", "inf"]


class BackwardValues(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was seen of the values of one backward.

    Attributes:
        root: whether the one number that it was called on was a NaN or an infinity.
        before: that number at earlier backwards of the same line, the finite ones: the first of all, then the
            last few, oldest first. Told with `root` and with turns to NaN or infinity (the last one is then
            this backward's own).
        bad_leaves: the leaves below it that held a NaN or an infinity themselves. Told with `root`.
        turns: where gradients became zero, NaN or infinite (full level).
        probed: whether all nodes were looked at for that, or only those of kinds that make NaN and
            infinities of finite gradients while all that was computed before is finite.
        saved: nodes (indexes) that had saved a NaN or an infinity. Told with `root`, at the watch level.
    """

    root: Literal["nan", "inf"] | None = None
    before: tuple[float, ...] = ()
    bad_leaves: tuple[TensorId, ...] = ()
    turns: tuple[Turn, ...] = ()
    probed: bool = False
    saved: tuple[int, ...] = ()


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a tensor held at a time.

    `made` tells that it is the result of the operation `at`; else it was read by that operation, or stood so
    at that serial where there is no such operation.
    """

    tensor: TensorId
    at: Serial
    made: bool
    extent: Extent


class ValuesSeen(Event, frozen=True, kw_only=True, tag="values-seen"):
    """What was seen of the values of a step, told where a NaN or an infinity was among them (full level).

    Results are looked at where an operation can make such a value of finite ones; those that only pass values
    on, such as views, are left out. What such an operation read is looked at when its result is not finite;
    parameters and whatever else the script still held, as this event is made.
    """

    values: tuple[Seen, ...]
