"""What a backward shows of values: its root before, its nodes while it runs, what it leaves in the record.

May import `record` and the rest of `capture`. At the watch level only a root on the CPU is looked at, which
costs about a microsecond.
"""

import math
from typing import Any, Literal

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.extents import extent_of, is_plain
from graphlint.capture.graphs import Walk
from graphlint.capture.probes import Probe
from graphlint.capture.values import is_bad
from graphlint.record.identity import SiteId, TensorId
from graphlint.record.values import BackwardValues

MAX_ASKED = 2
"""Steps of the full level that are asked for to learn where gradients become zero."""

MAX_DETAILED = 3
"""Backwards of a bad loss of which more is told than that."""

_KEPT = 3


class Looked:
    """What was seen of a backward before the engine runs, and the hooks that see the rest."""

    __slots__ = ("bad_leaves", "before", "probe", "root", "saved", "site")

    def __init__(self, site: SiteId | None) -> None:
        self.site = site
        self.probe: Probe | None = None
        self.root: Literal["nan", "inf"] | None = None
        self.before: tuple[float, ...] = ()
        self.bad_leaves: tuple[TensorId, ...] = ()
        self.saved: tuple[int, ...] = ()


class BackwardLooks:
    """Looks at the values of backwards.

    Args:
        context: the capture.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._values: dict[SiteId | None, list[float]] = {}
        self._detailed = 0
        self._asked = 0
        self._probed = False

    def before(self, site: SiteId | None, walk: Walk, roots: list[Any]) -> Looked:
        """Looks at the root, and puts hooks on the nodes where the level is full."""
        looked = Looked(site)
        if len(roots) == 1:
            self._root(looked, walk, roots[0])
        if self._context.full:
            watch = self._context.values
            every_node = watch.bad_result or bool(watch.zero_gradients) or looked.root is not None
            looked.probe = Probe(self._context.guard, every_node=every_node, half=watch.half)
            looked.probe.arm(walk)
            self._probed = self._probed or every_node
        return looked

    def wants_full(self) -> bool:
        """Tells, a few times at most, whether gradients are zero and nobody looked where they become so."""
        if self._probed or self._asked >= MAX_ASKED or not self._context.values.zero_gradients:
            return False
        self._asked += 1
        return True

    def _root(self, looked: Looked, walk: Walk, root: Any) -> None:
        full = self._context.full
        if not is_plain(root) or root.numel() != 1 or not (full or root.is_cpu):
            return
        value = root.item()
        known = self._values.setdefault(looked.site, [])
        self._context.values.losses = known
        if isinstance(value, complex) or math.isfinite(value):
            known.append(abs(value) if isinstance(value, complex) else value)
            del known[1:-_KEPT]
            return
        looked.root = "nan" if math.isnan(value) else "inf"
        self._detailed += 1
        if self._detailed <= MAX_DETAILED:
            number = self._context.recorder.tensor
            looked.before = tuple(known)
            looked.bad_leaves = tuple([number(leaf) for _, leaf in walk.leaves if is_bad(extent_of(leaf))])
            if not full:
                looked.saved = tuple([i for i, node in enumerate(walk.nodes) if _saved_bad(node)])

    def after(self, looked: Looked) -> BackwardValues | None:
        """Takes the hooks off and returns what there is to tell; None when nothing is."""
        turns = looked.probe.remove() if looked.probe is not None else ()
        probed = looked.probe is not None and looked.probe.every_node
        spoiled = any(turn.to != "zero" for turn in turns)
        if spoiled:
            looked.before = tuple(self._values.get(looked.site, ()))
        if self._context.full and (looked.root is not None or spoiled):
            self._context.values.tell()
        values = BackwardValues(
            root=looked.root,
            before=looked.before,
            bad_leaves=looked.bad_leaves,
            turns=turns,
            probed=probed,
            saved=looked.saved,
        )
        return values if values != BackwardValues() else None


def _saved_bad(node: Any) -> bool:
    """Tells whether a node saved a NaN or an infinity; what a hook packed is not unpacked."""
    for attribute in dir(type(node)):
        if attribute.startswith("_raw_saved_"):
            raw = getattr(node, attribute)
            for one in raw if isinstance(raw, (tuple, list)) else (raw,):
                if (
                    one.unpack_hook is None
                    and isinstance(one.data, torch.Tensor)
                    and is_bad(extent_of(one.data))
                ):
                    return True
    return False
