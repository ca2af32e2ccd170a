"""Find the documents and bytes of a stream of tokens."""

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipelines.dataset.document_records import RecordedDocuments
from pipelines.dataset.reader import TokenStream
from tokenizer import Tokenizer

Key = tuple[bytes, int]
"""SHA-256 of a document, and the number of equal documents before it"""


@dataclass(frozen=True)
class StreamText:
    """The documents and bytes of a stream of N tokens."""

    document: np.ndarray
    """int32 (N,): number of the document of each token; a separator belongs to the document after it"""
    documents: int
    start: np.ndarray
    """(N,): bytes of text before each token in the stream; int64, or float64 if the tokenizer loses text"""
    size: float
    """bytes of text in the stream"""

    @property
    def document_starts(self) -> np.ndarray:
        """Return the bytes of text before each document, and of the whole stream: (documents + 1,)."""
        first = np.searchsorted(self.document, np.arange(self.documents))
        return np.append(self.start[first], self.size)

    @property
    def sizes(self) -> np.ndarray:
        """Return the bytes of each token: (N,)."""
        return np.diff(self.start, append=self.size)


def known_byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of each token, int32 (V,); all 0 if the tokenizer loses text, which leaves them unknown."""
    if tokenizer.is_lossless:
        return np.asarray(tokenizer.token_byte_lengths)
    return np.zeros(tokenizer.vocab_size, np.int32)


def text_of_stream(
    stream: TokenStream,
    tokenizer: Tokenizer,
    separator: int | None,
    recorded: RecordedDocuments | None = None,
    bytes_per_token: float = 0.0,
) -> StreamText:
    """Return the positions of documents and bytes in `stream`.

    The documents are those in `recorded`, or begin at separators. Without both, the stream is one document. If the
    tokenizer loses text, the original bytes of a document are divided equally among its tokens, without the separator.
    Without a record, a stream of N tokens has N * `bytes_per_token` bytes, divided equally among all but separators.
    """
    ids = stream.read(0, stream.tokens)
    if recorded is not None:
        document = np.repeat(np.arange(len(recorded.tokens), dtype=np.int32), recorded.tokens)[: len(ids)]
    elif separator is not None:
        document = np.maximum(np.cumsum(ids == separator, dtype=np.int32) - 1, 0)
    else:
        document = np.zeros(len(ids), np.int32)
    if tokenizer.is_lossless:
        lengths = tokenizer.token_byte_lengths[ids].astype(np.int64)
    else:
        separates = ids == separator
        if recorded is not None:
            shares = recorded.sizes / np.maximum(1, recorded.tokens - (separator is not None))
        else:
            share = bytes_per_token * len(ids) / max(1, int((~separates).sum()))
            shares = np.full(int(document[-1]) + 1, share)
        lengths = np.where(separates, 0.0, shares[document])
    ends = np.cumsum(lengths)
    return StreamText(document, int(document[-1]) + 1, ends - lengths, ends[-1].item())


def document_keys(
    stream: TokenStream, tokenizer: Tokenizer, text: StreamText, recorded: RecordedDocuments | None
) -> list[Key]:
    """Return the key of each document of a stream, from its record or else from its decoded bytes.

    Raises ValueError if there is no record and the tokenizer loses text.
    """
    if recorded is None and not tokenizer.is_lossless:
        raise ValueError(
            "the documents cannot be paired: the tokenizer loses text, and this split has no record of its documents "
            "(build-dataset writes one for every split but train)"
        )
    hashes = recorded.hashes if recorded is not None else _decoded_hashes(stream, tokenizer, text)
    seen: Counter[bytes] = Counter()
    keys = []
    for digest in hashes[: text.documents]:
        keys.append((digest, seen[digest]))
        seen[digest] += 1
    return keys


def _decoded_hashes(stream: TokenStream, tokenizer: Tokenizer, text: StreamText) -> list[bytes]:
    ids, ordinary = stream.read(0, stream.tokens), tokenizer.ordinary
    cuts = np.searchsorted(text.document, np.arange(1, text.documents))
    parts = (part[ordinary[part]] for part in np.split(ids, cuts))
    return [hashlib.sha256(tokenizer.decode_bytes(part)).digest() for part in parts]
