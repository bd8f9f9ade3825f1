"""Labels from the frames of a record; may import `record` and `lint.finding`."""

from collections.abc import Iterable

from graphlint.lint.finding import Label
from graphlint.record.tables import Frame


def label(frame: Frame, text: str) -> Label:
    """Returns a label on the line of a frame."""
    return Label(path=frame.path, line=frame.line, text=text)


def distinct(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Returns the labels without those on a line that an earlier one marks already."""
    kept: dict[tuple[str, int], Label] = {}
    for found in labels:
        kept.setdefault((found.path, found.line), found)
    return tuple(kept.values())
