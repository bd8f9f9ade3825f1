"""The captioned digits: every item right, every epoch its own captions, and the same ones each time."""

import pytest
import torch
from torch.utils.data import DataLoader

from graphlint.errors import UsageError
from graphlint.reference.captions import HELD_OUT_CAPTIONS, HELD_OUT_TEMPLATES, TRAINING_CAPTIONS
from graphlint.reference.data import CaptionedDigits, load_digits
from graphlint.reference.embedding import HashingEmbedding


@pytest.fixture(scope="module")
def digits() -> CaptionedDigits:
    return CaptionedDigits()


def texts_of(dataset: CaptionedDigits) -> torch.Tensor:
    return torch.stack([dataset[index][0] for index in range(len(dataset))])


def words(captions) -> list[set[str]]:
    return [set(text.lower().split()) for texts in captions.values() for text in texts]


def test_the_images_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits as original

    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (-1, 1)
    assert labels.tolist() == original().target.tolist()
    assert torch.equal((images[5, 0] + 1) * 8, torch.from_numpy(original().images[5]).float())


def test_an_item_is_a_caption_of_its_digit_and_the_image(digits):
    for index in range(0, len(digits), 97):
        vector, image = digits[index]
        known = digits.embedding.embed(TRAINING_CAPTIONS[int(digits.labels[index])])
        assert any(torch.equal(vector, row) for row in known)
        assert torch.equal(image, digits.images[index])
        assert (vector.dtype, image.shape) == (torch.float32, (1, 8, 8))


def test_the_epoch_and_the_seed_decide_the_captions(digits):
    digits.set_epoch(3)
    third = texts_of(digits)
    digits.set_epoch(4)
    fourth = texts_of(digits)
    digits.set_epoch(3)
    assert torch.equal(texts_of(digits), third)
    assert 0.05 < (third == fourth).all(dim=1).double().mean() < 0.15  # by chance one in twelve
    again, other = CaptionedDigits(digits.embedding), CaptionedDigits(digits.embedding, seed=1)
    for dataset in (again, other):
        dataset.set_epoch(3)
    assert torch.equal(texts_of(again), third)
    assert not torch.equal(texts_of(other), third)


def test_every_caption_is_met(digits):
    digits.set_epoch(0)
    vectors = texts_of(digits)
    for digit, captions in TRAINING_CAPTIONS.items():
        met = {tuple(row.tolist()) for row in vectors[digits.labels == digit]}
        assert len(met) == len(captions)


def test_the_global_random_state_is_left_alone(digits):
    before = torch.get_rng_state()
    CaptionedDigits(digits.embedding).set_epoch(9)
    assert torch.equal(torch.get_rng_state(), before)


def test_held_out_captions_are_never_trained_on(digits):
    trained = {text.lower() for texts in TRAINING_CAPTIONS.values() for text in texts}
    held_out = {text.lower() for texts in HELD_OUT_CAPTIONS.values() for text in texts}
    assert len(trained) == 10 * len(TRAINING_CAPTIONS[0])
    assert len(held_out) == 10 * len(HELD_OUT_TEMPLATES)
    assert trained & held_out == set()
    # Nor the same words in another order.
    assert [bag for bag in words(HELD_OUT_CAPTIONS) if bag in words(TRAINING_CAPTIONS)] == []
    vectors = digits.embedding.embed(sorted(held_out))
    assert not (vectors[:, None] == digits.embedding.embed(sorted(trained))[None]).all(dim=2).any()


def test_captions_are_english():
    assert "a picture of an eight" in TRAINING_CAPTIONS[8]
    assert "a picture of a one" in TRAINING_CAPTIONS[1]
    assert "please draw me a seven" in HELD_OUT_CAPTIONS[7]


def test_the_last_batch_is_short(digits):
    sizes = [len(images) for _, images in DataLoader(digits, batch_size=64)]
    assert sizes == [64] * 28 + [5]


def test_other_captions_and_another_embedding_are_taken():
    captions = {digit: [f"{digit}", f"number {digit}"] for digit in range(10)}
    dataset = CaptionedDigits(HashingEmbedding(512), captions=captions)
    vector, _ = dataset[0]
    assert vector.shape == (512,)
    assert any(torch.equal(vector, row) for row in dataset.embedding.embed(captions[0]))


@pytest.mark.parametrize(
    "captions",
    [
        {digit: ["x"] for digit in range(9)},
        {digit: ["x"] for digit in range(11)},
        {digit: ["x"] * (1 + (digit == 4)) for digit in range(10)},
        {digit: [] for digit in range(10)},
    ],
)
def test_captions_that_leave_a_digit_out_are_refused(captions):
    with pytest.raises(UsageError, match="each digit from 0 to 9"):
        CaptionedDigits(HashingEmbedding(8), captions=captions)
