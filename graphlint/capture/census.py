"""Counts, as training steps end, the graphs of earlier steps that the user's variables keep alive.

May import `record` and the rest of `capture`. It is taken in the first steps and then ever more seldom, which
is enough to tell what grows from what stays; nothing is held in between but numbers.
"""

from bisect import bisect_right
from types import FrameType
from typing import Any

import torch

from graphlint.capture.context import CaptureContext
from graphlint.capture.graphs import STAMP, AccumulateGrad
from graphlint.capture.holders import Found, find_graph_tensors
from graphlint.capture.sites import frame_rows
from graphlint.capture.unasked import graph_of
from graphlint.record.header import Capability
from graphlint.record.identity import SiteId
from graphlint.record.live import Holding, LiveGraphs

EVERY_STEP_UNTIL = 8
LAST_STEP = 4096
"""Training steps in which a census is taken: each of the first, then a few for each doubling, none later."""

MAX_NODES = 40_000
"""Nodes of all holdings that one census walks."""

_MAX_NODES_OF_ONE = 20_000
_MAX_LISTED = 4
_MAX_HOLDINGS = 32
_MAX_SAVING_NODES = 2_000

_Key = tuple[str, int, str]


class LiveGraphCensus:
    """Takes the census.

    Args:
        context: the capture.
    """

    capability: Capability = "live-graphs"

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._recorder = context.recorder
        self._starts = [_next_number()]
        self._heads: dict[_Key, frozenset[int]] = {}
        self._saved_names: dict[type, tuple[str, ...]] = {}

    def step_ended(self, steps: int) -> None:
        """Takes a census where one is due; `steps` training steps have ended."""
        if steps < len(self._starts) or steps > LAST_STEP or not self._context.here():
            return
        self._starts.append(_next_number())
        if is_due(steps):
            self._context.guard.run("live-graphs", self._take, steps)

    def _take(self, steps: int) -> None:
        chain = self._recorder.sites.chain()
        found = find_graph_tensors(chain.frames, self._recorder.sites.is_user_code)
        groups: dict[_Key, list[Found]] = {}
        for tensor, place in found:
            code = place.frame.f_code
            key = (code.co_filename, code.co_firstlineno, place.holder)
            groups.setdefault(key, []).append((tensor, place))
        left = MAX_NODES
        holdings: list[Holding] = []
        heads: dict[_Key, frozenset[int]] = {}
        for key, members in groups.items():
            walk = _GraphsOf([tensor for tensor, _ in members], min(left, _MAX_NODES_OF_ONE))
            left -= len(walk.nodes)
            heads[key] = walk.heads
            if self._oldest(walk) < steps - 1 and len(holdings) < _MAX_HOLDINGS:
                holdings.append(self._holding(members, walk, self._heads.get(key, frozenset())))
        self._heads = heads
        if holdings:
            serial = self._recorder.next_serial()
            event = LiveGraphs(serial=serial, site=chain.site, ended=steps, holdings=tuple(holdings))
            self._recorder.emit(event)

    def _oldest(self, walk: "_GraphsOf") -> int:
        return min((self._step_of(number) for number in walk.numbers), default=len(self._starts))

    def _step_of(self, number: int) -> int:
        return max(0, bisect_right(self._starts, number) - 1)

    def _holding(self, members: list[Found], walk: "_GraphsOf", before: frozenset[int]) -> Holding:
        tensors = [tensor for tensor, _ in members]
        place = members[0][1]
        freed, saved_bytes = self._look_into(walk.nodes)
        parts = dict.fromkeys(place.inside for _, place in members)
        sites = dict.fromkeys(
            built[1] for number in walk.head_numbers if (built := self._context.log.find(number)) is not None
        )
        return Holding(
            name=place.holder,
            frame=_frame_of(place.frame),
            collection=place.collection is not None,
            limit=place.limit,
            tensors=len(tensors),
            made_in=len({self._step_of(number) for number in walk.head_numbers}),
            steps=len({self._step_of(number) for number in walk.numbers}),
            carried=not (before - walk.heads).isdisjoint(walk.numbers),
            nodes=len(walk.nodes),
            freed=freed,
            bytes=_bytes_of(tensors) + saved_bytes,
            scalar=all(tensor.numel() == 1 for tensor in tensors),
            parts=tuple(parts)[:_MAX_LISTED],
            sites=_known(sites)[:_MAX_LISTED],
            whole=walk.whole and place.whole,
        )

    def _look_into(self, nodes: list[Any]) -> tuple[int, int]:
        """Returns how many nodes were freed, and the bytes that the others saved, leaves left out."""
        freed, size = 0, 0
        seen: set[int] = set()
        for index, node in enumerate(nodes):
            stamp = node.metadata.get(STAMP)
            if stamp is not None and stamp.freed:
                freed += 1
            elif index < _MAX_SAVING_NODES:
                size += self._saved_bytes(node, seen)
        return freed, size

    def _saved_bytes(self, node: Any, seen: set[int]) -> int:
        kind = type(node)
        names = self._saved_names.get(kind)
        if names is None:
            names = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
            self._saved_names[kind] = names
        size = 0
        for name in names:
            try:
                raw = getattr(node, name)
            except RuntimeError:
                continue
            for saved in raw if isinstance(raw, (tuple, list)) else (raw,):
                data = saved.data if saved.unpack_hook is None else None
                if isinstance(data, torch.Tensor) and not (data.is_leaf and data.requires_grad):
                    size += _size_of(data, seen)
        return size


class _GraphsOf:
    """The graphs of some tensors, walked together; holds their nodes as long as it lives."""

    __slots__ = ("head_numbers", "heads", "nodes", "numbers", "whole")

    def __init__(self, tensors: list[torch.Tensor], most: int) -> None:
        nodes: dict[Any, None] = dict.fromkeys(map(graph_of, tensors))
        self.head_numbers = [node._sequence_nr() for node in nodes]
        self.heads = frozenset(self.head_numbers)
        ordered = list(nodes)
        self.whole = True
        for node in ordered:
            for following, _ in node.next_functions:
                if following is None or type(following) is AccumulateGrad or following in nodes:
                    continue
                if len(ordered) >= most:
                    self.whole = False
                    break
                nodes[following] = None
                ordered.append(following)
        self.nodes = ordered
        self.numbers = frozenset(node._sequence_nr() for node in ordered)


def is_due(steps: int) -> bool:
    """Tells whether a census is taken after this many steps: 1 to 8, 12, 16, 24, 32, 48, 64 and so on."""
    if steps <= EVERY_STEP_UNTIL:
        return True
    leading = steps >> (steps.bit_length() - 2)
    return steps == leading << (steps.bit_length() - 2)


def _next_number() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _frame_of(frame: FrameType) -> Any:
    return frame_rows([frame])[0]


def _known(sites: dict[SiteId | None, None]) -> tuple[SiteId, ...]:
    return tuple(site for site in sites if site is not None)


def _bytes_of(tensors: list[torch.Tensor]) -> int:
    seen: set[int] = set()
    return sum(_size_of(tensor, seen) for tensor in tensors)


def _size_of(tensor: torch.Tensor, seen: set[int]) -> int:
    """Returns the bytes of a tensor's storage; 0 for one that was counted, or that has none."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return 0
    if storage._cdata in seen:
        return 0
    seen.add(storage._cdata)
    return int(storage.nbytes())
