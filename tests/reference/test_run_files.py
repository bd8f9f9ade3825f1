"""What a run leaves and shows: its metrics, its order of items, its grids, its progress."""

import io
import json
import random

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

from graphlint.errors import UsageError
from graphlint.reference.grids import draw_grid, save_png
from graphlint.reference.metrics import MetricsFile, StepMetrics
from graphlint.reference.order import EpochBatches
from graphlint.reference.progress import TrainingProgress
from graphlint.reference.randomness import random_state, restore_random_state
from graphlint.reference.run import TrainingRun


def row(step: int) -> StepMetrics:
    return StepMetrics(step=step, epoch=0, discriminator_loss=1.5, generator_loss=0.5)


def test_metrics_of_steps_that_are_taken_again_are_dropped(tmp_path):
    file = MetricsFile(tmp_path / "m.jsonl")
    file.keep_until(0)
    assert not file.path.exists()
    file.append([row(1), row(2)])
    file.append([row(3)])
    whole = file.path.read_bytes()
    with file.path.open("ab") as stream:
        stream.write(b'{"step":4,"epo')
    file.keep_until(3)
    assert file.path.read_bytes() == whole
    file.keep_until(1)
    assert [json.loads(line)["step"] for line in file.path.read_text().splitlines()] == [1]
    assert msgspec.json.decode(file.path.read_bytes(), type=StepMetrics) == row(1)


def test_metrics_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"can't write .*m\.jsonl: No such file"):
        MetricsFile(tmp_path / "no" / "m.jsonl").append([row(1)])
    with pytest.raises(UsageError, match=r"can't read .*: Is a directory"):
        MetricsFile(tmp_path).keep_until(1)


def test_the_metrics_say_which_loss_is_bad():
    assert row(1).problem() is None
    bad = StepMetrics(step=2, epoch=1, discriminator_loss=1.0, generator_loss=float("inf"))
    assert bad.problem() == "the generator's loss became inf in step 2, epoch 1"


def test_every_item_comes_once_an_epoch_and_the_last_batch_is_short():
    batches = list(EpochBatches(19, 8, seed=0, epoch=0))
    assert [len(batch) for batch in batches] == [8, 8, 3]
    assert sorted(index for batch in batches for index in batch) == list(range(19))
    assert list(EpochBatches(19, 8, seed=0, epoch=0, first=2)) == batches[2:]
    assert list(EpochBatches(19, 8, seed=0, epoch=0, first=3)) == []
    assert [len(EpochBatches(19, 8, seed=0, epoch=0, first=first)) for first in range(5)] == [3, 2, 1, 0, 0]
    orders = {
        str(list(EpochBatches(19, 8, seed=seed, epoch=epoch))) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9
    loader = DataLoader(TensorDataset(torch.arange(19)), batch_sampler=EpochBatches(19, 8, seed=0, epoch=0))
    assert [batch.tolist() for (batch,) in loader] == batches


def test_the_order_uses_no_random_state_of_torchs():
    before = torch.get_rng_state()
    list(EpochBatches(19, 8, seed=0, epoch=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_random_generator_is_put_back():
    def draw() -> tuple[float, ...]:
        return (random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item())  # noqa: NPY002, S311

    np.random.randn()  # noqa: NPY002 - leaves a second normal number waiting
    state = random_state([torch.device("cpu")])
    expected = [draw() for _ in range(3)]
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    restore_random_state(torch.load(file, weights_only=True), [torch.device("cpu")])
    assert [draw() for _ in range(3)] == expected
    assert len(set(expected)) == 3


def test_a_grid_has_a_row_for_each_caption(tmp_path):
    images = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 1, 8, 8)
    grid = draw_grid(images, ("a handwritten seven", "3"))
    assert grid.mode == "L"
    assert grid.height == 2 * 68 + 4
    assert grid.width > 3 * 68 + 19 * 6
    left = grid.width - (3 * 68 + 4)
    assert grid.getpixel((left + 4, 4)) == 0
    assert grid.getpixel((left + 2 * 68 + 4 + 63, 68 + 4 + 63)) == 255
    assert grid.crop((0, 4, left, 68)).getextrema()[0] < 100
    save_png(grid, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as saved:
        assert (saved.format, saved.tobytes()) == ("PNG", grid.tobytes())
    assert [path.name for path in tmp_path.iterdir()] == ["grid.png"]


def test_a_grid_in_colour_of_large_images_and_without_captions(tmp_path):
    images = torch.zeros(1, 2, 3, 70, 80)
    images[..., 0, :, :] = 1.0
    images[..., 2, :, :] = -3.0
    grid = draw_grid(images, ("",))
    assert (grid.mode, grid.size) == ("RGB", (2 * 84 + 4, 70 + 8))
    assert grid.getpixel((10, 10)) == (255, 128, 0)
    with pytest.raises(UsageError, match=r"1 or 3 channels, not of shape \(1, 2, 2, 4, 4\)"):
        draw_grid(torch.zeros(1, 2, 2, 4, 4), ("",))
    with pytest.raises(UsageError, match="can't write the picture"):
        save_png(grid, tmp_path / "no" / "grid.png")


def test_what_a_run_leaves(tiny, tmp_path):
    stream = io.StringIO()
    run = tiny.make_run(tmp_path / "deep" / "run", options=tiny.run_options(10), stream=stream)
    assert run.train() == tmp_path / "deep" / "run" / "checkpoint.pt"
    files = sorted(
        str(path.relative_to(run.checkpoint.parent)) for path in run.checkpoint.parent.rglob("*.*")
    )
    assert files == ["checkpoint.pt", "metrics.jsonl", "samples/step-000005.png", "samples/step-000010.png"]
    rows = [json.loads(line) for line in (run.checkpoint.parent / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["epoch"]) for row in rows] == [(n, (n - 1) // 3) for n in range(1, 11)]
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 4 of 10", "step 8 of 10", "step 10 of 10"]
    of_both = [f"{rows[-1][name]:.3f}" for name in ("discriminator_loss", "generator_loss")]
    assert lines[-1] == "step 10 of 10: discriminator {}, generator {}".format(*of_both)


def test_sampling_and_reading_leave_the_training_as_it_is(tiny, tmp_path):
    runs = []
    for name, options in (("often", {"log_every": 1, "sample_every": 1}), ("seldom", {"log_every": 50})):
        run = tiny.make_run(tmp_path / name, options=tiny.run_options(6, **options))
        run.train()
        runs.append(run.trainer.generator.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[1])


def test_a_bar_on_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: True))
    progress = TrainingProgress(stream, steps=10)
    with progress:
        progress.advance(1)
        progress.show(7, 1.25, 0.5)
        progress.report(7, 1.25, 0.5)
    shown = stream.getvalue()
    assert "7/10" in shown
    assert "discriminator 1.250  generator 0.500" in shown
    assert "step 7 of 10" not in shown


def test_no_stream_shows_nothing(capfd):
    progress = TrainingProgress(None, steps=10)
    with progress:
        progress.show(7, 1.25, 0.5)
        progress.report(7, 1.25, 0.5)
    assert capfd.readouterr() == ("", "")


class _Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())


def test_data_sets_that_cannot_be_trained_on(tiny, tmp_path):
    def refused(dataset, pattern: str) -> None:
        with pytest.raises(UsageError, match=pattern):
            TrainingRun(tiny.make_trainer(), dataset, tmp_path, tiny.run_options()).train()

    refused(_Endless(), "has no length")
    refused(TensorDataset(torch.ones(0, 6)), "the data set is empty")
    refused(TensorDataset(torch.ones(4, 6)), "must be a pair of tensors")
    tmp_path.joinpath("checkpoint.pt").unlink()
    refused(
        TensorDataset(torch.ones(4, 6), torch.ones(4, 1, 4, 4), torch.ones(4)), "must be a pair of tensors"
    )


def test_a_directory_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"can't write to .*: (Not a directory|File exists)"):
        tiny.make_run(tmp_path / "file" / "run").train()
