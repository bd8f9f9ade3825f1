"""Finds room for the words at the top of a frame, so that no arrow runs through them.

Imports `layout` and `measure`.
"""

from collections.abc import Iterator, Sequence

import msgspec

from graphlint.report.drawing.diagram import Frame
from graphlint.report.drawing.layout import Curve, Rect
from graphlint.report.drawing.measure import LEADING, LINE_SIZE, TAG_WIDTH, text_width

INDENT, CLEARANCE = 8.0, 8.0
_SAMPLES = 16


class Caption(msgspec.Struct, frozen=True):
    """Where the words of a frame lie; `free` tells that no arrow crosses them."""

    rect: Rect
    free: bool


def caption(frame: Frame, rect: Rect, curves: Sequence[Curve]) -> Caption:
    """Returns the leftmost place for the words that no arrow crosses, or the left end where there is none."""
    lines = (frame.label, *frame.says)
    width = max(text_width(line, LINE_SIZE, bold=True) for line in lines)
    place = Rect(rect.x + INDENT, rect.y + 2, width, len(lines) * LINE_SIZE * LEADING + 2)
    right = rect.x + rect.width - INDENT - (TAG_WIDTH - 2) * len(frame.tags)
    crossing = sorted(
        x
        for curve in curves
        for x, y in _points(curve)
        if place.y <= y <= place.y + place.height and rect.x <= x <= rect.x + rect.width
    )
    for left in (place.x, *(x + CLEARANCE for x in crossing)):
        if left < place.x or (left > place.x and left + width > right):
            continue
        if not any(left - CLEARANCE < x < left + width + CLEARANCE for x in crossing):
            return Caption(Rect(left, place.y, width, place.height), free=True)
    return Caption(place, free=not crossing)


def _points(curve: Curve) -> Iterator[tuple[float, float]]:
    """Yields points along a curve, dense enough that none lies further from the next than a letter."""
    points = curve.points
    for at in range(0, len(points) - 3, 3):
        a, b, c, d = points[at : at + 4]
        steps = _SAMPLES + int(abs(d[1] - a[1]) / 2)
        for step in range(steps + 1):
            t = step / steps
            s = 1 - t
            weights = (s**3, 3 * s * s * t, 3 * s * t * t, t**3)
            yield (
                sum(weight * point[0] for weight, point in zip(weights, (a, b, c, d), strict=True)),
                sum(weight * point[1] for weight, point in zip(weights, (a, b, c, d), strict=True)),
            )
    if curve.tip is not None:
        yield curve.tip
