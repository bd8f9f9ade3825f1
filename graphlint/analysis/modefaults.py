"""Models that are trained in eval mode after an evaluation left it on, and evaluated in train mode.

May import `record` and the rest of `analysis`. A mode is a fault only where a layer depends on it, and only
where the run itself shows that it was not meant: the same line trained the model in train mode before, or
the evaluation that set it is over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphlint.analysis.modelcalls import function
from graphlint.record.events import Backward, HostRead, ModuleCall, Op, OptimizerStep, Repeat
from graphlint.record.identity import Serial, TensorId
from graphlint.record.modes import ModeChange

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts

LOSSES = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "cross_entropy",
        "nll_loss",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
    )
)

_EQUAL = frozenset({"eq", "__eq__", "ne", "__ne__"})
_PAIR = 2


@dataclass(frozen=True, slots=True)
class LeftInEval:
    """A model that is trained in eval mode.

    Attributes:
        turned: the call that set the mode.
        evaluation: a call of the model that evaluated after it.
        training: the first call after that which was trained.
        backward: what trained it.
        layers: the calls of the layers in it that depend on their mode.
        earlier: an earlier call at the same line that was trained in train mode, if there is one.
    """

    turned: ModeChange
    evaluation: ModuleCall
    training: ModuleCall
    backward: Backward
    layers: tuple[ModuleCall, ...]
    earlier: ModuleCall | None


@dataclass(frozen=True, slots=True)
class EvaluatedInTrain:
    """A model that evaluates in train mode; `read` is where what came of it is read."""

    evaluation: ModuleCall
    layers: tuple[ModuleCall, ...]
    read: HostRead
    turned: ModeChange | None


class ModeFaults:
    """Judges the modes of the models of one trace."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._calls = facts.model_calls

    def left_in_eval(self) -> Iterator[LeftInEval]:
        """Yields each trained call of a model that an evaluation left in eval mode."""
        for call in self._calls.outermost:
            backward = self._calls.trained(call)
            layers = tuple(inner for inner in self._calls.by_mode(call) if not inner.training)
            if backward is None or not layers:
                continue
            turned = self._whole_model_turned(layers[0], call)
            if turned is None:
                continue
            meant = {layer.module for layer in layers} - set(turned.changed)
            evaluation = self._evaluation_between(turned, call)
            if meant or evaluation is None:
                continue
            earlier = self._trained_before(call, turned, layers)
            if earlier is not None or self._never_trained_otherwise(turned, evaluation, backward):
                yield LeftInEval(turned, evaluation, call, backward, layers, earlier)

    def _whole_model_turned(self, layer: ModuleCall, call: ModuleCall) -> ModeChange | None:
        """Returns the `eval()` of a whole model that set a layer's mode; one of a part is meant for it."""
        turned = self._calls.mode_set(layer.module, call.serial)
        if turned is None or turned.training or layer.module not in turned.changed:
            return None
        row = self._facts.trace.modules.get(turned.module)
        whole = row is not None and not row.path and row.by_mode is None
        return turned if whole else None

    def _evaluation_between(self, turned: ModeChange, call: ModuleCall) -> ModuleCall | None:
        """Returns a call of what was turned, in eval mode and not trained, before the call.

        What was turned and then trained first was turned for that.
        """
        for other in self._calls.outermost:
            if other.serial >= call.serial:
                return None
            if other.serial < turned.serial or other.training or self._calls.trained(other) is not None:
                continue
            if self._belongs(other, turned) and not self._calls.entered(other):
                return None if self._updated_between(turned, other) else other
        return None

    def _updated_between(self, turned: ModeChange, evaluation: ModuleCall) -> bool:
        """Tells whether the model was updated between its `eval()` and the call that evaluates."""
        parameters = set(self._facts.values.module_parameters(turned.module))
        for event in self._facts.trace.events:
            if not turned.serial < event.serial < evaluation.serial:
                continue
            if isinstance(event, Repeat):
                return True
            if isinstance(event, OptimizerStep) and not parameters.isdisjoint(
                change.tensor for change in event.changed
            ):
                return True
        return False

    def _belongs(self, call: ModuleCall, turned: ModeChange) -> bool:
        root = self._facts.names.root(call.module)
        return turned.module in {call.module, root} or call.module in turned.changed

    def _trained_before(
        self, call: ModuleCall, turned: ModeChange, layers: tuple[ModuleCall, ...]
    ) -> ModuleCall | None:
        """Returns a call at the same line, before the mode was set, that was trained in train mode."""
        modules = {layer.module for layer in layers}
        for other in self._calls.outermost:
            if other.serial >= turned.serial:
                return None
            if other.site != call.site or other.module != call.module:
                continue
            if self._calls.trained(other) is not None and any(
                inner.training and inner.module in modules for inner in self._calls.by_mode(other)
            ):
                return other
        return None

    def _never_trained_otherwise(
        self, turned: ModeChange, evaluation: ModuleCall, backward: Backward
    ) -> bool:
        """Tells whether a whole model is trained in eval mode since a helper evaluated it.

        That is: the function that set the mode is the one that evaluates, training doesn't run it, no call
        ever turned the model to train mode, and no parameter of it is frozen.
        """
        frame = self._facts.graphs.frame(turned.site)
        if frame is None or function(frame) in self._calls.trained_functions:
            return False
        chain = {function(above) for above in self._facts.graphs.frames(evaluation.site)}
        if function(frame) not in chain:
            return False
        if any(change.training and change.module == turned.module for change in self._calls.mode_changes):
            return False
        parameters = set(self._facts.values.module_parameters(turned.module))
        return bool(parameters) and parameters <= set(backward.reached)

    def evaluated_in_train(self) -> Iterator[EvaluatedInTrain]:
        """Yields each call of a trained model that evaluates, without gradients, in train mode."""
        trained = {c.module for c in self._calls.outermost if c.training and self._calls.trained(c)}
        for call in self._calls.outermost:
            if call.grad_mode or not call.training or call.module not in trained or call.error is not None:
                continue
            layers = tuple(inner for inner in self._calls.by_mode(call) if inner.training)
            if not layers or self._is_meant(call) or self._calls.serves(call):
                continue
            read = self._measured(call)
            if read is not None:
                yield EvaluatedInTrain(call, layers, read, self._calls.mode_set(call.module, call.serial))

    def _is_meant(self, call: ModuleCall) -> bool:
        """Tells whether train mode is meant: in a library, to sample, or as it was asked for on the spot."""
        site = self._facts.trace.sites.get(call.site) if call.site is not None else None
        if site is None or not site.direct:
            return True
        for other in self._calls.outermost:
            again = other is not call and other.module == call.module and other.inputs == call.inputs
            if again and not self._stepped_between(*sorted((call.serial, other.serial))):
                return True
        turned = self._calls.mode_set(call.module, call.serial)
        frame = self._facts.graphs.frame(turned.site) if turned is not None and turned.training else None
        chain = {function(above) for above in site.frames}
        return frame is not None and function(frame) in chain - self._calls.trained_functions

    def _stepped_between(self, start: Serial, end: Serial) -> bool:
        """Tells whether anything was updated between two calls, in steps that were only counted too."""
        return any(
            isinstance(event, OptimizerStep | Repeat) and start < event.serial < end
            for event in self._facts.trace.events
        )

    def _measured(self, call: ModuleCall) -> HostRead | None:
        """Returns where a measure of a call's results is read: against its own batch, or a loss of it."""
        draw = self._calls.draw(call)
        if draw is None:
            return self._loss_read(call) if self._is_fresh(call) else None
        if draw.loader in self._calls.trained_loaders or not self._calls.trained_loaders:
            return None
        results = self._calls.downstream(call)
        batch = set(draw.tensors)
        for tensor in sorted(results):
            for event in self._facts.values.consumers(tensor):
                if not isinstance(event, Op):
                    continue
                others = [use.tensor for use in event.inputs if use.tensor not in results]
                if any(self._facts.values.depends(other, event.serial, batch) for other in others):
                    return self._first_read(event.outputs)
        return None

    def _loss_read(self, call: ModuleCall) -> HostRead | None:
        results = self._calls.downstream(call)
        for tensor in sorted(results):
            for event in self._facts.values.consumers(tensor):
                if not isinstance(event, Op) or len(event.outputs) != 1:
                    continue
                row = self._facts.trace.tensors.get(event.outputs[0])
                if event.name in LOSSES and row is not None and not row.shape:
                    return self._first_read(event.outputs)
                if self._is_comparison(event, results):
                    return self._first_read(event.outputs)
        return None

    def _is_comparison(self, event: Op, results: frozenset[TensorId]) -> bool:
        """Tells whether an operation counts hits: choices that the model made against data, one by one."""
        if event.name.rpartition(".")[2] not in _EQUAL or len(event.inputs) != _PAIR:
            return False
        chosen = [use.tensor for use in event.inputs if use.tensor in results]
        data = [use.tensor for use in event.inputs if use.tensor not in results]
        if len(chosen) != 1 or len(data) != 1:
            return False
        rows = [self._facts.trace.tensors.get(tensor) for tensor in (chosen[0], data[0])]
        whole = all(row is not None and not row.dtype.startswith("torch.float") for row in rows)
        upstream = self._facts.values.flow(data[0], event.serial).tensors
        return whole and not any(self._facts.names.places(source) for source in upstream)

    def _first_read(self, tensors: tuple[TensorId, ...]) -> HostRead | None:
        """Returns the first reading into Python of a tensor or of what is computed from it."""
        waiting, seen = list(tensors), set(tensors)
        while waiting:
            for event in self._facts.values.consumers(waiting.pop(0)):
                if isinstance(event, HostRead):
                    return event
                new = event.outputs if isinstance(event, Op) else (event.result,)
                waiting.extend(tensor for tensor in new if tensor not in seen)
                seen.update(new)
        return None

    def _is_fresh(self, call: ModuleCall) -> bool:
        """Tells whether nothing that a call was given was given to a call that was trained."""
        storages = {self._facts.values.storage(tensor) for tensor in call.inputs}
        trained = (other for other in self._calls.outermost if self._calls.trained(other) is not None)
        used = {self._facts.values.storage(tensor) for other in trained for tensor in other.inputs}
        return bool(storages) and storages.isdisjoint(used)
