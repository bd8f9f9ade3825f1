"""graphlint on the reference trainer: nothing to report, at full level, on any placement of the networks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.lint.discovery import all_rules
from graphlint.lint.rule import Report
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.events import Backward, Op, OptimizerStep, Transfer
from graphlint.record.trace import Trace
from graphlint.reference import SplitDeviceGANTrainer, TrainerOptions

STEPS = 8
"""Two epochs of 19 items in batches of 8: the third and the sixth batch hold 3."""

PLACES = [("cpu", "cpu"), ("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")]
OPTIONS = [
    {"max_gradient_norm": 1.0, "real_label": 0.9},
    {"ema_decay": None},
    {"autocast": "bfloat16"},
]
CASES = [
    *((places, OPTIONS[0]) for places in PLACES),
    *((PLACES[1], options) for options in OPTIONS[1:]),
]


def audit(work: Callable[[], object], simulate: tuple[str, ...] = ("cuda",)) -> tuple[Trace, Report]:
    session = Session(CaptureOptions(level="full", simulate=simulate))
    with session:
        work()
        session.close("finished", 0)
    trace = session.trace()
    return trace, judge(trace, Selection())


def events(trace: Trace, kind: type) -> list:
    return [event for event in trace.events if isinstance(event, kind)]


def lines_of(trace: Trace, kind: type) -> set[str]:
    sites = [trace.sites[event.site] for event in events(trace, kind) if event.site is not None]
    return {f"{Path(site.frames[0].path).name}:{site.frames[0].function}" for site in sites}


def assert_clean(report: Report) -> None:
    assert [f"{f.path}:{f.line}: {f.code} {f.message}" for f in report.findings] == []
    assert [outcome for outcome in report.outcomes if outcome.outcome != "clean"] == []
    assert len(report.outcomes) == len(all_rules())
    assert not report.suppressed


@pytest.mark.parametrize("fakes", ["reuse", "fresh"])
@pytest.mark.parametrize(("places", "options"), CASES)
def test_nothing_is_reported(tiny, tmp_path, places, options, fakes):
    def work() -> None:
        trainer = tiny.make_trainer(*places, TrainerOptions(fakes=fakes, **options))
        tiny.make_run(tmp_path / "run", trainer=trainer, options=tiny.run_options(STEPS)).train()

    simulate = ("cuda",) if "cuda" in places else ()
    trace, report = audit(work, simulate)
    assert_clean(report)
    assert len(events(trace, OptimizerStep)) == 2 * STEPS
    assert lines_of(trace, Backward) == {"trainer.py:SplitDeviceGANTrainer._update"}
    assert {3, 8} <= {shape[0] for tensor in trace.tensors.values() if (shape := tensor.shape)}


class _Untidy(SplitDeviceGANTrainer):
    """Lets the discriminator's loss run back through the generator, the fault that the trainer avoids."""

    def step(self, text_embeddings, images):
        batch = self._placed(text_embeddings, images)
        self._teach_discriminator(batch, self._generate(batch))
        self._teach_generator(batch, self._generate(batch))


def test_the_audit_would_report_a_fault_of_the_trainers(tiny):
    def work() -> None:
        generator, discriminator = tiny.networks()
        trainer = _Untidy(
            generator,
            discriminator,
            generator_device="cuda",
            discriminator_device="cpu",
            noise_size=tiny.NOISE,
        )
        for _ in range(4):
            trainer.step(torch.randn(8, tiny.TEXT), torch.rand(8, 1, tiny.SIDE, tiny.SIDE))

    _, report = audit(work)
    assert "GL305" in {finding.code for finding in report.findings}
    assert {Path(finding.path).name for finding in report.findings} == {"trainer.py"}


def transfers_of(trace: Trace) -> list[tuple[str, str, int]]:
    moves = [event for event in events(trace, Transfer) if not event.noop]
    return [
        (event.from_device, event.to_device, event.bytes)
        for event in moves
        if "trainer.py" in {Path(frame.path).name for frame in trace.sites[event.site].frames}
        and any(frame.function.endswith(".step") for frame in trace.sites[event.site].frames)
    ]


@pytest.mark.parametrize("fakes", ["reuse", "fresh"])
def test_each_tensor_crosses_once(tiny, fakes):
    batches = [(torch.randn(size, tiny.TEXT), torch.rand(size, 1, 4, 4)) for size in (8, 3)]

    def work(generator_device: str, discriminator_device: str) -> None:
        trainer = tiny.make_trainer(generator_device, discriminator_device, TrainerOptions(fakes=fakes))
        for text, images in batches:
            trainer.step(text, images)

    text, images = [[batch[i].numel() * 4 for batch in batches] for i in (0, 1)]
    generations = 1 if fakes == "reuse" else 2

    trace, _ = audit(lambda: work("cuda", "cpu"))
    expected = []
    for index in range(2):
        expected += [("cpu", "cuda:0", text[index])]
        expected += [("cuda:0", "cpu", images[index])] * generations
    assert transfers_of(trace) == expected

    trace, _ = audit(lambda: work("cpu", "cuda"))
    expected = []
    for index in range(2):
        expected += [("cpu", "cuda:0", text[index]), ("cpu", "cuda:0", images[index])]
        expected += [("cpu", "cuda:0", images[index])] * generations
    assert transfers_of(trace) == expected

    trace, _ = audit(lambda: work("cuda", "cuda"))
    assert transfers_of(trace) == [
        ("cpu", "cuda:0", size) for index in range(2) for size in (text[index], images[index])
    ]

    trace, _ = audit(lambda: work("cpu", "cpu"))
    assert transfers_of(trace) == []
    assert {event.name for event in events(trace, Op)} >= {"torch.nn.functional.linear", "torch.randn"}


@pytest.mark.parametrize(("fakes", "forwards"), [("reuse", 1), ("fresh", 2)])
def test_generator_forwards_and_nodes_of_the_backwards(tiny, fakes, forwards):
    def work() -> None:
        trainer = tiny.make_trainer("cuda", "cpu", TrainerOptions(fakes=fakes))
        trainer.step(torch.randn(8, tiny.TEXT), torch.rand(8, 1, 4, 4))

    trace, _ = audit(work)
    assert sum(event.name.endswith("batch_norm") for event in events(trace, Op)) == forwards
    of_discriminator, of_generator = events(trace, Backward)
    reached = [{trace.tensors[leaf].shape for leaf in b.reached} for b in (of_discriminator, of_generator)]
    assert len(of_discriminator.reached) == 6
    assert len(of_generator.reached) == 7
    assert reached[0] != reached[1]


def test_the_command_finds_nothing_in_the_script(script, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "graphlint", "run", "--level", "full", "--simulate", "cuda"),
            *(str(script), "--generator-device", "cuda", "--steps", "7", "--out", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "no findings in 7 steps (all at full level)" in done.stderr
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
