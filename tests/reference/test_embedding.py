"""Text embeddings: the same vector for a text each time, and from a description the same embedding again."""

import io

import pytest
import torch

from graphlint.errors import UsageError
from graphlint.reference.captions import HELD_OUT_CAPTIONS, TRAINING_CAPTIONS
from graphlint.reference.embedding import (
    HashingEmbedding,
    LatentSemanticEmbedding,
    TextEmbedding,
    embedding_from,
)

CORPUS = [text for texts in TRAINING_CAPTIONS.values() for text in texts]
HELD_OUT = [text for texts in HELD_OUT_CAPTIONS.values() for text in texts]


@pytest.fixture(scope="module")
def fitted() -> LatentSemanticEmbedding:
    return LatentSemanticEmbedding.fit(CORPUS)


@pytest.fixture(params=["latent-semantic", "hashing"])
def embedding(request, fitted) -> TextEmbedding:
    return fitted if request.param == "latent-semantic" else HashingEmbedding(64)


def test_vectors_have_the_shape_and_the_length_that_is_said(embedding):
    vectors = embedding.embed(CORPUS)
    assert vectors.shape == (len(CORPUS), embedding.dimension)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(CORPUS)))


def test_texts_beside_it_do_not_change_a_vector(embedding):
    together = embedding.embed(HELD_OUT)
    alone = torch.cat([embedding.embed([text]) for text in HELD_OUT])
    assert torch.equal(together, alone)


def test_no_texts_are_no_vectors(embedding):
    assert embedding.embed([]).shape == (0, embedding.dimension)


def test_a_described_embedding_comes_back_from_a_file_to_the_bit(embedding):
    file = io.BytesIO()
    torch.save(embedding.describe(), file)
    file.seek(0)
    again = embedding_from(torch.load(file, weights_only=True))
    assert type(again) is type(embedding)
    assert again.dimension == embedding.dimension
    assert torch.equal(again.embed(CORPUS + HELD_OUT), embedding.embed(CORPUS + HELD_OUT))
    assert torch.equal(embedding_from(again.describe()).embed(HELD_OUT), embedding.embed(HELD_OUT))


def test_equal_corpora_teach_equal_embeddings(fitted):
    assert torch.equal(LatentSemanticEmbedding.fit(CORPUS).embed(HELD_OUT), fitted.embed(HELD_OUT))
    other = LatentSemanticEmbedding.fit(CORPUS[:60])
    assert not torch.equal(other.embed(HELD_OUT), fitted.embed(HELD_OUT))


def test_a_caption_that_was_kept_back_lies_nearest_to_one_of_its_digit(fitted):
    alike = fitted.embed(HELD_OUT) @ fitted.embed(CORPUS).T
    nearest = alike.argmax(dim=1) // len(TRAINING_CAPTIONS[0])
    digits = torch.arange(10).repeat_interleave(len(HELD_OUT_CAPTIONS[0]))
    assert torch.equal(nearest, digits)


def test_a_numeral_counts_as_a_word(embedding):
    three, eight = embedding.embed(["3", "8"])
    assert three.any()
    assert eight.any()
    assert not torch.equal(three, eight)


def test_a_text_with_nothing_known_is_zeros(fitted):
    assert not fitted.embed(["жжж щщ", ""]).any()


@pytest.mark.parametrize("dimension", [0, 3, 300])
def test_more_dimensions_than_the_corpus_has_are_refused(dimension):
    with pytest.raises(UsageError, match=f"1 to 2 dimensions, not in {dimension}"):
        LatentSemanticEmbedding.fit(["a seven", "an eight", "a nine"], dimension)


@pytest.mark.parametrize("description", [{"kind": "word2vec"}, {}])
def test_another_kind_is_refused_with_the_known_ones(description):
    with pytest.raises(UsageError, match="latent-semantic and hashing"):
        embedding_from(description)
