"""Trains the reference GAN on digits and prints how many of its images are read as the digit asked for.

    python benchmarks/reference_learning.py [--steps N] [--seed N] [--embedding NAME] [--grid FILE.png]

The reader is scikit-learn's support vector classifier, fitted on the real images. It reads images of captions
that no training caption equals, drawn by the moving average of the generator. The diversity is the mean
deviation of a pixel among the images of one digit, over that of the real images: a generator that draws each
digit in one way only would have 0. The same steps are taken on one device as on two.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from graphlint.reference.captions import HELD_OUT_CAPTIONS
from graphlint.reference.data import CaptionedDigits
from graphlint.reference.embedding import HashingEmbedding, TextEmbedding
from graphlint.reference.models import DIGIT_OPTIONS, NOISE_SIZE, DigitDiscriminator, DigitGenerator
from graphlint.reference.options import RunOptions
from graphlint.reference.run import TrainingRun
from graphlint.reference.trainer import SplitDeviceGANTrainer

STEPS = 4000
BAR = 0.85
IMAGES_PER_CAPTION = 25
EMBEDDINGS = {"latent-semantic": None, "hashing": HashingEmbedding()}


class Learning(NamedTuple):
    """What a training run came to; the accuracies are shares of images that are read as the digit named."""

    accuracy: float
    worst_digit: float
    diversity: float
    wall_seconds: float
    cpu_seconds: float


def train(
    steps: int, seed: int, dataset: CaptionedDigits, directory: Path
) -> tuple[SplitDeviceGANTrainer, float, float]:
    """Returns the trainer after its steps, the seconds that they took, and the CPU seconds."""
    torch.manual_seed(seed)
    trainer = SplitDeviceGANTrainer(
        DigitGenerator(NOISE_SIZE, dataset.embedding.dimension),
        DigitDiscriminator(dataset.embedding.dimension),
        generator_device="cpu",
        discriminator_device="cpu",
        noise_size=NOISE_SIZE,
        options=DIGIT_OPTIONS,
        seed=seed,
    )
    run = TrainingRun(trainer, dataset, directory, RunOptions(steps=steps, seed=seed))
    wall, cpu = time.perf_counter(), time.process_time()
    run.train()
    return trainer, time.perf_counter() - wall, time.process_time() - cpu


def drawn(trainer: SplitDeviceGANTrainer, embedding: TextEmbedding) -> tuple[Tensor, Tensor]:
    """Returns images of the held-out captions, and the digit that each was to show."""
    captions = [(digit, text) for digit, texts in HELD_OUT_CAPTIONS.items() for text in texts]
    vectors = embedding.embed([text for _, text in captions]).repeat_interleave(IMAGES_PER_CAPTION, dim=0)
    digits = torch.tensor([digit for digit, _ in captions]).repeat_interleave(IMAGES_PER_CAPTION)
    return trainer.sample(vectors, seed=1).cpu(), digits


def read(images: Tensor, dataset: CaptionedDigits) -> Tensor:
    """Returns the digit that a classifier of the real images reads in each of these."""
    from sklearn.svm import SVC

    reader = SVC(C=10, gamma="scale").fit(dataset.images.flatten(1).numpy(), dataset.labels.numpy())
    return torch.from_numpy(reader.predict(images.flatten(1).numpy()))


def deviation(images: Tensor, digits: Tensor) -> float:
    return float(
        torch.stack([images[digits == digit].flatten(1).std(dim=0).mean() for digit in range(10)]).mean()
    )


def learn(
    steps: int, seed: int = 0, embedding: TextEmbedding | None = None, grid: Path | None = None
) -> Learning:
    dataset = CaptionedDigits(embedding)
    with tempfile.TemporaryDirectory() as directory:
        trainer, wall, cpu = train(steps, seed, dataset, Path(directory))
    images, digits = drawn(trainer, dataset.embedding)
    right = (read(images, dataset) == digits).double()
    if grid is not None:
        draw(trainer, dataset.embedding, grid)
    return Learning(
        accuracy=right.mean().item(),
        worst_digit=min(right[digits == digit].mean().item() for digit in range(10)),
        diversity=deviation(images, digits) / deviation(dataset.images, dataset.labels),
        wall_seconds=wall,
        cpu_seconds=cpu,
    )


def draw(trainer: SplitDeviceGANTrainer, embedding: TextEmbedding, path: Path) -> None:
    """Writes a grid with a row of ten images for one held-out caption of each digit."""
    from graphlint.reference.grids import draw_grid, save_png

    captions = [texts[digit % len(texts)] for digit, texts in HELD_OUT_CAPTIONS.items()]
    images = trainer.sample(embedding.embed(captions).repeat_interleave(10, dim=0), seed=2)
    save_png(draw_grid(images.reshape(10, 10, 1, 8, 8), captions), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding", choices=EMBEDDINGS, default="latent-semantic")
    parser.add_argument("--grid", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the networks are so small that a second thread only waits
    found = learn(options.steps, options.seed, EMBEDDINGS[options.embedding], options.grid)
    print(f"read as the digit named  {found.accuracy:.1%} (bar {BAR:.0%}, chance 10%)")
    print(f"the worst digit          {found.worst_digit:.1%}")
    print(f"diversity                {found.diversity:.2f} times that of the real images")
    seconds = f"{found.wall_seconds:.0f} s, {found.cpu_seconds:.0f} s of CPU time"
    print(f"{options.steps} training steps      {seconds}")
    raise SystemExit(found.accuracy < BAR)


if __name__ == "__main__":
    main()
