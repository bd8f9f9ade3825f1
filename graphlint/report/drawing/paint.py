"""Writes a placed diagram as SVG: no scripts, no fonts of its own, a white ground, tooltips as `<title>`.

Imports `captions`, `diagram`, `layout`, `measure` and `palette`.
"""

from xml.sax.saxutils import escape, quoteattr

from graphlint.report.drawing.captions import caption
from graphlint.report.drawing.diagram import Box, Diagram, Edge, Frame
from graphlint.report.drawing.layout import Curve, Layout, Rect
from graphlint.report.drawing.measure import (
    CODE_SIZE,
    LEADING,
    LINE_SIZE,
    PADDING,
    TAG_WIDTH,
    TITLE_SIZE,
    text_width,
)
from graphlint.report.drawing.palette import (
    BLUE,
    DARK_VERMILION,
    FAINT,
    GREY,
    INK,
    MARKS,
    VERMILION,
    Look,
    look_of,
    tints,
)

SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN = 22.0
BESIDE = 1500.0
"""Up to this width the legend stands beside a tall drawing, else below."""


def svg(diagram: Diagram, layout: Layout) -> str:
    """Returns the text of the SVG file."""
    return _Painter(diagram, layout).paint()


class _Painter:
    """Writes one picture, piece by piece."""

    def __init__(self, diagram: Diagram, layout: Layout) -> None:
        self._diagram = diagram
        self._layout = layout
        self._tints = tints(diagram)
        self._out: list[str] = []

    def paint(self) -> str:
        """Returns the whole SVG."""
        head = self._head_height()
        legend = self._legend_rows()
        foot_width = self._text_extent(legend)
        foot_height = 18.0 * len(legend) + 26.0 + 16.0 * len(self._diagram.notes)
        drawing = self._layout
        beside = drawing.height > drawing.width and drawing.width + foot_width < BESIDE
        width = max(drawing.width + (foot_width + MARGIN if beside else 0), foot_width, self._head_extent())
        width += 2 * MARGIN
        body = max(drawing.height, foot_height) if beside else drawing.height + MARGIN + foot_height
        height = head + body + 2 * MARGIN
        extent = f'width="{width:.0f}" height="{height:.0f}"'
        self._out = [
            '<?xml version="1.0" encoding="UTF-8"?>',
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {extent} viewBox="0 0 {width:.0f} {height:.0f}" '
                f'role="img" font-family="{SANS}">'
            ),
            f"<title>{escape(self._diagram.title)}</title>",
            f'<rect {extent} fill="#ffffff"/>',
        ]
        self._head()
        self._drawing(MARGIN if beside else (width - drawing.width) / 2, head + MARGIN)
        if beside:
            self._foot(2 * MARGIN + drawing.width, head + MARGIN, legend)
        else:
            self._foot(MARGIN, head + drawing.height + 2 * MARGIN, legend)
        self._out.append("</svg>")
        return "\n".join(self._out) + "\n"

    def _drawing(self, left: float, top: float) -> None:
        self._out.append(f'<g transform="translate({left:.1f} {top:.1f})">')
        for frame in self._diagram.frames:
            self._frame(frame, self._layout.frames[frame.key])
        for edge, curve in zip(self._diagram.edges, self._layout.curves, strict=True):
            if curve is not None:
                self._edge(edge, curve)
        for frame in self._diagram.frames:
            self._frame_words(frame, self._layout.frames[frame.key])
        for box in self._diagram.boxes:
            self._box(box, self._layout.boxes[box.key])
        self._out.append("</g>")

    def _head_height(self) -> float:
        return 40.0 + 16.0 * len(self._diagram.subtitle)

    def _head_extent(self) -> float:
        widths = [text_width(self._diagram.title, 17, bold=True)]
        widths.extend(text_width(line, 11.5) for line in self._diagram.subtitle)
        return max(widths)

    def _text_extent(self, legend: list[tuple[str, str]]) -> float:
        widths = [text_width(line, 11.5) for line in self._diagram.notes]
        widths.extend(text_width(words, 11) + 52 for _, words in legend)
        return max(widths)

    def _head(self) -> None:
        self._text(MARGIN, 32, self._diagram.title, 17, weight="bold")
        for number, line in enumerate(self._diagram.subtitle):
            color = DARK_VERMILION if line.startswith("raised ") else GREY
            self._text(MARGIN, 50 + 16 * number, line, 11.5, color=color)

    def _frame(self, frame: Frame, rect: Rect) -> None:
        for offset in range(min(frame.times, 3) - 1, 0, -1):
            self._rect(rect, "#ffffff", FAINT, 1.0, shift=3.0 * offset, rx=6)
        repeated = frame.times > 1
        self._out.append("<g>")
        self._tip((frame.label, *frame.tooltip))
        self._rect(rect, "#ffffff", INK if repeated else FAINT, 1.6 if repeated else 1.0, rx=6)
        self._out.append("</g>")

    def _frame_words(self, frame: Frame, rect: Rect) -> None:
        color = INK if frame.times > 1 else GREY
        found = caption(frame, rect, [curve for curve in self._layout.curves if curve is not None])
        if not found.free:  # then an arrow passes behind the words
            self._rect(found.rect, "#ffffff", "#ffffff", 0)
        x, y = found.rect.x, rect.y + 14
        self._text(x, y, frame.label, LINE_SIZE, weight="bold", color=color, halo=True)
        for line in frame.says:
            y += LINE_SIZE * LEADING
            look = look_of(frame.marks)
            self._text(
                x,
                y,
                line,
                LINE_SIZE,
                weight="bold",
                color=look.ink if look is not None else INK,
                halo=True,
            )
        self._tags(frame.tags, rect)

    def _tags(self, tags: tuple[str, ...], rect: Rect) -> None:
        for number, tag in enumerate(tags):
            x = rect.x + rect.width - (TAG_WIDTH - 2) * (number + 1) - 2
            self._out.append(
                f'<rect x="{x:.1f}" y="{rect.y + 4:.1f}" width="{TAG_WIDTH - 5}" height="13" rx="3" '
                f'fill="{INK}"/>'
            )
            self._text(x + 3, rect.y + 14, tag, 9, weight="bold", color="#ffffff")

    def _box(self, box: Box, rect: Rect) -> None:
        look = look_of(box.marks)
        stripe = next((look for mark, look in MARKS if not look.width and mark in box.marks), None)
        fill = self._tints.get(box.device, "#ffffff")
        color, width, dashes = (look.color, look.width, look.dashes) if look else (GREY, 1.0, "")
        if box.kind == "loss" and look is None:
            color, width = INK, 2.0
        rx = {"loss": rect.height / 2, "input": 12.0, "cut": 12.0, "leaf": 12.0, "transfer": 0.0}.get(
            box.kind, 4.0
        )
        self._out.append("<g>")
        self._tip((box.title, *box.tooltip))
        if box.kind == "transfer":
            self._slanted(rect, fill, color if look else BLUE, width if look else 2.0, dashes)
        else:
            if box.kind == "call" and box.nodes > 1:
                self._rect(rect, fill, GREY, 0.8, shift=2.5, rx=rx)
            self._rect(rect, fill, color, width, dashes=dashes, rx=rx)
        if stripe is not None and box.kind != "transfer":
            self._out.append(
                f'<rect x="{rect.x + 2.5:.1f}" y="{rect.y + 5:.1f}" width="3" '
                f'height="{rect.height - 10:.1f}" fill="{stripe.color}"/>'
            )
        self._words(box, rect, look)
        self._tags(box.tags, rect)
        self._out.append("</g>")

    def _words(self, box: Box, rect: Rect, look: Look | None) -> None:
        x = rect.x + PADDING + 2
        y = rect.y + PADDING * 0.7 + TITLE_SIZE * 0.95
        faded = "not-executed" in box.marks
        self._text(x, y, box.title, TITLE_SIZE, weight="bold", color=GREY if faded else INK)
        for line in box.lines:
            y += LINE_SIZE * LEADING
            self._text(x, y, line, LINE_SIZE, color=GREY)
        if box.code:
            y += CODE_SIZE * LEADING
            self._text(x, y, box.code, CODE_SIZE, color=INK, mono=True)
        for line in box.says:
            y += LINE_SIZE * LEADING
            self._text(x, y, line, LINE_SIZE, weight="bold", color=look.ink if look is not None else INK)

    def _slanted(self, rect: Rect, fill: str, color: str, width: float, dashes: str) -> None:
        lean = 8.0
        points = (
            (rect.x + lean, rect.y),
            (rect.x + rect.width, rect.y),
            (rect.x + rect.width - lean, rect.y + rect.height),
            (rect.x, rect.y + rect.height),
        )
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._out.append(
            f'<polygon points="{text}" fill="{fill}" stroke="{color}" stroke-width="{width}"'
            + (f' stroke-dasharray="{dashes}"/>' if dashes else "/>")
        )

    def _edge(self, edge: Edge, curve: Curve) -> None:
        color, width, dashes = {
            "flow": (GREY, 1.2, ""),
            "input": (FAINT, 1.0, "2 3"),
            "cut": (VERMILION, 1.6, "7 4"),
            "crossing": (BLUE, 2.4, ""),
        }[edge.kind]
        start, *rest = curve.points
        path = f"M{start[0]:.1f} {start[1]:.1f}C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in rest)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._out.append(f'<g><path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>')
        if curve.tip is not None:
            self._arrow(rest[-1] if rest else start, curve.tip, color)
        self._tip(edge.tooltip)
        self._out.append("</g>")

    def _arrow(self, base: tuple[float, float], tip: tuple[float, float], color: str) -> None:
        dx, dy = tip[0] - base[0], tip[1] - base[1]
        length = (dx * dx + dy * dy) ** 0.5 or 1.0
        nx, ny = -dy / length * 3.2, dx / length * 3.2
        points = ((base[0] + nx, base[1] + ny), tip, (base[0] - nx, base[1] - ny))
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._out.append(f'<polygon points="{text}" fill="{color}"/>')

    def _legend_rows(self) -> list[tuple[str, str]]:
        """Returns the marks that occur, each with its words."""
        marks = {mark for box in self._diagram.boxes for mark in box.marks}
        rows: list[tuple[str, str]] = [(mark, look.words) for mark, look in MARKS if mark in marks]
        if any(edge.kind == "crossing" for edge in self._diagram.edges):
            rows.append(("crossing", "the value moves to another device, and its gradient moves back"))
        if any(frame.times > 1 for frame in self._diagram.frames):
            rows.append(("repeat", "the same structure several times: one of them is drawn"))
        if any(box.kind == "call" and box.nodes > 1 for box in self._diagram.boxes):
            rows.append(("closed", "a module call (or a stretch of lines) of several nodes, not opened"))
        if any(box.kind == "input" for box in self._diagram.boxes):
            rows.append(("input", "data: takes no gradient"))
        if any(box.tags for box in self._diagram.boxes) or any(frame.tags for frame in self._diagram.frames):
            rows.append(("tag", "a finding touches these lines; point at the box to read it"))
        rows.extend((f"device {device}", f"on {device}") for device in self._tints)
        rows.append(("arrow", "arrows follow the forward pass; the backward runs against them"))
        return rows

    def _foot(self, left: float, top: float, rows: list[tuple[str, str]]) -> None:
        y = top + 4
        for note in self._diagram.notes:
            self._text(left, y, note, 11.5, color=INK)
            y += 16
        self._text(left, y + 4, "Legend", 11.5, weight="bold")
        for number, (kind, words) in enumerate(rows):
            self._legend_row(left, y + 12 + 18 * number, kind, words)

    def _legend_row(self, x: float, y: float, kind: str, words: str) -> None:
        rect = Rect(x, y, 34, 12)
        looks: dict[str, Look] = dict(MARKS)
        if kind in looks:
            look = looks[kind]
            if look.width:
                self._rect(rect, "#ffffff", look.color, look.width, dashes=look.dashes, rx=3)
            else:
                self._rect(rect, "#ffffff", FAINT, 1, rx=3)
                self._rect(Rect(x + 2.5, y + 2, 3, 8), look.color, look.color, 0)
        elif kind == "crossing":
            self._line(x, y + 6, BLUE, 2.4, "")
        elif kind == "arrow":
            self._line(x, y + 6, GREY, 1.2, "")
        elif kind == "repeat":
            self._rect(rect, "#ffffff", FAINT, 1, shift=3, rx=3)
            self._rect(rect, "#ffffff", INK, 1.6, rx=3)
        elif kind == "closed":
            self._rect(rect, "#ffffff", GREY, 0.8, shift=2.5, rx=3)
            self._rect(rect, "#ffffff", GREY, 1, rx=3)
        elif kind == "input":
            self._rect(rect, "#ffffff", GREY, 1, rx=6)
        elif kind == "tag":
            self._tags(("GL…",), Rect(x - 2, y - 4, TAG_WIDTH, 12))
        else:
            self._rect(rect, self._tints[kind.removeprefix("device ")], GREY, 1, rx=3)
        self._text(x + 46, y + 10, words, 11, color=INK)

    def _line(self, x: float, y: float, color: str, width: float, dashes: str) -> None:
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._out.append(f'<path d="M{x:.1f} {y:.1f}h28" stroke="{color}" stroke-width="{width}"{dash}/>')
        self._arrow((x + 27, y), (x + 34, y), color)

    def _rect(
        self,
        rect: Rect,
        fill: str,
        stroke: str,
        width: float,
        *,
        dashes: str = "",
        rx: float = 0.0,
        shift: float = 0.0,
    ) -> None:
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._out.append(
            f'<rect x="{rect.x + shift:.1f}" y="{rect.y + shift:.1f}" width="{rect.width:.1f}" '
            f'height="{rect.height:.1f}" rx="{rx:.1f}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{width}"{dash}/>'
        )

    def _tip(self, lines: tuple[str, ...]) -> None:
        if lines:
            self._out.append(f"<title>{escape(chr(10).join(lines))}</title>")

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        color: str = INK,
        weight: str = "normal",
        mono: bool = False,
        halo: bool = False,
    ) -> None:
        family = f" font-family={quoteattr(MONO)}" if mono else ""
        bold = f' font-weight="{weight}"' if weight != "normal" else ""
        place = f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{bold}{family} xml:space="preserve"'
        words = f">{escape(_printable(text))}</text>"
        if halo:  # an element of its own: not every viewer knows the paint-order of a single one
            self._out.append(
                f'{place} fill="#ffffff" stroke="#ffffff" stroke-width="3" aria-hidden="true"{words}'
            )
        self._out.append(f'{place} fill="{color}"{words}')


def _printable(text: str) -> str:
    """Returns text without the control characters that XML forbids."""
    return "".join(char if char.isprintable() else " " for char in text)
