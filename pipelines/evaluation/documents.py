"""The documents of a stream of tokens, and its bytes."""

from dataclasses import dataclass

import numpy as np

from pipelines.dataset.reader import TokenStream
from tokenizer import Tokenizer


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


def text_of_stream(stream: TokenStream, tokenizer: Tokenizer, separator: int | None) -> StreamText:
    """Return where documents and bytes of `stream` are. Without separators the stream is one document."""
    ids = stream.read(0, stream.tokens)
    lengths = np.asarray(tokenizer.token_byte_lengths, np.int64)[ids]
    ends = np.cumsum(lengths)
    document = np.zeros(len(ids), np.int32)
    if separator is not None:
        document = np.maximum(np.cumsum(ids == separator, dtype=np.int32) - 1, 0)
    return StreamText(document, int(document[-1]) + 1, ends - lengths, int(ends[-1]))
