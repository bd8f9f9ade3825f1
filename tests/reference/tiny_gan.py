"""A GAN of two small networks trained by the reference trainer: imported by the tests, and run as a script.

Its generator has dropout and its data set draws from every random generator, so that a resumed run is equal
to an uninterrupted one only if all of them were restored. As a script it can stop in the middle of a step, of
a draw or of writing a checkpoint: it prints "blocked" and goes on when it reads a line.
"""

import argparse
import io
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from graphlint.reference import (
    RunOptions,
    SampleTexts,
    SplitDeviceGANTrainer,
    TrainerOptions,
    TrainingRun,
)

TEXT = 6
NOISE = 5
SIDE = 4


class TinyGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(TEXT, 12)
        self.hidden = nn.Linear(12 + NOISE, 16, bias=False)  # batch norm would cancel a bias
        self.normalize = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(16, SIDE * SIDE)

    def forward(self, noise: Tensor, text_embeddings: Tensor) -> Tensor:
        text = torch.relu(self.text(text_embeddings))
        hidden = self.dropout(torch.relu(self.normalize(self.hidden(torch.cat([noise, text], dim=1)))))
        return torch.tanh(self.out(hidden)).view(-1, 1, SIDE, SIDE)


class TinyDiscriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(SIDE * SIDE, 12)
        self.text = nn.Linear(TEXT, 12)
        self.out = nn.Linear(12, 1)

    def forward(self, images: Tensor, text_embeddings: Tensor) -> Tensor:
        features = self.image(images.flatten(1)) + self.text(text_embeddings)
        return self.out(nn.functional.leaky_relu(features, 0.2))


class Pairs(Dataset):
    """Pairs of an embedding and a noisy image; `randomly` draws the noise from all generators at once."""

    def __init__(self, items: int = 19, *, dtype: torch.dtype = torch.float32, randomly: bool = True) -> None:
        generator = torch.Generator().manual_seed(7)
        self.text = torch.randn(items, TEXT, generator=generator, dtype=torch.float64).to(dtype)
        self.images = torch.rand(items, 1, SIDE, SIDE, generator=generator, dtype=torch.float64).to(dtype)
        self.randomly = randomly
        self.epoch = 0
        self.before_item: Callable[[], None] = lambda: None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.before_item()
        image = self.images[index] * 2 - 1
        if self.randomly:
            image = image + 0.01 * (random.random() + np.random.rand() + torch.rand(()))  # noqa: NPY002, S311
        return self.text[index] + 0.001 * self.epoch, image


def networks(dtype: torch.dtype = torch.float32) -> tuple[TinyGenerator, TinyDiscriminator]:
    """Returns both, with the same weights each time."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the generator that a data set of somebody's may use
    torch.manual_seed(3)
    return TinyGenerator().to(dtype), TinyDiscriminator().to(dtype)


def make_trainer(
    generator_device: str = "cpu",
    discriminator_device: str = "cpu",
    options: TrainerOptions | None = None,
    dtype: torch.dtype = torch.float32,
) -> SplitDeviceGANTrainer:
    generator, discriminator = networks(dtype)
    return SplitDeviceGANTrainer(
        generator,
        discriminator,
        generator_device=generator_device,
        discriminator_device=discriminator_device,
        noise_size=NOISE,
        options=options,
        seed=11,
    )


def make_run(
    out: Path,
    *,
    trainer: SplitDeviceGANTrainer | None = None,
    dataset: Pairs | None = None,
    options: RunOptions | None = None,
    stream=None,
) -> TrainingRun:
    embeddings = torch.linspace(-1, 1, 2 * TEXT).view(2, TEXT)
    return TrainingRun(
        trainer if trainer is not None else make_trainer(),
        dataset if dataset is not None else Pairs(),
        out,
        options if options is not None else run_options(),
        texts=SampleTexts(("first", "second"), embeddings),
        recipe={"made by": "tiny_gan"},
        stream=stream,
    )


def run_options(steps: int = 20, **changes) -> RunOptions:
    values = {"batch_size": 8, "log_every": 3, "checkpoint_every": 4, "sample_every": 5, "sample_columns": 2}
    return RunOptions(steps=steps, **{**values, **changes})


def block() -> None:
    """Says so and waits for a line; a signal that arrives meanwhile is handled, and the waiting goes on."""
    print("blocked", flush=True)  # noqa: T201 - a script
    sys.stdin.readline()


def arm(run: TrainingRun, place: str, step: int) -> None:
    """Lets the run block once, in the middle of a step counted from 1."""
    waiting = [step]

    def block_once() -> None:
        if waiting and run.trainer.steps + 1 >= waiting[0]:
            waiting.clear()
            block()

    if place == "between the updates":
        run.trainer.generator_optimizer.register_step_pre_hook(lambda *_: block_once())
    elif place == "in a draw":
        run.dataset.before_item = block_once
    else:
        real = torch.save

        def save(state: object, file: BinaryIO) -> None:
            whole = io.BytesIO()
            real(state, whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            block_once()
            file.write(whole.getvalue()[len(whole.getvalue()) // 2 :])

        torch.save = save


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--generator-device", default="cpu")
    parser.add_argument("--discriminator-device", default="cpu")
    parser.add_argument("--fakes", default="reuse")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--block", default="")
    parser.add_argument("--block-step", type=int, default=14)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    options = TrainerOptions(fakes=chosen.fakes, max_gradient_norm=1.0, real_label=0.9)
    trainer = make_trainer(chosen.generator_device, chosen.discriminator_device, options)
    run = make_run(chosen.out, trainer=trainer, options=run_options(chosen.steps))
    if chosen.block:
        arm(run, chosen.block, chosen.block_step)
    try:
        run.train(resume=chosen.resume)
    except KeyboardInterrupt as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201 - a script
        sys.exit(130)


if __name__ == "__main__":
    main()
