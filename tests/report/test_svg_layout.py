"""Which program places a picture, what happens when it is missing, slow or broken, and the full style."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.errors import UsageError
from graphlint.lint.rule import Report
from graphlint.report import svg
from graphlint.report.drawing import layout
from graphlint.report.drawing.layout import SlowLayoutError, find_program, run_program

NOTHING = Report(findings=(), outcomes=(), tracebacks={})


def record(make_loss):
    with Session(CaptureOptions(level="full")) as session:
        loss = make_loss()
        loss.backward()
    return session.trace()


def mlp():
    kinds = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.Softplus)
    model = nn.Sequential(*(layer for kind in kinds for layer in (nn.Linear(4, 4), kind())))
    return model(torch.randn(2, 4)).mean()


def long_chain():
    value = torch.ones(1, requires_grad=True)
    for _ in range(1500):
        value = value.sin()
    return value.sum()


@pytest.fixture(scope="module")
def trace():
    return record(mlp)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A `dot` on PATH that leaves a note and lets graphviz-pure do the work."""
    pure = find_program()[0]
    note = tmp_path / "used"
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntouch "{note}"\nexec "{pure}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return note


def test_the_systems_dot_is_used_where_there_is_one(trace, tmp_path, stand_in):
    svg.draw(trace, NOTHING, tmp_path / "graphs")
    assert stand_in.exists()


def test_graphviz_pure_is_found_next_to_the_interpreter(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert Path(find_program()[0]).name.startswith("graphviz-pure")


def test_without_a_program_one_line_says_what_to_install(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(
        UsageError, match=r"install graphviz .* or the Python package graphviz-pure"
    ) as caught:
        svg.draw(trace, NOTHING, tmp_path / "graphs")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "graphs").exists()


def test_a_program_that_takes_too_long_is_stopped():
    with pytest.raises(SlowLayoutError):
        run_program((sys.executable, "-c", "import time; time.sleep(600)"), "digraph {}", 0.3)


@pytest.mark.parametrize("code", ["import sys; sys.exit('no memory')", "print('not json')"])
def test_a_program_that_fails_is_a_usage_error_of_one_line(code):
    with pytest.raises(UsageError, match="failed") as caught:
        run_program((sys.executable, "-c", code), "digraph {}", 60)
    assert "\n" not in str(caught.value)


def test_a_slow_layout_is_tried_with_fewer_boxes(trace, tmp_path, monkeypatch):
    tried = []

    def slow(diagram, program, timeout_s):
        tried.append(len(diagram.boxes))
        if len(diagram.boxes) > 6:
            raise SlowLayoutError("slow")
        return layout.place(diagram, program, timeout_s)

    monkeypatch.setattr(svg, "place", slow)
    (path,) = svg.draw(trace, NOTHING, tmp_path)
    assert len(tried) > 1
    assert tried == sorted(tried, reverse=True)
    assert "Closed boxes stand for" in path.read_text(encoding="utf-8")


def test_a_layout_that_is_always_slow_is_a_usage_error(trace, tmp_path, monkeypatch):
    def slow(*_):
        raise SlowLayoutError("slow")

    monkeypatch.setattr(svg, "place", slow)
    with pytest.raises(UsageError, match="could not lay out"):
        svg.draw(trace, NOTHING, tmp_path)


def test_a_directory_that_is_a_file_is_a_usage_error(trace, tmp_path):
    (tmp_path / "graphs").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="can't write graphs"):
        svg.draw(trace, NOTHING, tmp_path / "graphs")


def test_the_full_style_shows_every_node_and_leaf(trace, tmp_path):
    (path,) = svg.draw(trace, NOTHING, tmp_path, style="full")
    text = path.read_text(encoding="utf-8")
    assert text.count(">AddmmBackward0</text>") == 5
    assert text.count(">AccumulateGrad</text>") == 10
    assert ">loss</text>" in text
    assert "freed when this backward ended" in text


def test_the_full_style_gives_way_where_torchviz_runs_out_of_stack(tmp_path):
    (path,) = svg.draw(record(long_chain), NOTHING, tmp_path, style="full")
    text = path.read_text(encoding="utf-8")
    assert "torchviz visits a graph by recursion and ran out of stack on these 1,502 nodes" in text
    assert "Collapsed instead" in (tmp_path / "index.txt").read_text(encoding="utf-8")


def test_the_full_style_is_the_same_every_time(trace, tmp_path):
    (first,) = svg.draw(trace, NOTHING, tmp_path / "a", style="full")
    (second,) = svg.draw(trace, NOTHING, tmp_path / "b", style="full")
    assert first.read_bytes() == second.read_bytes()


def test_without_torchviz_the_full_style_is_a_usage_error(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchviz", None)
    with pytest.raises(UsageError, match="needs the Python package torchviz") as caught:
        svg.draw(trace, NOTHING, tmp_path, style="full")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("style", ["collapsed", "full"])
def test_what_drawing_needs_can_be_checked_before_a_run(style):
    svg.check(style)


def test_the_check_finds_a_missing_program(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UsageError, match="layout program"):
        svg.check("collapsed")


def test_the_check_finds_a_missing_torchviz(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="torchviz"):
        svg.check("full")
