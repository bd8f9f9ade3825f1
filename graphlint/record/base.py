"""The base of every event; may import `record.identity` and `record.tables` only."""

from graphlint.record.identity import Serial, SiteId
from graphlint.record.tables import Row


class Event(Row, frozen=True, kw_only=True):
    """Base of every event."""

    serial: Serial
    site: SiteId | None = None
