"""The first training step in which NaN or infinities got into the gradients, and what is known of it.

May import `record` and the rest of `analysis`. Only what a step used counts: a loss that a script notices and
leaves out, a scaler that skips a step and gradients that are mended before the step are no faults.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from graphlint.analysis.graphs import BackwardGraph
from graphlint.analysis.origins import Origin, Origins
from graphlint.analysis.scales import short
from graphlint.analysis.zeros import kind_name
from graphlint.record.events import Backward, HostRead, Op, OptimizerStep, ScriptError, Transfer
from graphlint.record.graph import Node
from graphlint.record.identity import Serial, TensorId
from graphlint.record.values import ValuesSeen

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

_MOST_NODES = 3
_GREW = 1e4
_SUSPECTS = frozenset({"Sqrt", "Acos", "Asin"})
_TESTS = frozenset({"isfinite", "isnan", "isinf"})


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How a run lost its finite numbers.

    Attributes:
        backward: the backward that filled the gradients; None where the script stopped before it.
        step: the optimizer's step that used them; None where there was none, or none was looked at.
        parameters: whose gradients or values are known to be bad.
        origin: where a value of the forward pass ceased to be finite, where that is known.
        nodes: the nodes that made bad gradients of finite ones, nearest to the loss first.
        masked: whether that is a NaN behind a `where`, a mask or a selection: zero times infinity.
        saved: a node that had saved a bad value while all before it had not (watch level).
        shown: the step was not looked at; the loss of this backward showed that its weights had become bad.
        suspects: where nobody looked inside the backward, its operations whose derivative can be infinite
            though their result is not.
        before: the loss at earlier backwards: the first of all, then the last few.
    """

    backward: Backward | None
    step: OptimizerStep | None
    parameters: tuple[TensorId, ...] = ()
    origin: Origin | None = None
    nodes: tuple[Node, ...] = ()
    masked: bool = False
    saved: Node | None = None
    shown: Backward | None = None
    suspects: tuple[Node, ...] = ()
    before: tuple[float, ...] = field(default=())

    @property
    def ended(self) -> bool:
        """Whether the run ended there."""
        return self.step is None and (self.backward is None or self.backward.error is not None)

    @property
    def grew(self) -> bool:
        """Whether the loss had grown out of all proportion before."""
        return len(self.before) > 1 and abs(self.before[-1]) > _GREW * max(abs(self.before[0]), 1e-3)


class NonFinites:
    """Finds how a trace lost its finite numbers: once, since all that follows is bad too."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts

    def first(self) -> NonFinite | None:
        """Returns the first loss of finite numbers that a step used, or that ended the run."""
        step = next((s for s in self._facts.gradients.all_steps if self._used_bad(s)), None)
        shown = next((b for b in self._backwards if self._shows_bad_weights(b)), None)
        if step is not None and (shown is None or step.serial < shown.serial):
            return self._by_step(step)
        if shown is not None:
            return self._by_weights(shown)
        return self._by_error()

    @cached_property
    def _backwards(self) -> tuple[Backward, ...]:
        return self._facts.graphs.backwards

    def _used_bad(self, step: OptimizerStep) -> bool:
        changed = {change.tensor for change in step.changed}
        return step.error is None and not changed.isdisjoint(step.bad_gradients)

    def _shows_bad_weights(self, backward: Backward) -> bool:
        if backward.values is None:
            return False
        held = {
            t
            for tensor in backward.values.bad_leaves
            for t in [tensor]
            if self._facts.gradients.optimizers(t)
        }
        return bool(held)

    def _by_step(self, step: OptimizerStep) -> NonFinite | None:
        bad = step.bad_gradients
        earlier = [
            b
            for b in self._backwards
            if b.serial < step.end and b.call != "autograd.grad" and not set(bad).isdisjoint(b.reached)
        ]
        after = self._previous(step)
        since = [b for b in earlier if b.serial > after] or earlier[-1:]
        told = [b for b in since if b.values is not None and (b.values.root or _spoiled(b))]
        told.sort(key=lambda b: not b.nested)  # the inner one of a checkpoint knows the line
        backward = told[0] if told else (since[0] if since else None)
        if backward is None:
            return None
        return self._explained(backward, step, bad)

    def _previous(self, step: OptimizerStep) -> Serial:
        earlier = [s for s in self._facts.gradients.steps(step.optimizer) if s.serial < step.serial]
        return earlier[-1].end if earlier else Serial(-1)

    def _explained(
        self, backward: Backward, step: OptimizerStep | None, bad: tuple[TensorId, ...]
    ) -> NonFinite:
        values = backward.values
        before = (values.before if values is not None else ()) or (step.losses if step is not None else ())
        if values is not None and values.root is not None:
            seen = self._seen_in(backward)
            origin = Origins(self._facts, seen).of(backward.roots[0]) if seen and backward.roots else None
            saved = self._saved(backward) if origin is None else None
            return NonFinite(backward, step, bad, origin=origin, saved=saved, before=before)
        graph = self._facts.graphs.of(backward)
        nodes, masked = self._turning(backward, graph) if graph is not None else ((), False)
        suspects = () if nodes else self._suspects(backward)
        return NonFinite(backward, step, bad, nodes=nodes, masked=masked, suspects=suspects, before=before)

    def _suspects(self, backward: Backward) -> tuple[Node, ...]:
        graph = self._facts.graphs.of(backward)
        step = self._facts.steps.of(backward.serial)
        if graph is None or step is None or step.level == "full":
            return ()
        nodes = [graph.nodes[i] for i in sorted(graph.executed) if kind_name(graph.nodes[i]) in _SUSPECTS]
        chosen = {node.site: node for node in reversed(nodes) if node.site is not None}
        return tuple(chosen.values())[:_MOST_NODES]

    def _seen_in(self, backward: Backward) -> ValuesSeen | None:
        return next((e for e in self._seen if backward.serial < e.serial < backward.end), None)

    @cached_property
    def _seen(self) -> tuple[ValuesSeen, ...]:
        return tuple(event for event in self._facts.trace.events if isinstance(event, ValuesSeen))

    def _turning(self, backward: Backward, graph: BackwardGraph) -> tuple[tuple[Node, ...], bool]:
        if backward.values is None:
            return (), False
        turned = {turn.source for turn in backward.values.turns if turn.to != "zero"}
        sources = sorted(turned & graph.executed)  # a very large graph is not stored to its end
        chosen: dict[int | None, Node] = {}
        for source in sources:
            chosen.setdefault(graph.nodes[source].site, graph.nodes[source])
        above = graph.upstream(sources[:1])
        unused = any(turn.to == "nan" for turn in backward.values.turns if turn.source in sources[:1])
        masked = unused and any(
            graph.nodes[index].name.startswith(("Where", "MaskedFill", "Index")) for index in above
        )
        return tuple(chosen.values())[:_MOST_NODES], masked

    def _saved(self, backward: Backward) -> Node | None:
        """Returns the first node of the forward pass that had saved a bad value."""
        graph = self._facts.graphs.of(backward)
        if graph is None or backward.values is None or not backward.values.saved:
            return None
        bad = set(backward.values.saved) & graph.executed
        firsts = [i for i in sorted(bad) if graph.downstream([i]) & bad == {i}]
        return graph.nodes[firsts[-1]] if firsts else None

    def _by_weights(self, shown: Backward) -> NonFinite | None:
        """Explains weights that are bad, by the latest steps that wrote them."""
        values = shown.values
        if values is None:
            return None
        bad = tuple(t for t in values.bad_leaves if self._facts.gradients.optimizers(t))
        steps = [s for s in self._facts.gradients.all_steps if s.end < shown.serial and self._wrote(s, bad)]
        if not steps:
            return NonFinite(shown, None, bad, origin=Origin(None, bad[0], values.root or "nan"))
        step = steps[-1]
        filled = [b for b in self._backwards if b.serial < step.end and not set(bad).isdisjoint(b.reached)]
        if filled and filled[-1].values is not None:
            return self._explained(filled[-1], step, bad)
        backward = filled[-1] if filled else shown
        suspects = self._suspects(backward)
        return NonFinite(backward, step, bad, shown=shown, suspects=suspects, before=values.before)

    def _wrote(self, step: OptimizerStep, bad: tuple[TensorId, ...]) -> bool:
        return not {change.tensor for change in step.changed}.isdisjoint(bad)

    def _by_error(self) -> NonFinite | None:
        """Explains a run that ended by an exception right after it had made a bad loss."""
        events = self._facts.trace.events
        error = next((e for e in reversed(events) if isinstance(e, ScriptError)), None)
        if error is None:
            return None
        spoiled = [b for b in self._backwards if b.error is not None and _spoiled(b)]
        if spoiled:
            return self._explained(spoiled[-1], None, ())
        seen = self._seen[-1] if self._seen else None
        if seen is None or any(b.serial < seen.serial < b.end for b in self._backwards):
            return None
        origins = Origins(self._facts, seen)
        loss = origins.bad_scalar()
        origin = origins.of(loss) if loss is not None and self._was_tested(loss) else None
        return NonFinite(None, None, origin=origin) if origin is not None else None

    def _was_tested(self, loss: TensorId) -> bool:
        """Tells whether the script looked at a loss rather than differentiating it, and may have ended so."""
        readers = self._facts.values.consumers(loss)
        tested = any(
            isinstance(e, HostRead) or short(e.name) in _TESTS for e in readers if not isinstance(e, Transfer)
        )
        makers = self._facts.values.makers(loss)
        trained = any(isinstance(e, Op) and any(e.output_grads) for e in makers)
        return tested and trained and not any(loss in b.roots for b in self._backwards)


def _spoiled(backward: Backward) -> bool:
    return backward.values is not None and any(turn.to != "zero" for turn in backward.values.turns)
