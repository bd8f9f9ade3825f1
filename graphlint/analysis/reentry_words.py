"""What to do about a graph that is entered twice, in words; worked out from the record.

May import `record` and the rest of `analysis`. Shared by the rules whose fault it is.
"""

from typing import TYPE_CHECKING

from graphlint.analysis.carried_words import CarriedWords
from graphlint.analysis.cut_words import CutWords
from graphlint.analysis.reentry import Built, Reentry
from graphlint.analysis.wording import listed, place
from graphlint.record.events import Backward, OptimizerStep
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

if TYPE_CHECKING:
    from graphlint.analysis.facts import Facts


class ReentryWords:
    """Words the remedy for one reuse, for a reader who stands at `frame`."""

    def __init__(self, facts: "Facts", case: Reentry, frame: Frame) -> None:
        self._facts = facts
        self._case = case
        self._frame = frame
        self._call = facts.wording.backward(case.backward)
        self._loss = facts.wording.loss(case.backward)

    def remedy(self) -> str:
        """Returns what would mend this script, as a sentence."""
        match self._case.kind:
            case "same-loss":
                return self._mend_same_loss()
            case "carried":
                return self._mend_carried()
            case "kept":
                return self._mend_kept()
            case "shared":
                return self._mend_shared()

    def _mend_same_loss(self) -> str:
        earlier = self._case.earlier
        at = self._facts.graphs.frame(earlier.site) if earlier is not None else None
        if at is not None and (at.path, at.line) != (self._frame.path, self._frame.line):
            return (
                f"call backward once on this loss: drop either the call at {place(at, near=self._frame)} or "
                f"the one at line {self._frame.line}."
            )
        return f"{self._anew()} before each call of {self._call}."

    def _anew(self) -> str:
        """Returns "compute `loss` anew (lines 18 to 20)"."""
        lines = sorted(
            {built.frame.line for built in self._case.lines if built.frame.path == self._frame.path}
        )
        if not lines:
            return f"compute {self._loss} anew"
        where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
        return f"compute {self._loss} anew ({where})"

    def _mend_carried(self) -> str:
        told = CarriedWords(self._facts, self._case, self._frame).remedy()
        if self._case.steps_between:
            return f"{told}."
        return f"{told}; or add up the losses of all passes and call backward once."

    def _what(self, built: Built) -> str:
        """Returns the words for the tensor that a line made: its name, or what the line assigns to."""
        where = place(built.inner, near=self._frame)
        names = [self._facts.names.tensor_name(tensor, built.inner.function) for tensor in built.tensors]
        named = [f"`{name}`" for name in dict.fromkeys(names) if name is not None]
        statement = self._facts.sources.statement(built.inner.path, built.inner.line)
        if statement is not None and all("[" in name for name in named):
            # An item of a container is no name that the line itself shows.
            named = [f"`{target}`" for target in statement.targets] or named
        return f"{listed(named)} ({where})" if named else f"what {where} makes"

    def _mend_kept(self) -> str:
        built = self._case.entrances[0] if self._case.entrances else None
        if built is None:
            return f"{self._anew()} in each step."
        what = self._what(built)
        if self._case.handed_on:
            where = place(self._case.handed_on[0].inner, near=self._frame)
            return f"detach what {where} hands on, so that each pass has a graph of its own."
        if self._case.trained_by_earlier(self._case.leaves) is False:
            held = self._facts.wording.owners(sorted(self._case.leaves))
            steppers = listed([self._facts.wording.step(step) for step in self._case.users])
            return f"detach {what}: {steppers} doesn't train {held}, which lies behind it."
        again = f"compute {what} again in each step instead of keeping it"
        if self._case.trained_by_earlier(self._case.leaves):
            return f"{again}, as what it depends on is being trained; or detach it if it is to stay as it is."
        return f"{again}, or detach it if it is to stay as it is."

    def _mend_shared(self) -> str:
        earlier = self._case.earlier
        if self._case.whole and earlier is not None:
            return self._mend_contained(earlier)
        if not self._case.steps_between and earlier is not None:
            return self._mend_without_step(earlier)
        if not self._case.entrances:
            return (
                f"build {self._loss} from a forward pass of its own. The line that built the shared part was "
                f"not recorded; level full records every step."
            )
        calls = self._calls(self._case.entrances)
        where = self._after()
        if not self._case.behind:
            again = f"call {calls} again {where} and build {self._loss} from that.{self._uncut()}"
            return self._detached_on_entry(earlier) or again
        if (
            self._case.trained_by_earlier(self._case.leaves_behind) is False
            and self._case.earlier is not None
        ):
            first = self._facts.wording.loss(self._case.earlier)
            held = self._facts.wording.owners(sorted(self._case.leaves_behind))
            return (
                f"build {first} from {self._detached()}, as it isn't there to train {held}; then call "
                f"{calls} again {where}, not detached, and build {self._loss} from that."
            )
        lines = sorted({built.frame.line for built in self._case.behind})
        also = listed([str(line) for line in lines], limit=6)
        word, those = ("line", "that") if len(lines) == 1 else ("lines", "those")
        return (
            f"call {calls} again {where} and build {self._loss} from that; its input comes from {word} "
            f"{also}, whose graph was freed as well, so run {those} again before it."
        )

    def _detached_on_entry(self, earlier: Backward | None) -> str | None:
        """Returns the remedy where the earlier loss did not need a gradient through what both share."""
        entry = self.entry()
        return self._detach_at(entry, earlier) if entry is not None and earlier is not None else None

    def entry(self) -> tuple[Frame, TensorId] | None:
        """Returns the line by which the earlier loss takes in what both share, and the tensor.

        None unless it had no need to: an optimizer used the earlier backward and trains nothing of what is
        shared, and what this loss builds upon it is its own.
        """
        earlier = self._case.earlier
        graph = self._facts.graphs.of(earlier) if earlier is not None else None
        if earlier is None or graph is None or not self._case.entered or self._case.kind != "shared":
            return None
        if self._case.whole or self._case.behind or not self._case.steps_between:
            return None
        if self._case.trained_by_earlier(self._case.leaves) is not False:
            return None
        shared = {self._case.graph.nodes[node].id for node in self._case.nodes}
        tensors = {one.tensor for one in self._case.entered}
        found: set[tuple[Frame, TensorId]] = set()
        for source, target in graph.graph.edges:
            if graph.nodes[target].id not in shared or graph.nodes[source].id in shared:
                continue
            taker = self._facts.graphs.event(graph.nodes[source])
            frame = self._facts.graphs.common_frame(graph.nodes[source].site, earlier.site)
            taken = {use.tensor for use in self._facts.values.sources(taker)} if taker is not None else set()
            if frame is None or taken.isdisjoint(tensors):
                return None
            found.update((frame, tensor) for tensor in taken & tensors)
        return found.pop() if len(found) == 1 else None

    def earlier_loss(self) -> str:
        """Returns the words for the loss of the earlier backward."""
        earlier = self._case.earlier
        return self._losses(earlier)[0] if earlier is not None else "the earlier loss"

    def _detach_at(self, entry: tuple[Frame, TensorId], earlier: Backward) -> str | None:
        frame, tensor = entry
        names = self._facts.names.names_in(tensor, frame.function)
        if not names:
            return None
        held = self._facts.wording.owners(sorted(self._case.leaves))
        first, second = self._losses(earlier)
        return (
            f"build {first} from `{names[0]}.detach()` at {place(frame, near=self._frame)}, as it isn't "
            f"there to train {held}; {second} can then go through {held} as it does."
        )

    def _losses(self, earlier: Backward) -> tuple[str, str]:
        """Returns both losses; with the lines of their backwards where two go by one name."""
        first = self._facts.wording.loss(earlier)
        if first != self._loss:
            return first, self._loss
        at, here = self._facts.graphs.frame(earlier.site), self._frame
        before = f"the {first} of {place(at, near=here)}" if at is not None else f"the earlier {first}"
        return before, f"the {self._loss} of {place(here, near=here)}"

    def _mend_contained(self, earlier: Backward) -> str:
        """Returns the remedy for a loss that is a part of the one differentiated before."""
        loss = self._facts.wording.loss(earlier)
        if not self._case.steps_between:
            return (
                f"drop {self._call}: {self._loss} is part of {loss}, whose backward has counted it already."
            )
        return f"{self._anew()} {self._after()}: this one is part of {loss}."

    def _mend_without_step(self, earlier: Backward) -> str:
        first = self._facts.wording.backward(earlier)
        at = self._facts.wording.at(earlier.site, near=self._frame)
        unchanged = "nothing that the graph needs is changed between the two calls"
        kept = self._case.needs_known and not self._case.blockers
        if "autograd.grad" in {earlier.call, self._case.backward.call}:
            if kept:
                return f"pass retain_graph=True to {first}{at}: {unchanged}."
            return f"build {self._loss} anew after {first}{at}."
        loss = self._facts.wording.loss(earlier)
        both = f"{loss} and {self._loss}" if loss != self._loss else "the two losses"
        retaining = f" retain_graph=True in the first call would do as well: {unchanged}." if kept else ""
        return f"add {both} and call backward once: no optimizer steps in between.{retaining}"

    def _uncut(self) -> str:
        """Returns what else is needed where the loss could not have reached what it was there for."""
        for missed in self._facts.reach.doomed(self._case.backward):
            owners = self._facts.wording.owners(missed.parameters)
            words = CutWords(self._facts, self._case.backward.site)
            cuts = missed.connection.cuts if missed.connection is not None else ()
            for cut in words.distinct(cuts, 1):
                for found in words.places(cut)[:1]:
                    where = place(found.frame, near=self._frame)
                    return f" Without the cut at {where} this time, or {owners} gets no gradient from it."
        return ""

    def _calls(self, entrances: tuple[Built, ...]) -> str:
        spelled = []
        for built in entrances:
            quoted = self._facts.wording.call_at(built.frame)
            spelled.append(quoted or f"what {place(built.frame, near=self._frame)} does")
        return listed(spelled)

    def _detached(self) -> str:
        scope = self._frame.function
        names = [self._facts.names.tensor_name(tensor, scope) for tensor in self._case.handed_over]
        named = [f"`{name}.detach()`" for name in dict.fromkeys(names) if name is not None]
        return listed(named) if named else "a detached input"

    def _after(self) -> str:
        """Returns "after line 66": the last step between, or else the backward that freed the graph."""
        last = self._case.steps_between[-1] if self._case.steps_between else self._case.earlier
        site = last.site if last is not None else None
        frame = self._facts.graphs.common_frame(site, self._case.backward.site)
        return f"after {place(frame, near=self._frame)}" if frame is not None else "before it"

    def retaining(self) -> str:
        """Returns whether retain_graph=True would have helped, as far as the record proves it."""
        if self._case.earlier is None or not self._case.needs_known:
            return ""
        if self._case.blockers:
            blocker = self._case.blockers[0]
            event = blocker.event
            at = self._facts.wording.at(event.site, near=self._frame)
            call = (
                self._facts.wording.step(event)
                if isinstance(event, OptimizerStep)
                else (self._facts.wording.call_of(event.site) or "a write")
            )
            return (
                f"retain_graph=True would not help: {call}{at} changes "
                f"{self._facts.names.tensor(blocker.tensor)} in place, which the retained graph needs."
            )
        for later in self._case.later_blockers[:1]:
            at = self._facts.wording.at(later.event.site, near=self._frame)
            call = (
                self._facts.wording.step(later.event) if isinstance(later.event, OptimizerStep) else "a write"
            )
            return (
                f"retain_graph=True would not help: the next pass would raise, as {call}{at} changes "
                f"{self._facts.names.tensor(later.tensor)} in place, which this pass's graph needs."
            )
        return ""
