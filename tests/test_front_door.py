"""What is imported when: the front door stays light, and a saved trace is read without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "networkx", "graphviz", "rich", "jinja2", "torchviz", "numpy", "sklearn", "PIL")

SCRIPT = """
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RECORD = """
import sys
from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from pathlib import Path
script = Path({script!r})
code = compile(script.read_text(), str(script), "exec")
with Session(CaptureOptions(trace=Path({trace!r}), script=str(script))) as session:
    exec(code, {{"__name__": "__main__"}})
    session.close("finished", 0)
"""
READ = """
import io
from pathlib import Path
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.codec import load
from graphlint.report.json import to_json
from graphlint.report.svg import draw
from graphlint.report.text import render
trace = load(Path({trace!r}))
report = judge(trace, Selection())
outcomes = [outcome.outcome for outcome in report.outcomes]
assert outcomes and "failed" not in outcomes, report.tracebacks
assert any(type(event).__name__ == "Backward" for event in trace.events)
render(report, trace, io.StringIO(), color=True)
assert to_json(report, trace)
assert draw(trace, report, Path({pictures!r}), style="collapsed")
"""


def run_python(code: str) -> list[str]:
    """Returns the top-level modules that a fresh interpreter has loaded after running `code`."""
    tail = "\nimport sys, json\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("code", ["import graphlint", "import graphlint.cli.main"])
def test_front_door_imports_nothing_heavy(code):
    assert set(run_python(code)).isdisjoint(HEAVY)


def test_heavy_imports_are_noticed():
    assert not set(run_python("import networkx")).isdisjoint(HEAVY)


def test_rules_are_listed_without_torch():
    assert "torch" not in run_python("from graphlint.lint.discovery import all_rules; assert all_rules()")


def test_saved_trace_is_judged_and_drawn_without_torch(tmp_path):
    script, trace, pictures = tmp_path / "train.py", tmp_path / "t.jsonl.gz", tmp_path / "pictures"
    script.write_text(SCRIPT)
    pictures.mkdir()
    assert "torch" in run_python(RECORD.format(script=str(script), trace=str(trace)))
    assert "torch" not in run_python(READ.format(trace=str(trace), pictures=str(pictures)))
