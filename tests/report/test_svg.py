"""What the pictures of real backwards show: one file each, marks, devices, cuts, tooltips, legend."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

from graphlint.analysis.facts import Facts
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.lint.rule import Report
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.codec import save
from graphlint.report.drawing.collapse import BOXES
from graphlint.report.drawing.compose import Composer
from graphlint.report.drawing.subjects import subjects
from graphlint.report.svg import draw

SVG = "{http://www.w3.org/2000/svg}"
NOTHING = Report(findings=(), outcomes=(), tracebacks={})
FREED_BEFORE = "already freed by an earlier backward"


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, noise):
        return torch.tanh(self.net(noise))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, images):
        return torch.sigmoid(self.out(nn.functional.leaky_relu(self.hidden(images))))


def record(train, **options):
    with Session(CaptureOptions(level="full", **options)) as session:
        train(session)
    return session.trace()


def split_gan(session):
    generator = Generator().to("cuda")
    discriminator = Discriminator()
    criterion = nn.BCELoss()
    noise = torch.randn(2, 4, device="cuda")
    real_images = torch.randn(2, 6)
    fake_images = generator(noise)
    fake_images = fake_images.to("cpu")
    real_loss = criterion(discriminator(real_images), torch.ones(2, 1))
    fake_predictions = discriminator(fake_images)
    fake_loss = criterion(fake_predictions, torch.zeros(2, 1))
    discriminator_loss = real_loss + fake_loss
    discriminator_loss.backward()
    generator_loss = criterion(fake_predictions, torch.ones(2, 1))
    with pytest.raises(RuntimeError):
        generator_loss.backward()


@pytest.fixture(scope="module")
def gan():
    trace = record(split_gan, simulate=("cuda",))
    return trace, judge(trace, Selection())


@pytest.fixture(scope="module")
def gan_pictures(gan, tmp_path_factory):
    return draw(*gan, tmp_path_factory.mktemp("graphs"))


def diagrams(trace, report=NOTHING, boxes=BOXES[0]):
    composer = Composer(Facts(trace), report.findings)
    return [composer.diagram(each, boxes) for each in subjects(composer.facts, composer.words)]


def parsed(path):
    return ET.fromstring(path.read_bytes())  # noqa: S314 - a file that was written here


def words_of(path):
    return [text.text or "" for text in parsed(path).iter(f"{SVG}text")]


def tips_of(path):
    return [title.text or "" for title in parsed(path).iter(f"{SVG}title")]


def marked(diagram, mark):
    return {box.title for box in diagram.boxes if mark in box.marks}


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


def test_each_distinct_backward_is_one_file_named_after_it(gan_pictures):
    first, second = line_of("discriminator_loss.backward()"), line_of("generator_loss.backward()")
    assert [path.name for path in gan_pictures] == [
        f"step0-1-discriminator_loss.backward-L{first}.svg",
        f"step0-2-generator_loss.backward-L{second}.svg",
    ]


def test_the_index_lists_every_picture(gan_pictures):
    index = (gan_pictures[0].parent / "index.txt").read_text(encoding="utf-8")
    assert [line for line in index.splitlines() if line.endswith(".svg")] == [
        path.name for path in gan_pictures
    ]


def test_a_picture_holds_no_script_and_loads_nothing(gan_pictures):
    for path in gan_pictures:
        tree = parsed(path)
        assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
            *("svg", "g", "rect", "path", "polygon", "text", "title"),
        }
        assert not [name for element in tree.iter() for name in element.attrib if "href" in name]
        assert tree.find(f"{SVG}rect").get("fill") == "#ffffff"


def test_a_picture_is_the_same_every_time(gan, gan_pictures, tmp_path):
    again = draw(*gan, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in gan_pictures]


def frame_titles(diagram, mark, *, present=True):
    """The frames and lone boxes whose boxes have a mark, or have it not."""
    labels = {frame.key: frame for frame in diagram.frames}

    def outermost(key):
        while labels[key].parent:
            key = labels[key].parent
        return labels[key].label

    return {
        outermost(box.frame) if box.frame else box.title
        for box in diagram.boxes
        if box.nodes and (mark in box.marks) is present
    }


def test_the_freed_part_is_marked_where_it_is_entered_again(gan):
    _, second = diagrams(*gan)
    titles = " ".join(frame_titles(second, "reentered"))
    assert "generator · Generator" in titles
    assert "discriminator · Discriminator" in titles
    assert "cuda:0 → cpu" in titles
    assert frame_titles(second, "reentered", present=False) == {"criterion · BCELoss"}
    line = line_of("discriminator_loss.backward()")
    said = {said for part in (*second.frames, *second.boxes) for said in part.says}
    assert said == {f"freed by line {line}, entered again here"}


def test_the_freed_part_is_marked_where_it_was_freed(gan):
    first, _ = diagrams(*gan)
    unmarked = " ".join(frame_titles(first, "freed-later", present=False))
    assert "discriminator · Discriminator · call 1 of 2" in unmarked
    assert "discriminator · Discriminator · call 2 of 2" not in unmarked
    assert "generator" not in unmarked
    line = line_of("generator_loss.backward()")
    said = {said for part in (*first.frames, *first.boxes) for said in part.says}
    assert f"freed here, entered again by line {line}" in said


def test_a_crossing_shows_both_devices_and_the_bytes(gan):
    first, _ = diagrams(*gan)
    (transfer,) = [box for box in first.boxes if box.kind == "transfer"]
    assert (transfer.title, transfer.lines) == ("cuda:0 → cpu", ("48 bytes",))
    assert sorted(transfer.key == edge.head for edge in first.edges if edge.kind == "crossing") == [
        False,
        True,
    ]


def test_simulated_devices_colour_the_nodes(gan):
    first, _ = diagrams(*gan)
    inside = {frame.key: frame.label.partition(" ")[0] for frame in first.frames}
    devices = {
        (inside[box.frame], box.device)
        for box in first.boxes
        if box.frame and not inside[box.frame][0].isdigit()
    }
    assert ("generator", "cuda:0") in devices
    assert ("generator", "cpu") not in devices
    assert ("discriminator", "cuda:0") not in devices


def test_tooltips_give_the_source_line_and_the_finding(gan, gan_pictures):
    _, report = gan
    (finding,) = [found for found in report.findings if found.code == "GL101"]
    text = "fake_predictions = discriminator(fake_images)"
    tips = [tip for tip in tips_of(gan_pictures[1]) if f":{line_of(text)}: {text}" in tip]
    assert tips
    assert all(f"GL101 freed-graph-reuse: {finding.message}" in tip for tip in tips)


def test_a_box_of_lines_with_a_finding_bears_its_code(gan, gan_pictures):
    assert "GL101" in words_of(gan_pictures[1])
    plain = diagrams(gan[0])
    assert not [tag for diagram in plain for part in (*diagram.boxes, *diagram.frames) for tag in part.tags]


def test_the_head_says_what_became_of_the_backward(gan):
    first, second = diagrams(*gan)
    assert first.subtitle[1] == "frees what it walks when it ends"
    assert second.subtitle[1].startswith("raised RuntimeError: Trying to backward through the graph")


def test_losses_and_data_have_the_users_names(gan):
    first, _ = diagrams(*gan)
    assert {box.title for box in first.boxes if box.kind == "loss"} == {"discriminator_loss"}
    assert {box.title for box in first.boxes if box.kind == "input"} == {"noise", "real_images"}


def test_a_nameless_loss_is_shown_as_its_line_has_it(tmp_path):
    def train(session):
        first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        (first(torch.ones(1, 2)).sum() + second(torch.ones(1, 2)).sum()).backward()
        third = first(torch.ones(1, 2)).sum()
        (third + 1).backward()

    trace = record(train)
    titles = [[box.title for box in found.boxes if box.kind == "loss"] for found in diagrams(trace)]
    assert titles == [["no variable's name"], ["third + 1"]]
    names = [path.name for path in draw(trace, NOTHING, tmp_path)]
    assert "-third_1.backward" in names[1]


def test_the_legend_lists_only_marks_that_occur(gan_pictures):
    freed_before = [any(word.startswith(FREED_BEFORE) for word in words_of(path)) for path in gan_pictures]
    assert freed_before == [False, True]


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()


def test_equal_steps_are_drawn_once(tmp_path):
    def train(session):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            session.mark_step()
            step(model, optimizer, torch.randn(4, 2))

    trace = record(train)
    (path,) = draw(trace, NOTHING, tmp_path)
    assert any("steps 0 to 2 alike" in word for word in words_of(path))


def test_a_detach_is_marked_as_the_cut():
    def train(_):
        first, second = nn.Linear(2, 2), nn.Linear(2, 1)
        features = first(torch.randn(3, 2))
        loss = second(features.detach()).mean()
        loss.backward()

    (diagram,) = diagrams(record(train))
    (cut,) = [box for box in diagram.boxes if box.kind == "cut"]
    assert cut.title == "features"
    assert "detach" in cut.says[0]
    assert [edge.kind for edge in diagram.edges if edge.tail == cut.key] == ["cut"]


def test_a_no_grad_block_is_the_cut_of_what_it_computed():
    def train(_):
        teacher, student = nn.Linear(2, 1), nn.Linear(2, 1)
        x = torch.randn(3, 2)
        with torch.no_grad():
            target = teacher(x)
        loss = nn.functional.mse_loss(student(x), target)
        loss.backward()

    (diagram,) = diagrams(record(train))
    (cut,) = [box for box in diagram.boxes if box.kind == "cut"]
    assert "no_grad" in cut.says[0]


def test_a_shape_taken_from_a_tensor_is_no_cut():
    def train(_):
        scores = nn.Linear(2, 1)(torch.randn(3, 2))
        loss = nn.functional.mse_loss(scores, torch.ones_like(scores))
        loss.backward()

    (diagram,) = diagrams(record(train))
    assert not [box for box in diagram.boxes if box.kind == "cut"]


def test_discarded_gradients_are_marked_where_a_finding_says_so():
    def train(session):
        generator, discriminator = Generator(), Discriminator()
        for_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
        for_discriminator = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        for _ in range(2):
            session.mark_step()
            for_discriminator.zero_grad()
            discriminator_loss = discriminator(generator(torch.randn(2, 4))).mean()
            discriminator_loss.backward()
            for_discriminator.step()
            for_generator.zero_grad()
            generator_loss = -discriminator(generator(torch.randn(2, 4))).mean()
            generator_loss.backward()
            for_generator.step()

    trace = record(train)
    report = judge(trace, Selection(select=("GL305",)))
    assert [finding.code for finding in report.findings] == ["GL305"]
    for diagram in diagrams(trace, report):
        wasted = " ".join(frame_titles(diagram, "discarded"))
        assert ("generator" in wasted) is (diagram.title == "discriminator_loss.backward()")
        assert "discriminator · " not in wasted
    assert not [mark for diagram in diagrams(trace) for mark in marked(diagram, "discarded")]


def test_what_a_backward_on_some_inputs_leaves_out_is_marked():
    def train(_):
        first, second = nn.Linear(2, 2), nn.Linear(2, 1)
        loss = second(torch.relu(first(torch.randn(3, 2)))).mean()
        loss.backward(inputs=[second.weight])

    (diagram,) = diagrams(record(train))
    assert "first · Linear" in frame_titles(diagram, "not-executed")
    assert "second · Linear" not in frame_titles(diagram, "not-executed")


def test_a_kept_graph_entered_again_is_marked():
    def train(_):
        model = nn.Linear(2, 1)
        loss = model(torch.randn(3, 2)).mean()
        loss.backward(retain_graph=True)
        loss.backward()

    first, second = diagrams(record(train))
    assert {mark for box in first.boxes for mark in box.marks} == {"kept"}
    assert first.subtitle[1] == "retain_graph=True: keeps what it walks"
    assert {mark for box in second.boxes for mark in box.marks} == {"retained-again", "freed"}


def test_leaves_of_a_module_are_named_in_its_box_and_others_have_one():
    def train(_):
        model = nn.Linear(2, 1)
        prompt = torch.randn(3, 2, requires_grad=True)
        loss = model(prompt).mean()
        loss.backward()

    (diagram,) = diagrams(record(train))
    (linear,) = [box for box in diagram.boxes if box.title == "model · Linear"]
    assert "weight, bias: 2 leaves" in linear.lines
    (leaf,) = [box for box in diagram.boxes if box.kind == "leaf"]
    assert leaf.title == "prompt"
    assert (leaf.key, linear.key) in {(edge.tail, edge.head) for edge in diagram.edges}


def test_a_saved_trace_is_drawn_without_torch(gan, tmp_path):
    trace, _ = gan
    records = [
        *(trace.header, *trace.sites.values(), *trace.tensors.values(), *trace.modules.values()),
        *(*trace.parameters, *trace.names, *trace.graphs.values(), *trace.events),
    ]
    save(records, tmp_path / "trace.jsonl")
    code = (
        "import sys; from pathlib import Path\n"
        "from graphlint.lint.rule import Report\n"
        "from graphlint.record.codec import load\n"
        "from graphlint.report.svg import draw\n"
        "report = Report(findings=(), outcomes=(), tracebacks={})\n"
        "print(len(draw(load(Path(sys.argv[1])), report, Path(sys.argv[2]))), 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "trace.jsonl"), str(tmp_path / "graphs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


class TwoDevices(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3).to("cuda:0")
        self.second = nn.Linear(3, 1).to("cuda:1")

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)).to("cuda:1"))


def test_a_module_on_two_devices_is_opened_first_and_says_so_when_closed():
    def train(_):
        model, other = TwoDevices(), nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))).to("cuda:0")
        loss = model(other(torch.randn(2, 2, device="cuda:0"))).mean()
        loss.backward()

    trace = record(train, simulate=("cuda:0", "cuda:1"))
    (opened,) = diagrams(trace, boxes=8)
    assert {box.device for box in opened.boxes if box.nodes} == {"cuda:0", "cuda:1"}
    assert [box.title for box in opened.boxes if box.kind == "transfer"] == ["cuda:0 → cuda:1"]
    (closed,) = diagrams(trace, boxes=1)
    (model,) = [box for box in closed.boxes if box.title == "model · TwoDevices"]
    assert "on cuda:0, cuda:1" in model.lines
