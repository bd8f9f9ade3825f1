"""The training steps that the overhead benchmark times.

Each workload is made anew from a seed, so that every variant does the same arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Step = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """A named training step; `make` returns a fresh one."""

    name: str
    title: str
    make: Callable[[], Step]


def _gan_step(
    generator: nn.Module, discriminator: nn.Module, real: torch.Tensor, noise: torch.Tensor
) -> Step:
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    criterion = nn.BCEWithLogitsLoss()
    ones = torch.ones(len(real), 1)
    zeros = torch.zeros(len(real), 1)

    def step() -> None:
        fake = generator(noise)
        optimizer_d.zero_grad()
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()

    return step


def mlp_gan() -> Step:
    """A two-network GAN of three-layer perceptrons: about 3 ms a step on one core."""
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.Linear(32, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 64), nn.Tanh()
    )
    discriminator = nn.Sequential(
        nn.Linear(64, 160), nn.LeakyReLU(0.2), nn.Linear(160, 160), nn.LeakyReLU(0.2), nn.Linear(160, 1)
    )
    return _gan_step(generator, discriminator, torch.randn(128, 64), torch.randn(128, 32))


def dcgan() -> Step:
    """A DCGAN on 32x32 images, batch 16."""
    torch.manual_seed(0)
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(64, 64, 4, 1, 0), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()),
    )
    discriminator = nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(128, 1, 4, 1, 0), nn.Flatten()),
    )
    return _gan_step(generator, discriminator, torch.randn(16, 3, 32, 32), torch.randn(16, 64, 1, 1))


def transformer() -> Step:
    """A four-layer transformer encoder as a classifier: 16 sequences of 32 tokens, width 128."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    head = nn.Linear(128, 10)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-4)
    tokens = torch.randn(16, 32, 128)
    target = torch.randint(0, 10, (16,))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(encoder(tokens).mean(1)), target)
        loss.backward()
        optimizer.step()

    return step


WORKLOADS = (
    Workload("a", "two-network MLP GAN", mlp_gan),
    Workload("b", "DCGAN 32x32", dcgan),
    Workload("c", "4-layer transformer", transformer),
)
