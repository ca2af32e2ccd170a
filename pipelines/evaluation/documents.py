"""Find the documents and bytes of a stream of tokens."""

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipelines.dataset.documents import RecordedDocuments
from pipelines.dataset.reader import TokenDataset, TokenStream
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
    """int64 (N,): bytes of text before each token in the stream"""
    size: int
    """bytes of text in the stream"""

    @property
    def document_starts(self) -> np.ndarray:
        """Return the bytes of text before each document, and of the whole stream: int64 (documents + 1,)."""
        first = np.searchsorted(self.document, np.arange(self.documents))
        return np.append(self.start[first], self.size)


def known_byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of each token, int32 (V,); all 0 if the tokenizer loses text and so has no bytes per token."""
    if tokenizer.is_lossless:
        return np.asarray(tokenizer.token_byte_lengths)
    return np.zeros(tokenizer.vocab_size, np.int32)


def bits_per_original_byte(dataset: TokenDataset, split: str, bits_per_token: float) -> float:
    """Return the bits of a split per byte of its documents, for a tokenizer that loses text.

    Tokens that the last block leaves out count at the mean. Not the length of a code: case or accents are lost.
    """
    recorded = dataset.info["splits"][split]
    return float(bits_per_token * recorded["encoded_tokens"] / recorded["bytes"])


def text_of_stream(
    stream: TokenStream, tokenizer: Tokenizer, separator: int | None, recorded: RecordedDocuments | None = None
) -> StreamText:
    """Return the positions of documents and bytes in `stream`.

    Separators mark the documents, or without them the sizes in `recorded`. Without both, the stream is one document.
    """
    ids = stream.read(0, stream.tokens)
    lengths = known_byte_lengths(tokenizer).astype(np.int64)[ids]
    ends = np.cumsum(lengths)
    start = ends - lengths
    if separator is not None:
        document = np.maximum(np.cumsum(ids == separator, dtype=np.int32) - 1, 0)
    elif recorded is not None:
        document = np.searchsorted(np.cumsum(recorded.sizes)[:-1], start, side="right").astype(np.int32)
    else:
        document = np.zeros(len(ids), np.int32)
    return StreamText(document, int(document[-1]) + 1, start, int(ends[-1]))


def document_keys(
    stream: TokenStream, tokenizer: Tokenizer, text: StreamText, recorded: RecordedDocuments | None
) -> list[Key]:
    """Return the key of each document of a stream, from its record, or from its decoded bytes."""
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
