"""Texts to ids, by whatever is quickest: plain Python while they are few and short, from then on the kernels."""

from __future__ import annotations

from functools import cached_property

from tokenizer.short import ShortEncoder
from tokenizer.text import nfc, nfc_block
from tokenizer.vocabulary import Vocabulary

# A program that encodes a short text needs none of these, and they take longer to import than its work does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.documents import Block
    from tokenizer.encoding import EncoderPool


class TextEncoder:
    """The ids of texts in which special tokens are text like any other. Threads may share it."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        # Gives way to the pool once that is there.
        self.short: ShortEncoder | None = ShortEncoder(vocabulary)

    def to_list(self, data: bytes) -> list[int]:
        """The ids of one text."""
        if self._vocabulary.normalizer is not None:
            data = nfc(data)
        short = self.short
        if short is not None and short.takes(len(data)):
            return short.encode(data)
        return self._pool.encode_to_list(data)

    def to_arrays(self, block: Block, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all documents, uint32, and where each document's begin, int64 (documents + 1,)."""
        from tokenizer.workers import thread_count

        threads = thread_count(threads)
        if self._vocabulary.normalizer is not None:
            block = nfc_block(block)
        return self._pool.encode(block, threads)

    def warm_up(self, threads: int | None) -> None:
        """Have what `to_arrays` needs ready."""
        from tokenizer.workers import thread_count

        self._pool.warm_up(thread_count(threads))

    @cached_property
    def _pool(self) -> EncoderPool:
        from tokenizer.encoding import EncoderPool

        self.short = None
        return EncoderPool(self._vocabulary)
