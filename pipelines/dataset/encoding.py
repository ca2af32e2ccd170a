"""Documents to the stream of token ids that blocks cut: a separator and a document, for every document in order.

The separator is `<|endoftext|>`. If a published tokenizer lacks it, the separator is the token that ends its texts,
such as BERT's [SEP] (`Tokenizer.end_of_text`).

Training documents may have random segmentations: subword regularization (Kudo, 2018) or BPE dropout. Then the ids of a
document depend only on the seed and its bytes, not on its place in the corpus or the process that encodes it. A dataset
has one segmentation of each document; a dataset with another seed has another.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from pipelines.dataset.arrow import text_of
from tokenizer import END_OF_TEXT, Tokenizer

# Tokens of an Arrow record batch: each is one numpy view, and must fit in memory.
BATCH_TOKENS = 1 << 22

# A document longer than a group is encoded one group of pieces at a time.
PIECE_BYTES = 1 << 20
GROUP_BYTES = 1 << 24


def check_alpha(alpha: float | None) -> None:
    """Raise ValueError if `alpha` is out of range."""
    if alpha is not None and not 0 <= alpha < float("inf"):
        raise ValueError(f"`alpha` is {alpha}, but must be a number of at least 0, such as 0.1")


class SamplingEncoder:
    """Encodes documents with random segmentations, on one thread. Give `alpha` or `dropout`.

    alpha: the inverse temperature of `Tokenizer.encode_sampled` (Unigram).
    dropout: the probability of `Tokenizer.encode_with_dropout` (BPE).
    described: the entry `sampling` of dataset.json

    Raises ValueError for a number out of range, and for a tokenizer of another kind.
    """

    def __init__(self, tokenizer: Tokenizer, *, alpha: float | None = None, dropout: float = 0, seed: int = 0) -> None:
        if alpha is not None and dropout:
            raise ValueError("give only one of `alpha` and `dropout`")
        check_alpha(alpha)
        self._tokenizer, self._alpha, self._dropout, self._seed = tokenizer, alpha, dropout, seed
        drawn = {"dropout": dropout} if alpha is None else {"alpha": alpha}
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
        if self._alpha is None:
            ids = self._tokenizer.encode_with_dropout(bytes(text), self._dropout, seed, (), ())
        else:
            ids = self._tokenizer.encode_sampled(bytes(text), self._alpha, seed, (), ())
        return np.array(ids, np.uint32)


def separator_of(tokenizer: Tokenizer) -> int:
    """Return the id of the token before every document; ValueError if the tokenizer has none."""
    end = tokenizer.end_of_text
    if end is None:
        raise ValueError(
            f"the tokenizer has no special token {END_OF_TEXT} to put before each document: train one that has it, or "
            "build without separators (`separator=False`)"
        )
    return end


def encode_batch(
    batch: pa.RecordBatch,
    encoder: Tokenizer | SamplingEncoder,
    separator_id: int | None,
    threads: int | None,
    add: Callable[[np.ndarray], None],
    progress: Callable[[int], None],
) -> np.ndarray:
    """Pass the stream of a batch to `add`, in parts, and return the tokens of each document: int64 (N,).

    `progress` is called with the bytes of text encoded since the last call.
    """
    starts_of_documents, total = [], 0
    for pieces, begins in _pieces(batch.column(0), encoder):
        for ids, starts in _encode(pieces, begins, encoder, threads):
            starts_of_documents.append(total + starts + np.arange(len(starts)) * (separator_id is not None))
            for part in _with_separators(ids, starts, separator_id):
                add(part)
                total += len(part)
        progress(len(text_of(pieces)[0]))
    return np.diff(np.concatenate(starts_of_documents), append=total)


def _pieces(column: pa.Array, encoder: Tokenizer | SamplingEncoder) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yield the documents of a batch, and a mask of those that begin a document: all, unless a long one is cut.

    A long document is alone in its batch. It is cut where that does not change its ids, so that all threads encode
    it, and its ids are never all in memory at once.
    """
    text, lengths = text_of(column)
    if len(lengths) != 1 or len(text) <= GROUP_BYTES:
        yield column, np.ones(len(lengths), bool)
        return
    data = pa.py_buffer(text)
    offsets = np.array([0, *encoder.cuts(text, PIECE_BYTES), len(text)], np.int64)
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + GROUP_BYTES, side="right")) - 1)
        ends = np.ascontiguousarray(offsets[first : last + 1])
        begins = np.zeros(len(ends) - 1, bool)
        begins[0] = first == 0
        yield pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(begins), [None, pa.py_buffer(ends), data]), begins
        first = last


def _encode(
    pieces: pa.Array, begins: np.ndarray, encoder: Tokenizer | SamplingEncoder, threads: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of the pieces, and the indices among these ids at which documents start."""
    text, lengths = text_of(pieces)
    if len(lengths) == 1 and len(text) > GROUP_BYTES:  # it cannot be cut
        starts = np.zeros(np.count_nonzero(begins), np.int64)
        for ids in encoder.encode_in_parts(text):
            yield ids, starts
            starts = starts[:0]
        return
    encoded = encoder.encode_arrow(pieces, threads=threads)
    offsets = encoded.offsets.to_numpy()
    yield encoded.values.to_numpy()[offsets[0] : offsets[-1]], (offsets[:-1] - offsets[0])[begins]


def _with_separators(ids: np.ndarray, starts: np.ndarray, separator_id: int | None) -> Iterator[np.ndarray]:
    """Yield `ids` with a separator, if any, inserted before each of the indices `starts`, which ascend.

    Parts of BATCH_TOKENS keep the copies small.
    """
    if separator_id is None:
        yield ids
        return
    for first in range(0, max(1, len(ids)), BATCH_TOKENS):
        stop = first + BATCH_TOKENS
        last = len(starts) if stop >= len(ids) else np.searchsorted(starts, stop)
        inside = starts[np.searchsorted(starts, first) : last]
        yield np.insert(ids[first:stop], inside - first, separator_id)
