"""Blocks in which the user declares faults as meant; may import `record.identity` and `record.base` only."""

from graphlint.record.base import Event
from graphlint.record.identity import Serial


class ExpectBegin(Event, frozen=True, kw_only=True, tag="expect-begin"):
    """A `graphlint.expect(...)` block begins: faults of these `rules` are meant in it, for this `reason`.

    `rules` are as the user named them, unchecked. A block without an end lasts as long as the record.
    """

    rules: tuple[str, ...]
    reason: str = ""


class ExpectEnd(Event, frozen=True, kw_only=True, tag="expect-end"):
    """The end of the `graphlint.expect(...)` block that the event `begin` began."""

    begin: Serial
