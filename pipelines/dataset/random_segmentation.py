"""Random segmentations of the training documents: subword regularization (Kudo, 2018) and BPE dropout.

The ids of a document depend only on the seed and its bytes, not on its place in the corpus or the process that encodes
it. A dataset has one segmentation of each document; a dataset with another seed has another.
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from pipelines.dataset.arrow import text_of
from tokenizer import Tokenizer


def check_sample(sample: float | None) -> None:
    """Raise ValueError if `sample` is out of range."""
    if sample is not None and not 0 <= sample < float("inf"):
        raise ValueError(f"`sample` is {sample}, but must be a number of at least 0, such as 0.1")


class SamplingEncoder:
    """Encodes documents with random segmentations, on one thread. Give `sample` or `dropout`.

    sample: the inverse temperature of `Tokenizer.encode_sampled` (Unigram).
    dropout: the probability of `Tokenizer.encode_with_dropout` (BPE).
    described: the entry `sampling` of dataset.json

    Raises ValueError for a number out of range, and for a tokenizer of another kind.
    """

    def __init__(self, tokenizer: Tokenizer, *, sample: float | None = None, dropout: float = 0, seed: int = 0) -> None:
        if sample is not None and dropout:
            raise ValueError("give only one of `sample` and `dropout`")
        check_sample(sample)
        self._tokenizer, self._sample, self._dropout, self._seed = tokenizer, sample, dropout, seed
        drawn = {"dropout": dropout} if sample is None else {"sample": sample}
        self.described: dict[str, float] = {**drawn, "seed": seed}
        self._encode(b"")

    def cuts(self, text: memoryview, piece_bytes: int) -> list[int]:
        """Return byte offsets at which a long document is cut, as `Tokenizer.cuts` does.

        Each piece is sampled independently.
        """
        return self._tokenizer.cuts(text, piece_bytes)

    def encode_arrow(self, column: pa.Array, threads: int | None = None) -> pa.LargeListArray:
        """Return the ids of an Arrow array of documents, as `Tokenizer.encode_arrow` does. `threads` has no effect."""
        text, lengths = text_of(column)
        ends = np.cumsum(lengths).tolist()
        ids = [self._encode(text[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate([*ids, []]).astype(np.uint32)))

    def encode_in_parts(self, text: memoryview) -> Iterator[np.ndarray]:
        """Yield the ids of a document, uint32, as `Tokenizer.encode_in_parts` does."""
        yield self._encode(text)

    def _encode(self, text: memoryview | bytes) -> np.ndarray:
        digest = blake2b(str(self._seed).encode(), digest_size=16, person=b"bytelm sampling")
        digest.update(b"\n")
        digest.update(text)
        seed = int.from_bytes(digest.digest())
        if self._sample is None:
            ids = self._tokenizer.encode_with_dropout(bytes(text), self._dropout, seed, (), ())
        else:
            ids = self._tokenizer.encode_sampled(bytes(text), self._sample, seed, (), ())
        return np.array(ids, np.uint32)
