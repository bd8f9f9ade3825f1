"""Sees every backward, at both levels: they all go through `torch.autograd.graph._engine_run_backward`.

The graph is walked just before the engine runs; nothing of it is held afterwards.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch

from graphlint.capture.containers import find_tensors
from graphlint.capture.context import CaptureContext
from graphlint.capture.graphs import MAX_STORED_NODES, Shape, Stamp, Walk, executed_indexes
from graphlint.capture.losses import BackwardLooks, Looked
from graphlint.capture.messages import kind_of, message_of
from graphlint.capture.taps.patching import patch
from graphlint.capture.transforms import unrecorded_region
from graphlint.record.events import Backward, Visit
from graphlint.record.header import Capability
from graphlint.record.identity import GraphId, Serial, SiteId, TensorId

MAX_GRAPHS = 100
"""Different graphs that are stored in one run; of further ones only the number of nodes is kept."""

MAX_NODES = 200_000
"""Nodes in all the graphs that are stored in one run: about as many as fit in 200 MB."""

_ENTRANCES = frozenset({torch.autograd.__file__, torch._tensor.__file__, torch.overrides.__file__})
"""Files of the functions that everybody calls to get a backward, and of what hands their calls on."""

_GRAPHLINT = __file__[: -len("capture/taps/backward.py")]

_Entry = Literal["Tensor.backward", "autograd.backward", "autograd.grad"]


class _Started:
    """A backward on its way; holds no node."""

    __slots__ = (
        *("accumulated", "by_torch", "call", "create_graph", "executed", "graph", "leaves", "nested"),
        *("nodes", "reached", "retain_graph", "roots", "same_shape", "seq", "serial", "site", "stamp"),
        *("looked", "targets", "visits"),
    )

    def __init__(self, serial: Serial, site: SiteId | None, call: _Entry) -> None:
        self.serial = serial
        self.site = site
        self.call = call
        self.roots: tuple[TensorId, ...] = ()
        self.targets: tuple[TensorId, ...] = ()
        self.retain_graph = False
        self.create_graph = False
        self.nested = False
        self.by_torch = False
        self.seq = 0
        self.graph: GraphId | None = None
        self.same_shape = False
        self.nodes = 0
        self.executed: tuple[int, ...] | None = None
        self.visits: tuple[Visit, ...] = ()
        self.reached: tuple[TensorId, ...] = ()
        self.accumulated: tuple[TensorId, ...] = ()
        self.stamp = Stamp(serial)
        self.leaves: list[torch.Tensor] = []
        self.looked: Looked | None = None


class _Stored(NamedTuple):
    """A graph in the record, and what the backward that stored it was called on."""

    graph: GraphId | None
    roots: tuple[TensorId, ...]
    targets: tuple[TensorId, ...]
    leaves: tuple[TensorId, ...]
    shape: Shape


class BackwardTap:
    """Records backwards with the graph that each was given, and stamps what they freed.

    Args:
        context: the capture.
        suspend: takes the recording mode off while the engine runs: it hands the thread's state on to threads
            of torch's own (see `taps.distributed`).
        resume: puts it back.
    """

    capability: Capability = "backward"

    def __init__(
        self, context: CaptureContext, suspend: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._context = context
        self._suspend = suspend
        self._resume = resume
        self._recorder = context.recorder
        self._looks = BackwardLooks(context)
        self._depth = 0
        self._known: dict[SiteId | None, list[_Stored]] = {}
        self._count = 0
        self._nodes = 0
        self.wants_full = False

    def arm(self, stack: ExitStack) -> None:
        """Wraps the engine under both names by which torch calls it."""
        for owner in (torch.autograd.graph, torch.autograd):
            patch(stack, owner, "_engine_run_backward", self._wrap)

    def _wrap(self, original: Any) -> Any:
        context = self._context

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not context.here():
                context.note_elsewhere("backward calls")
                return original(t_outputs, *args, **kwargs)
            if (region := unrecorded_region()) is not None:
                context.note_unseen(region)
                return original(t_outputs, *args, **kwargs)
            started = context.guard.run("backward", self._before, t_outputs, args, kwargs)
            context.check_stop()
            context.quiet += 1
            self._depth += 1
            if context.full:
                context.guard.run("operations", self._suspend)
            try:
                result = original(t_outputs, *args, **kwargs)
            except BaseException as error:
                context.guard.run("backward", self._failed, started, t_outputs)
                context.guard.run("backward", self._after, started, None, error)
                raise
            finally:
                self._depth -= 1
                context.quiet -= 1
                if context.full and not self._depth:
                    context.guard.run("operations", self._resume)
            context.guard.run("backward", self._after, started, result, None)
            return result

        return _engine_run_backward

    def _before(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Started:
        chain = self._recorder.sites.chain(depth=4)
        if not self._depth:
            self._context.clock.backward_starts()
        if self._context.full or chain.site not in self._known:
            self._context.names.look_again(chain.frames)
        roots = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        _, retain_graph, create_graph, inputs = args[:4]
        started = _Started(self._recorder.next_serial(), chain.site, _entry(kwargs))
        started.nested = self._depth > 0
        started.by_torch = self._asked_by_torch()
        started.create_graph = bool(create_graph)
        started.retain_graph = bool(retain_graph)
        targets = [target for target in inputs or () if isinstance(target, torch.Tensor)]
        self._walk(started, roots, targets, accumulates=bool(kwargs.get("accumulate_grad")))
        started.seq = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        return started

    def _asked_by_torch(self) -> bool:
        """Tells whether other code of torch's than the functions that everybody calls asked for it."""
        frame = sys._getframe(3).f_back
        while frame is not None and _is_entrance(frame.f_code):
            frame = frame.f_back
        return frame is not None and self._recorder.sites.is_internal_code(frame.f_code)

    def _walk(
        self, started: _Started, roots: list[Any], targets: list[torch.Tensor], *, accumulates: bool
    ) -> None:
        walk = Walk([node for root in roots if (node := _node_of(root)) is not None])
        stored = self._stored_graph(started, walk, roots, targets)
        if targets:
            started.executed = executed_indexes(
                walk,
                [target.grad_fn for target in targets if target.grad_fn is not None],
                [target for target in targets if target.is_leaf],
            )
        running = None if started.executed is None else set(started.executed)
        started.nodes = len(walk.nodes) if running is None else len(running)
        if accumulates:
            self._reach(started, walk, stored, roots, running)
        started.visits = self._context.stamps.leave(walk, started.stamp, running)
        started.looked = self._context.guard.run(
            "gradient-values", self._looks.before, started.site, walk, roots
        )
        if not self._context.full and self._looks.wants_full():
            self.wants_full = True

    def _reach(
        self, started: _Started, walk: Walk, stored: "_Stored", roots: list[Any], running: set[int] | None
    ) -> None:
        """Notes the leaves whose gradient is filled."""
        leaves = [leaf for _, leaf in walk.leaves]
        numbers = stored.leaves
        if running is not None:
            kept = [place for place, (index, _) in enumerate(walk.leaves) if index in running]
            leaves = [leaves[place] for place in kept]
            numbers = tuple([numbers[place] for place in kept])
        for root in roots:
            if isinstance(root, torch.Tensor) and root.is_leaf and root.requires_grad:
                leaves.append(root)
                numbers = (*numbers, self._recorder.tensor(root))
        started.leaves = leaves
        started.reached = numbers
        started.accumulated = tuple(
            [number for number, leaf in zip(numbers, leaves, strict=True) if leaf.grad is not None]
        )

    def _stored_graph(
        self, started: _Started, walk: Walk, roots: list[Any], targets: list[torch.Tensor]
    ) -> "_Stored":
        """Returns the stored graph of this shape, stored now where there is none or the level is full.

        A watched backward whose graph is known numbers nothing anew: what it was called on is named by the
        tensors of the backward that stored the graph.
        """
        known = self._known.setdefault(started.site, [])
        stored = None
        if not self._context.full:
            stored = next((other for other in reversed(known) if walk.has(other.shape)), None)
        if stored is None:
            stored = self._store(walk, roots, targets)
            if stored.graph is not None:
                known.append(stored)
        else:
            started.same_shape = True
        started.graph, started.roots, started.targets = stored.graph, stored.roots, stored.targets
        return stored

    def _store(self, walk: Walk, roots: list[Any], targets: list[torch.Tensor]) -> "_Stored":
        recorder = self._recorder
        graph: GraphId | None = None
        leaves = tuple([recorder.tensor(variable) for _, variable in walk.leaves])
        if self._count < MAX_GRAPHS and self._nodes < MAX_NODES:
            self._count += 1
            self._nodes += min(len(walk.nodes), MAX_STORED_NODES)
            self.wants_full = not self._context.full
            graph = self._context.graphs.store(walk, leaves, full=self._context.full)
            if len(walk.nodes) > MAX_STORED_NODES:
                self._context.note_unseen(f"nodes of a graph beyond the first {MAX_STORED_NODES}")
        else:
            self._context.note_unseen(f"graphs of further shapes than the first {self._count}")
        return _Stored(
            graph,
            tuple(recorder.tensor(root) for root in roots if isinstance(root, torch.Tensor)),
            tuple(recorder.tensor(target) for target in targets),
            leaves,
            walk.shape(recorder.tensors.find),
        )

    def _failed(self, started: _Started | None, outputs: Any) -> None:
        """Notes what a backward that raised had freed before."""
        if started is not None and not started.retain_graph:
            roots = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            walk = Walk([node for root in roots if (node := _node_of(root)) is not None])
            self._context.stamps.leave_freed(walk, started.stamp)

    def _after(self, started: _Started | None, result: Any, error: BaseException | None) -> None:
        if started is None:
            return
        values = None
        if started.looked is not None:
            values = self._context.guard.run("gradient-values", self._looks.after, started.looked)
        serial = self._recorder.next_serial()
        started.stamp.freed = error is None and not started.retain_graph
        if started.create_graph and self._context.full:
            # What the engine builds in threads of its own, on other devices, has numbers of theirs.
            end = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            self._context.log.add_span(started.seq, end, started.serial, started.site)
        outputs = find_tensors(result) if self._context.full and started.call == "autograd.grad" else ()
        self._recorder.emit(
            Backward(
                serial=started.serial,
                site=started.site,
                call=started.call,
                roots=started.roots,
                targets=started.targets,
                retain_graph=started.retain_graph,
                create_graph=started.create_graph,
                graph=started.graph,
                same_shape=started.same_shape,
                nodes=started.nodes,
                executed=started.executed,
                visits=started.visits,
                reached=started.reached,
                accumulated=started.accumulated,
                calls=tuple(sorted(set(started.stamp.calls))),
                outputs=tuple(self._recorder.tensor(tensor) for tensor in outputs),
                error=None if error is None else message_of(error),
                error_type=None if error is None else kind_of(error),
                nested=started.nested,
                by_torch=started.by_torch,
                end=serial,
                values=values,
            )
        )
        if not started.nested:
            self._context.clock.backward_ended(serial, started.leaves)


def _entry(kwargs: dict[str, Any]) -> _Entry:
    """Returns which function of torch asked for the backward."""
    if not kwargs.get("accumulate_grad"):
        return "autograd.grad"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "backward":
        frame = frame.f_back
    caller = frame.f_back
    by_method = caller is not None and caller.f_code.co_filename == torch.Tensor.backward.__code__.co_filename
    return "Tensor.backward" if by_method else "autograd.backward"


def _is_entrance(code: CodeType) -> bool:
    """Tells whether a function is one by which a backward is asked for, or hands such a call on."""
    file = code.co_filename
    return code.co_name == "__torch_function__" or file in _ENTRANCES or file.startswith(_GRAPHLINT)


def _node_of(root: Any) -> Any:
    """Returns the node at which the engine starts for a tensor or a `GradientEdge`; None for a leaf."""
    return root.grad_fn if isinstance(root, torch.Tensor) else root.node
