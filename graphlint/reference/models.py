"""A generator and a discriminator of 8 x 8 digits, small enough to learn on two cores in a minute.

Any two modules with the same forward signatures serve `SplitDeviceGANTrainer` as well. Imports torch.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from graphlint.reference.data import IMAGE_SIZE
from graphlint.reference.options import TrainerOptions

NOISE_SIZE = 32

DIGIT_OPTIONS = TrainerOptions(
    generator_learning_rate=5e-4, discriminator_learning_rate=2e-3, betas=(0.0, 0.999), ema_decay=0.995
)
"""What these two learn well with.

Adam without momentum, and a discriminator that learns faster than the generator. With momentum, or at the
same pace, the generator comes to draw each digit in one way only.
"""


class DigitGenerator(nn.Module):
    """Draws digits: `forward(noise, text_embeddings)` returns images, `(N, 1, 8, 8)` in [-1, 1].

    It normalises over the features of each image, never over a batch: an image does not depend on those
    beside it, and training and sampling compute the same.
    """

    def __init__(self, noise_size: int, embedding_size: int, width: int = 256) -> None:
        super().__init__()
        text_size = 64
        self.text = nn.Sequential(nn.Linear(embedding_size, text_size), nn.LayerNorm(text_size))
        self.draw = nn.Sequential(
            nn.Linear(noise_size + text_size, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, IMAGE_SIZE * IMAGE_SIZE),
            nn.Tanh(),
            nn.Unflatten(1, (1, IMAGE_SIZE, IMAGE_SIZE)),
        )

    def forward(self, noise: Tensor, text_embeddings: Tensor) -> Tensor:
        """Returns an image for each row of noise `(N, noise_size)` and embedding `(N, embedding_size)`."""
        images: Tensor = self.draw(torch.cat([noise, self.text(text_embeddings)], dim=1))
        return images


class DigitDiscriminator(nn.Module):
    """Judges digits: `forward(images, text_embeddings)` returns logits, `(N,)`, above 0 for what seems real.

    A projection discriminator: the scalar product of what it sees and of what it reads is part of the logit,
    so that a good image of another digit than the text names is told from a real pair. Spectral norms bound
    how steep it is, so that the generator always has a slope to follow.
    """

    def __init__(self, embedding_size: int, width: int = 128) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Flatten(),
            spectral_norm(nn.Linear(IMAGE_SIZE * IMAGE_SIZE, width)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(width, width)),
            nn.LeakyReLU(0.2),
        )
        self.read = spectral_norm(nn.Linear(embedding_size, width, bias=False))
        self.judge = spectral_norm(nn.Linear(width, 1))

    def forward(self, images: Tensor, text_embeddings: Tensor) -> Tensor:
        """Returns a logit for each pair of an image `(N, 1, 8, 8)` and an embedding `(N, embedding_size)`."""
        seen = self.look(images)
        match = (seen * self.read(text_embeddings)).sum(dim=1)
        logits: Tensor = self.judge(seen).squeeze(1) + match
        return logits
