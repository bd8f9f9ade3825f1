"""The words at the top of a frame lie where no arrow runs through them."""

from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

from graphlint.analysis.facts import Facts
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.report.drawing.captions import caption
from graphlint.report.drawing.collapse import BOXES
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.diagram import Frame
from graphlint.report.drawing.layout import Curve, Rect, find_program, place
from graphlint.report.drawing.measure import LINE_SIZE, text_width
from graphlint.report.drawing.paint import svg
from graphlint.report.drawing.subjects import subjects

WORDS = "freed by line 128, entered again here"
WIDTH = text_width(WORDS, LINE_SIZE, bold=True)
FRAME = Frame(key="f", parent="", label="generator", says=(WORDS,))
RECT = Rect(100.0, 50.0, WIDTH + 120.0, 300.0)


def down(x, upto=90.0):
    points = tuple((x, 20.0 + (upto - 20.0) * third / 3) for third in range(4))
    return Curve(points, (x, upto))


def across(found, x):
    return found.rect.x <= x <= found.rect.x + found.rect.width


def test_without_an_arrow_the_words_begin_at_the_left():
    found = caption(FRAME, RECT, [down(RECT.x - 5), down(RECT.x + 60, upto=45.0)])
    assert (found.rect.x, found.free) == (RECT.x + 8, True)


def test_an_arrow_near_the_left_moves_them_to_its_right():
    found = caption(FRAME, RECT, [down(RECT.x + 40)])
    assert found.free
    assert found.rect.x > RECT.x + 40
    assert found.rect.x + WIDTH < RECT.x + RECT.width


def test_an_arrow_near_the_right_leaves_them_where_they_are():
    found = caption(FRAME, RECT, [down(RECT.x + RECT.width - 20)])
    assert (found.rect.x, found.free) == (RECT.x + 8, True)


def test_the_codes_at_the_right_keep_their_room():
    tagged = Frame(key="f", parent="", label="generator", says=(WORDS,), tags=("GL101", "GL105"))
    assert not caption(tagged, RECT, [down(RECT.x + 60)]).free


def test_where_there_is_no_room_the_arrow_is_known_to_cross():
    found = caption(FRAME, RECT, [down(RECT.x + RECT.width / 2)])
    assert not found.free
    assert across(found, RECT.x + RECT.width / 2)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(8, 1)

    def forward(self, text, noise):
        return self.second(torch.cat([torch.relu(self.first(text)), noise], dim=1))


def test_data_that_enters_a_frame_leaves_its_words_alone():
    with Session(CaptureOptions(level="full")) as session:
        generator, text, noise = Inner(), torch.ones(2, 4), torch.ones(2, 4)
        loss = generator(text, noise).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    composer = Composer(Facts(session.trace()), ())
    _, subject = subjects(composer.facts, composer.words)
    diagram = composer.diagram(subject, BOXES[0])
    layout = place(diagram, find_program(), 60.0)
    assert [edge.kind for edge in diagram.edges].count("input") == 2
    assert any("entered again here" in line for frame in diagram.frames for line in frame.says)
    curves = [curve for curve in layout.curves if curve is not None]
    assert all(caption(frame, layout.frames[frame.key], curves).free for frame in diagram.frames)


def test_words_are_legible_where_the_order_of_painting_is_not_known():
    with Session(CaptureOptions(level="full")) as session:
        generator = Inner()
        generator(torch.ones(2, 4), torch.ones(2, 4)).sum().backward()
    composer = Composer(Facts(session.trace()), ())
    (subject,) = subjects(composer.facts, composer.words)
    diagram = composer.diagram(subject, BOXES[0])
    drawn = svg(diagram, place(diagram, find_program(), 60.0))
    assert "paint-order" not in drawn
    root = ET.fromstring(drawn)  # noqa: S314 - our own output
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert diagram.frames
    for frame in diagram.frames:
        haloes = [element.get("stroke") for element in texts if element.text == frame.label]
        assert haloes[:2] == ["#ffffff", None]  # the words come last, so that they lie on top
