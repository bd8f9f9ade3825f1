"""scikit-learn's handwritten digits as pairs of a caption's embedding and an image.

Imports torch, and scikit-learn as soon as a data set is made.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from graphlint.errors import UsageError
from graphlint.reference.captions import TRAINING_CAPTIONS
from graphlint.reference.embedding import LatentSemanticEmbedding, TextEmbedding
from graphlint.reference.order import epoch_seed

IMAGE_SIZE = 8


def load_digits() -> tuple[Tensor, Tensor]:
    """Returns the 1,797 images, `(N, 1, 8, 8)`, float32 in [-1, 1], and the digit that each shows, int64."""
    from sklearn import datasets

    pixels, digits = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, IMAGE_SIZE, IMAGE_SIZE) / 8 - 1
    return images, torch.from_numpy(digits).long()


class CaptionedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Each image with one of its digit's captions, another one in each epoch.

    An item is `(text_embedding, image)`: `(dimension,)` and `(1, 8, 8)`, both float32. Which caption an image
    has depends on the seed and on the epoch alone, so a resumed run meets the pairs that an uninterrupted one
    would have met.

    Attributes:
        embedding: What has embedded the captions.
        images: All images, `(images, 1, 8, 8)`.
        labels: The digit that each shows; no item tells it.
    """

    def __init__(
        self,
        embedding: TextEmbedding | None = None,
        *,
        captions: Mapping[int, Sequence[str]] = TRAINING_CAPTIONS,
        seed: int = 0,
    ) -> None:
        counts = {len(texts) for texts in captions.values()}
        if sorted(captions) != list(range(10)) or len(counts) != 1 or 0 in counts:
            raise UsageError("captions: each digit from 0 to 9 needs captions, as many as the others have")
        texts = [text for digit in range(10) for text in captions[digit]]
        self.embedding = LatentSemanticEmbedding.fit(texts) if embedding is None else embedding
        self.images, self.labels = load_digits()
        self._vectors = self.embedding.embed(texts).reshape(10, counts.pop(), self.embedding.dimension)
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Gives each image the caption that it has in an epoch, counted from 0."""
        # The epochs below 0 are those of no order of items, which `epoch_seed` is for.
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, -1 - epoch))
        self._choice = torch.randint(self._vectors.size(1), (len(self),), generator=generator)

    def __len__(self) -> int:
        return self.labels.size(0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._vectors[self.labels[index], self._choice[index]], self.images[index]
