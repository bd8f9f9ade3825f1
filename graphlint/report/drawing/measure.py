"""How much room text takes, measured here so that a picture doesn't depend on the program that placed it.

Widths are DejaVu Sans's, the widest of the fonts that a viewer may pick: text is never cut off. Imports
`diagram` only.
"""

import unicodedata

from graphlint.report.drawing.diagram import Box, Frame

TITLE_SIZE = 12.0
LINE_SIZE = 10.5
CODE_SIZE = 10.0
LEADING = 1.3
PADDING = 9.0
TAG_WIDTH = 44.0

_BOLD = 1.12
_FIXED = 0.61
_FULL = 1.05
_OTHER = 0.85
# Hundredths of the font size, from the blank to the tilde.
_WIDTHS = (
    *(32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64),
    *(64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79),
    *(60, 79, 69, 63, 61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63),
    *(63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59, 52, 64, 34, 64, 84),
)


def text_width(text: str, size: float, *, fixed: bool = False, bold: bool = False) -> float:
    """Returns how wide a line of text is in points at most."""
    total = 0.0
    for char in text:
        place = ord(char) - ord(" ")
        if unicodedata.east_asian_width(char) in "WF":
            total += _FULL
        elif fixed:
            total += _FIXED
        elif 0 <= place < len(_WIDTHS):
            total += _WIDTHS[place] / 100
        elif char == "·":
            total += 0.32
        else:
            total += _OTHER
    return total * size * (_BOLD if bold else 1.0)


def box_size(box: Box) -> tuple[float, float]:
    """Returns the width and height that a box needs for its text."""
    widths = [text_width(box.title, TITLE_SIZE, bold=True) + TAG_WIDTH * len(box.tags)]
    widths.extend(text_width(line, LINE_SIZE) for line in box.lines)
    widths.extend(text_width(line, LINE_SIZE, bold=True) for line in box.says)
    height = TITLE_SIZE * LEADING + (len(box.lines) + len(box.says)) * LINE_SIZE * LEADING
    if box.code:
        widths.append(text_width(box.code, CODE_SIZE, fixed=True))
        height += CODE_SIZE * LEADING
    return max(widths) + 2 * PADDING + 4, height + PADDING * 1.4


def frame_label_width(frame: Frame) -> float:
    """Returns the width of a frame's words, its tags included."""
    widths = [text_width(frame.label, LINE_SIZE, bold=True) + TAG_WIDTH * len(frame.tags)]
    widths.extend(text_width(line, LINE_SIZE, bold=True) for line in frame.says)
    return max(widths) + 16
