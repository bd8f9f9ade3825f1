"""Sentences and remedies for a run that lost its finite numbers; may import `record` and `analysis`."""

from typing import TYPE_CHECKING

from graphlint.analysis.nonfinite import NonFinite
from graphlint.analysis.nonfinite_reasons import OVERFLOW, backward_words, forward_words
from graphlint.analysis.scales import short
from graphlint.analysis.wording import listed
from graphlint.analysis.zeros import kind_name
from graphlint.record.events import Op
from graphlint.record.graph import Node
from graphlint.record.identity import TensorId

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


class NonFiniteWords:
    """What is said of one loss of finite numbers.

    Args:
        facts: the trace.
        found: what was found.
        scope: the function that a reader of the first label stands in.
    """

    def __init__(self, facts: "Facts", found: NonFinite, scope: str) -> None:
        self._facts = facts
        self._found = found
        self._scope = scope
        self._op = found.origin.op if found.origin is not None else None

    def what(self) -> str:
        """Returns the sentence that says what happened and why."""
        found = self._found
        if found.origin is not None and (self._op is None or found.origin.written):
            return self._given(found.origin.tensor)
        if self._op is not None:
            return self._computed(self._op)
        if found.nodes:
            return self._derived(found.nodes[0])
        loss = self._facts.wording.loss(found.backward) if found.backward is not None else "the loss"
        if found.saved is not None:
            first = "this line is the first that is known to have had a NaN or an infinity"
            return f"{loss} is not finite, and {first}{self._history()}."
        if found.shown is not None:
            return (
                f"{loss} was finite, but its backward and the step after it made weights that are not"
                f"{self._history()}.{self._suspected()}"
            )
        return f"The gradients of {loss} hold a NaN or an infinity{self._history()}.{self._suspected()}"

    def _computed(self, op: Op) -> str:
        words = forward_words(short(op.name)) or OVERFLOW
        origin = self._found.origin
        made = "a NaN" if origin is not None and origin.extent == "nan" else "an infinity"
        of = "infinities" if origin is not None and origin.from_infinity is not None else "finite numbers"
        name = _plain(short(op.name) or op.name)
        return f"`{name}` makes {made} of {of}: it {words.why}{self._history()}."

    def _suspected(self) -> str:
        suspects = self._found.suspects
        if not suspects:
            return ""
        names = listed([self.operation(node) for node in suspects])
        return f" The derivative of {names} in it can be infinite."

    def _given(self, tensor: TensorId) -> str:
        name = self._facts.names.tensor(tensor, self._scope)
        if self._facts.gradients.optimizers(tensor):
            return (
                f"{name} holds a NaN or an infinity before any step was taken: it was never initialised well."
            )
        return (
            f"{name} holds a NaN or an infinity already: the data has it, no operation of the model made it."
        )

    def _derived(self, node: Node) -> str:
        words = backward_words(kind_name(node))
        name = self.operation(node)
        why = f": {words.why}" if words is not None else ""
        if self._found.masked:
            return (
                f"The loss is finite, but the gradient of {name} is not{why}. What the loss leaves out "
                "has a gradient of 0, and 0 times infinity is NaN."
            )
        return f"The loss is finite, but the gradient of {name} is not{why}{self._history()}."

    def operation(self, node: Node) -> str:
        """Returns the operation that built a node, quoted."""
        if node.custom is not None:
            return f"the custom function {node.custom}"
        event = self._facts.graphs.event(node)
        if isinstance(event, Op) and short(event.name):
            return f"`{_plain(short(event.name))}`"
        return f"`{kind_name(node).lower()}`"

    def _history(self) -> str:
        before = self._found.before
        if not self._found.grew:
            return ""
        return f", after the loss had grown from {before[0]:.3g} to {before[-1]:.3g}"

    def consequence(self) -> str:
        """Returns the sentence that says what came of it."""
        found = self._found
        if found.ended:
            return "The script ended there."
        if found.step is None:
            return "All that is computed with it is bad too."
        bad = self._facts.wording.parameters(found.parameters)
        return f"{self._facts.wording.step(found.step)} writes it into {bad}, for good."

    def fix(self) -> str:
        """Returns what to do in this script."""
        found = self._found
        if found.grew:
            return (
                "lower the learning rate, or limit the gradients with `torch.nn.utils.clip_grad_norm_` "
                "before the step: the values grew until they overflowed."
            )
        if found.origin is not None and (self._op is None or found.origin.written):
            return self._fix_given(found.origin.tensor)
        if self._op is not None:
            words = forward_words(short(self._op.name)) or OVERFLOW
            return f"{self._filled(words.remedy, self._op)}."
        if found.nodes:
            return self._fix_derived(found.nodes[0])
        return self._fix_unknown()

    def _fix_unknown(self) -> str:
        backward = self._found.backward
        step = self._facts.steps.of(backward.serial) if backward is not None else None
        if step is not None and step.level == "full":
            return "run the step under `torch.autograd.detect_anomaly()` to learn the operation."
        again = "run again with `--level full` to learn the line"
        suspect = self._found.suspects[0] if self._found.suspects else None
        words = backward_words(kind_name(suspect)) if suspect is not None else None
        event = self._facts.graphs.event(suspect) if suspect is not None else None
        if words is not None and isinstance(event, Op):
            return f"{self._filled(words.remedy, event)}; {again} for certain."
        return f"{again}, and meanwhile check `torch.isfinite(loss)` before the backward."

    def _fix_given(self, tensor: TensorId) -> str:
        name = self._facts.names.tensor_name(tensor, self._scope)
        if self._facts.gradients.optimizers(tensor):
            return "initialise the parameter (`torch.empty` leaves what was in the memory)."
        shown = f"`torch.isfinite({name}).all()`" if name else "`torch.isfinite`"
        return f"clean the data where it is loaded; {shown} finds such batches."

    def _fix_derived(self, node: Node) -> str:
        event = self._facts.graphs.event(node)
        words = backward_words(kind_name(node))
        if self._found.masked and isinstance(event, Op):
            x = self._names(event)[0]
            return (
                f"choose a harmless argument before the operation too, `torch.where(mask, {x}, 1.0)`: "
                "`where` behind it stops the value, not the gradient."
            )
        if node.custom is not None:
            return f"look at the `backward` of {node.custom} for a division by 0 or an overflow."
        if words is None:
            return f"{OVERFLOW.remedy}."
        return f"{self._filled(words.remedy, event if isinstance(event, Op) else None)}."

    def _filled(self, remedy: str, op: Op | None) -> str:
        x, y = self._names(op) if op is not None else ("...", "...")
        return remedy.format(x=x, y=y).replace("....", "(...).")

    def _names(self, op: Op) -> tuple[str, str]:
        """Returns what an operation's first two arguments are called where it stands, `...` at need."""
        names = []
        for place in range(2):
            read = op.inputs[place : place + 1]
            found = [n for use in read for n in self._facts.names.names_in(use.tensor, self._scope)]
            names.append(found[0] if found else "...")
        return names[0], names[1]


def _plain(name: str) -> str:
    """Returns an operation's name without the underscores of a special method."""
    return name.strip("_") or name
