"""A run that is killed or interrupted and resumed ends as the one that wasn't: same bits in every file."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphlint.errors import CheckpointError, UsageError
from graphlint.reference import TrainerOptions

STEPS = 20
PLACES = ("between the updates", "in a draw", "in a write")


def start(script: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), "--out", str(out), "--steps", str(STEPS), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], line: str = "") -> tuple[int, str]:
    out, err = process.communicate(line, timeout=240)
    return process.returncode, out + err


def contents(out: Path) -> dict[str, object]:
    """Returns all that a run left behind, the checkpoint as its values."""
    files = {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }
    checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)
    return {**files, "checkpoint.pt": plain(checkpoint)}


def plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


@pytest.fixture(scope="module")
def uninterrupted(script: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert finish(start(script, out)) == (0, "")
    found = contents(out)
    assert len(found["metrics.jsonl"].splitlines()) == STEPS
    assert found["checkpoint.pt"]["trainer"]["steps"] == STEPS
    return found


@pytest.mark.parametrize("place", PLACES)
def test_killed_and_resumed(script, tmp_path, uninterrupted, place):
    out = tmp_path / "run"
    process = start(script, out, "--block", place)
    assert process.stdout.readline() == "blocked\n"
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    step = torch.load(out / "checkpoint.pt", weights_only=True)["trainer"]["steps"]
    assert 8 <= step < STEPS
    assert finish(start(script, out, "--resume")) == (0, "")
    assert contents(out) == uninterrupted


@pytest.mark.parametrize("place", PLACES)
def test_interrupted_and_resumed(tiny, script, tmp_path, uninterrupted, place):
    out = tmp_path / "run"
    process = start(script, out, "--block", place)
    assert process.stdout.readline() == "blocked\n"
    process.send_signal(signal.SIGINT)
    code, text = finish(process, "go on\n")
    assert code == 130
    step = torch.load(out / "checkpoint.pt", weights_only=True)["trainer"]["steps"]
    assert f"TrainingInterrupted: interrupted after step {step} of {STEPS}; saved in " in text
    assert 14 <= step < STEPS
    tiny.make_run(out, trainer=_like_the_script(tiny)).train(resume=True)
    assert contents(out) == uninterrupted


def test_killed_again_and_again(script, tmp_path, uninterrupted):
    out = tmp_path / "run"
    for step in (3, 9, 19):
        resume = ("--resume",) if out.exists() else ()
        process = start(script, out, "--block", PLACES[0], "--block-step", str(step), *resume)
        assert process.stdout.readline() == "blocked\n"
        process.kill()
        finish(process)
    assert finish(start(script, out, "--resume")) == (0, "")
    assert contents(out) == uninterrupted


def test_more_steps_are_added_to_a_finished_run(tiny, tmp_path, script, uninterrupted):
    run = tiny.make_run(tmp_path / "run", trainer=_like_the_script(tiny), options=tiny.run_options(13))
    run.train()
    checkpoint = torch.load(run.checkpoint, weights_only=True)
    assert (checkpoint["epoch"], checkpoint["batch"]) == (4, 1)
    longer = tiny.make_run(tmp_path / "run", trainer=_like_the_script(tiny), options=tiny.run_options(STEPS))
    longer.train(resume=True)
    files = contents(tmp_path / "run")
    assert files["metrics.jsonl"] == uninterrupted["metrics.jsonl"]
    assert files["checkpoint.pt"]["trainer"] == uninterrupted["checkpoint.pt"]["trainer"]


def test_a_run_that_has_its_steps_is_left_as_it_is(tiny, tmp_path):
    tiny.make_run(tmp_path, options=tiny.run_options(4)).train()
    before = contents(tmp_path)
    assert (
        tiny.make_run(tmp_path, options=tiny.run_options(4)).train(resume=True) == tmp_path / "checkpoint.pt"
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("steps", [3, 6])
def test_an_epochs_end_is_a_place_like_any_other(tiny, tmp_path, steps):
    whole = tiny.make_run(tmp_path / "whole", options=tiny.run_options(9))
    whole.train()
    tiny.make_run(tmp_path / "parts", options=tiny.run_options(steps)).train()
    tiny.make_run(tmp_path / "parts", options=tiny.run_options(9)).train(resume=True)
    parts, expected = contents(tmp_path / "parts"), contents(tmp_path / "whole")
    assert parts["checkpoint.pt"] == expected["checkpoint.pt"]
    assert parts["metrics.jsonl"] == expected["metrics.jsonl"]


def test_workers_that_load_the_items_resume_as_well(tiny, tmp_path):
    def run(out: Path, steps: int):
        options = tiny.run_options(steps, workers=1)
        return tiny.make_run(out, dataset=tiny.Pairs(randomly=False), options=options)

    run(tmp_path / "whole", 5).train()
    run(tmp_path / "parts", 2).train()
    run(tmp_path / "parts", 5).train(resume=True)
    assert contents(tmp_path / "parts")["metrics.jsonl"] == contents(tmp_path / "whole")["metrics.jsonl"]


def test_what_was_begun_is_not_overwritten(tiny, tmp_path):
    tiny.make_run(tmp_path, options=tiny.run_options(1)).train()
    with pytest.raises(UsageError, match="holds a run already: resume it, or train in another directory"):
        tiny.make_run(tmp_path).train()
    with pytest.raises(UsageError, match=r"nothing to resume in .*empty: it holds no checkpoint\.pt"):
        tiny.make_run(tmp_path / "empty").train(resume=True)


def test_a_file_of_the_same_name_that_is_no_runs_is_kept(tiny, tmp_path):
    notes = tmp_path / "metrics.jsonl"
    notes.write_text("mine\n")
    with pytest.raises(UsageError, match=r"holds a metrics\.jsonl already, of no run: train in another"):
        tiny.make_run(tmp_path).train()
    assert notes.read_text() == "mine\n"
    assert not (tmp_path / "checkpoint.pt").exists()


def test_another_runs_checkpoint_is_refused(tiny, tmp_path):
    tiny.make_run(tmp_path, options=tiny.run_options(2)).train()

    def resume(trainer=None, dataset=None, **options) -> str:
        run = tiny.make_run(
            tmp_path, trainer=trainer, dataset=dataset, options=tiny.run_options(4, **options)
        )
        with pytest.raises(CheckpointError) as caught:
            run.train(resume=True)
        return str(caught.value)

    assert resume(batch_size=4).endswith("is of another run: batch_size was 8, is now 4")
    assert resume(seed=1).endswith("seed was 0, is now 1")
    assert resume(dataset=tiny.Pairs(20)).endswith("items of the data set was 19, is now 20")
    fresh = tiny.make_trainer(options=TrainerOptions(fakes="fresh", ema_decay=None))
    assert resume(trainer=fresh).endswith("fakes was reuse, is now fresh; ema_decay was 0.999, is now None")
    wider = tiny.make_trainer()
    wider.generator.out = torch.nn.Linear(16, 32)
    assert "the state is of other networks: " in resume(trainer=wider)


def test_learning_rates_may_change(tiny, tmp_path):
    tiny.make_run(tmp_path, options=tiny.run_options(2)).train()
    options = TrainerOptions(generator_learning_rate=0.5, max_gradient_norm=1.0)
    trainer = tiny.make_trainer(options=options)
    tiny.make_run(tmp_path, trainer=trainer, options=tiny.run_options(3)).train(resume=True)
    assert [group["lr"] for group in trainer.generator_optimizer.param_groups] == [0.5]
    assert [group["lr"] for group in trainer.discriminator_optimizer.param_groups] == [2e-4]


def _like_the_script(tiny):
    return tiny.make_trainer(options=TrainerOptions(max_gradient_norm=1.0, real_label=0.9))
