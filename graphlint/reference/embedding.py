"""Turns captions into vectors, by scikit-learn's text pipeline or by anything else that has `embed`.

Imports torch, and scikit-learn as soon as an embedding is made.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from graphlint.errors import UsageError

Description = Mapping[str, Any]
"""Rebuilds an embedding: its `kind`, and plain values and tensors only, so that a checkpoint can hold it."""

DIMENSION = 32


class TextEmbedding(Protocol):
    """What a data set and `graphlint reference sample` ask of an embedding; any class with these will do."""

    @property
    def dimension(self) -> int:
        """Returns the length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Returns a vector for each text, always the same one: `(texts, dimension)`, float32, on the CPU."""
        ...

    def describe(self) -> Description:
        """Returns what the same embedding can be made from again."""
        ...


class LatentSemanticEmbedding:
    """TF-IDF of words and of the characters within words, reduced by a truncated SVD, to length 1.

    `describe()` holds what the corpus has taught it, so a rebuilt embedding is the same to the last bit,
    whichever solver the scikit-learn has that rebuilds it.
    """

    KIND = "latent-semantic"

    def __init__(self, vectorizers: Sequence[Any], components: Tensor) -> None:
        self._vectorizers = tuple(vectorizers)
        self._components = components

    @classmethod
    def fit(cls, corpus: Sequence[str], dimension: int = DIMENSION) -> Self:
        """Returns the embedding that a corpus teaches; equal corpora teach equal embeddings.

        Raises:
            UsageError: The corpus has too few texts or too few different words for so many dimensions.
        """
        from sklearn.decomposition import TruncatedSVD

        vectorizers = [_vectorizer(analyzer) for analyzer in _NGRAMS]
        features = torch.cat([_dense(vectorizer.fit_transform(corpus)) for vectorizer in vectorizers], dim=1)
        most = min(features.shape) - 1
        if not 1 <= dimension <= most:
            texts = f"{len(corpus)} texts with {features.size(1)} features"
            raise UsageError(f"{texts} can be embedded in 1 to {most} dimensions, not in {dimension}")
        svd = TruncatedSVD(dimension, algorithm="arpack", random_state=0).fit(features.numpy())
        return cls(vectorizers, torch.from_numpy(svd.components_.copy()))

    @classmethod
    def rebuild(cls, description: Description) -> Self:
        """Returns the embedding that was described."""
        vectorizers = []
        for analyzer, learnt in description["vectorizers"].items():
            vectorizer = _vectorizer(analyzer, vocabulary=learnt["vocabulary"])
            vectorizer.idf_ = learnt["idf"].numpy()
            vectorizers.append(vectorizer)
        return cls(vectorizers, description["components"])

    @property
    def dimension(self) -> int:
        """Returns the length of a vector."""
        return self._components.size(0)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Returns a vector of length 1 for each text, of zeros where the text has nothing known in it."""
        if not texts:
            return torch.empty(0, self.dimension)
        features = torch.cat([_dense(vectorizer.transform(texts)) for vectorizer in self._vectorizers], dim=1)
        # One row at a time: a product of matrices may round differently with other texts beside this one.
        rows = torch.stack([self._components @ row for row in features])
        return functional.normalize(rows, dim=1).float()

    def describe(self) -> Description:
        """Returns the kind, each vectorizer's vocabulary and weights, and the components of the SVD."""
        vectorizers = {
            vectorizer.analyzer: {
                "vocabulary": [str(feature) for feature in vectorizer.get_feature_names_out()],
                "idf": torch.from_numpy(vectorizer.idf_.copy()),
            }
            for vectorizer in self._vectorizers
        }
        return {"kind": self.KIND, "vectorizers": vectorizers, "components": self._components}


class HashingEmbedding:
    """Words and pairs of words, hashed to a fixed number of places: needs no corpus, and forgets no word."""

    KIND = "hashing"

    def __init__(self, dimension: int = 256) -> None:
        self._dimension = dimension

    @classmethod
    def rebuild(cls, description: Description) -> Self:
        """Returns the embedding that was described."""
        return cls(description["dimension"])

    @property
    def dimension(self) -> int:
        """Returns the length of a vector."""
        return self._dimension

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Returns a vector of length 1 for each text, of zeros for an empty one."""
        from sklearn.feature_extraction.text import HashingVectorizer

        if not texts:
            return torch.empty(0, self.dimension)
        vectorizer = HashingVectorizer(n_features=self._dimension, token_pattern=_WORD)
        return _dense(vectorizer.transform(texts)).float()

    def describe(self) -> Description:
        """Returns the kind and the dimension."""
        return {"kind": self.KIND, "dimension": self._dimension}


def embedding_from(description: Description) -> TextEmbedding:
    """Returns the embedding of this package that was described.

    Raises:
        UsageError: It is of another kind; who made it has to rebuild it.
    """
    kinds = (LatentSemanticEmbedding, HashingEmbedding)
    asked = description.get("kind")
    for known in kinds:
        if asked == known.KIND:
            return known.rebuild(description)
    names = " and ".join(known.KIND for known in kinds)
    raise UsageError(f"there is no text embedding of the kind {asked!r} here; those known are {names}")


_WORD = r"\b\w+\b"
"""scikit-learn's own pattern leaves out words of one letter, such as 7."""

_NGRAMS = MappingProxyType({"word": (1, 1), "char_wb": (2, 4)})


def _vectorizer(analyzer: str, vocabulary: list[str] | None = None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        analyzer=analyzer,
        ngram_range=_NGRAMS[analyzer],
        token_pattern=_WORD if analyzer == "word" else None,
        sublinear_tf=True,
        vocabulary=vocabulary,
    )


def _dense(matrix: Any) -> Tensor:
    """Returns a sparse matrix of SciPy's as a tensor, `(texts, features)`, float64."""
    return torch.from_numpy(matrix.toarray())
