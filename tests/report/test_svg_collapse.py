"""How large and repeating graphs are made to fit a screen without losing a node."""

import pytest
import torch
from torch import nn

from graphlint.analysis.facts import Facts
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.report.drawing.collapse import BOXES, children, opened
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.structure import Group, Repeat, Run, nodes_of
from graphlint.report.drawing.subjects import subjects
from graphlint.report.drawing.wording import TIMES

LAYERS = 12
MOST_BOXES = 200


def diagram_of(make_loss, boxes=BOXES[0]):
    with Session(CaptureOptions(level="full")) as session:
        loss = make_loss()
        loss.backward()
    composer = Composer(Facts(session.trace()), ())
    (subject,) = subjects(composer.facts, composer.words)
    return composer.diagram(subject, boxes), subject.graph


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return model(nn.Embedding(5, 8)(torch.ones(2, 3, dtype=torch.long))).mean()


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.downs = nn.ModuleList(map(self.block, (4, 4, 4, 4)))
        self.ups = nn.ModuleList(map(self.block, (8, 8, 8, 8)))

    @staticmethod
    def block(width):
        return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        for up in self.ups:
            x = up(torch.cat([x, skips.pop()], 1))
        return x


def heads(width=4):
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh()) for _ in range(width)
    )
    x = torch.relu(nn.Linear(4, 4)(torch.randn(2, 4)))
    return torch.cat([head(x) for head in model], 1).mean()


def test_twelve_equal_layers_are_drawn_as_one():
    diagram, _ = diagram_of(transformer)
    (repeat,) = [frame for frame in diagram.frames if frame.times > 1]
    assert repeat.times == LAYERS
    assert f"TransformerEncoderLayer {TIMES} {LAYERS}" in repeat.label
    assert "layers.0 … layers.11, each feeds the next" in repeat.label
    assert len(diagram.boxes) < BOXES[0]
    assert [box.title for box in diagram.boxes if box.title.startswith("linear1")] == ["linear1 · Linear"]


def test_no_arrow_leads_from_one_layer_to_the_next():
    diagram, _ = diagram_of(transformer)
    order = [box.key for box in diagram.boxes]
    backwards = [
        edge
        for edge in diagram.edges
        if edge.tail in order[:-1]
        and edge.head in order[:-1]
        and order.index(edge.tail) > order.index(edge.head)
    ]
    assert backwards == []


def test_layers_that_differ_in_one_mark_are_not_taken_for_equal():
    def frozen_start():
        layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh()) for _ in range(6)]
        layers[2][0].bias.requires_grad_(requires_grad=False)
        return nn.Sequential(*layers)(torch.randn(2, 4)).mean()

    diagram, _ = diagram_of(frozen_start)
    apart = {frame.label for frame in diagram.frames if frame.parent and frame.times == 1}
    assert apart == {f"layers[{number}] · Sequential" for number in range(3)}
    assert [frame.times for frame in diagram.frames if frame.times > 1] == [3]


def test_layers_with_skips_to_different_places_are_drawn_apart():
    def make_loss():
        unet = Unet()
        return unet(torch.randn(2, 4)).mean()

    diagram, _ = diagram_of(make_loss)
    assert [frame for frame in diagram.frames if frame.times > 1] == []
    names = [part.title for part in diagram.boxes] + [frame.label for frame in diagram.frames]
    assert sum(name.startswith("downs.") for name in names) == 4
    cats = [box.key for box in diagram.boxes if box.title == "CatBackward0"]
    assert sum(edge.head in cats for edge in diagram.edges) == 7  # the first cat takes one tensor twice


def test_equal_heads_side_by_side_are_drawn_as_one():
    diagram, _ = diagram_of(heads)
    (repeat,) = [frame for frame in diagram.frames if frame.times > 1]
    assert repeat.times == 4
    assert repeat.label.endswith("side by side")


def test_two_short_lines_are_not_worth_folding():
    def make_loss():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        return model(torch.randn(2, 4)).mean()

    diagram, _ = diagram_of(make_loss)
    assert [frame.times for frame in diagram.frames] == [1]
    assert sum(box.title.endswith("Linear") for box in diagram.boxes) == 3


def straight_line(count):
    weight = torch.ones(2, requires_grad=True)
    value = weight
    for number in range(count):
        value = value.sin() if number % 7 else value * (number + 1.0)
        if number % 5 == 0:
            value = value.exp()
    return value.sum()


@pytest.mark.parametrize("boxes", BOXES)
def test_no_node_is_lost_whatever_the_number_of_boxes(boxes):
    def make_loss():
        first = nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))
        x = first(torch.randn(2, 4))
        y = x.sin() * x.cos() + straight_line(30)
        return nn.functional.mse_loss(y, x)

    diagram, graph = diagram_of(make_loss, boxes)
    times = {frame.key: frame.times for frame in diagram.frames}
    parents = {frame.key: frame.parent for frame in diagram.frames}

    def factor(key):
        return times[key] * factor(parents[key]) if key else 1

    inner = sum(node.leaf is None for node in graph.nodes)
    assert sum(box.nodes * factor(box.frame) for box in diagram.boxes) == inner


def test_a_long_straight_line_stays_within_a_screen_of_boxes():
    diagram, graph = diagram_of(lambda: straight_line(1500))
    assert len(graph.nodes) > 1500
    assert len(diagram.boxes) <= MOST_BOXES


def test_boxes_are_opened_up_to_the_budget_largest_first():
    small = Group((Run((0,)), Run((1,))))
    large = Group((Run((2, 3)), Run((4,)), Run((5,))))
    assert opened((small, large), 4, lambda _: False) == {(1,)}
    assert opened((small, large), 5, lambda _: False) == {(0,), (1,)}
    assert opened((small, large), 3, lambda item: item is small) == {(0,)}


def test_a_repeat_of_one_call_opens_to_what_is_in_the_call():
    body = Group((Run((0,)), Run((1,))))
    other = Group((Run((2,)), Run((3,))))
    repeat = Repeat(((body,), (other,)), chained=True)
    assert children(repeat) == body.items
    assert list(nodes_of((repeat,))) == [0, 1, 2, 3]
