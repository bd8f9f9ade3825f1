"""The order in which a run meets the items, which the seed and the epoch decide; imports torch.

Nothing of it is kept in a random state, so a resumed run knows it from the epoch and the batch alone.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


def epoch_seed(seed: int, epoch: int) -> int:
    """Returns a seed below 2**63 that other seeds and epochs don't share, nor `seed + epoch` of anyone's."""
    digest = hashlib.sha256(f"order of items, seed {seed}, epoch {epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class EpochBatches(Sampler[list[int]]):
    """The batches of one epoch, from one of them on; the last holds what is left, and may be shorter.

    Args:
        items: how many items there are.
        batch_size: items of a full batch.
        seed, epoch: decide the order.
        first: the batch to begin with, counted from 0.
    """

    def __init__(self, items: int, batch_size: int, *, seed: int, epoch: int, first: int = 0) -> None:
        self._items = items
        self._batch_size = batch_size
        self._seed = epoch_seed(seed, epoch)
        self._first = first

    def __len__(self) -> int:
        return max(0, -(-self._items // self._batch_size) - self._first)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self._items, generator=torch.Generator().manual_seed(self._seed)).tolist()
        for start in range(self._first * self._batch_size, self._items, self._batch_size):
            yield order[start : start + self._batch_size]
