"""The tables that the encoding kernel needs to cut words into WordPiece tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.documents import as_readonly
from tokenizer.encoding.bulk import KernelTables
from tokenizer.encoding.merge_tables import table_rows
from tokenizer.kernels import pieces as kernel

if TYPE_CHECKING:
    from tokenizer.wordpiece import WordPieceVocabulary

TOKENS_PER_CALL = 1 << 16


class PieceTables(KernelTables):
    """Read-only tables of a WordPiece vocabulary that all threads share."""

    def __init__(self, vocabulary: WordPieceVocabulary):
        super().__init__(vocabulary.pattern)
        tokens = [vocabulary.prefix.encode(), *(token.encode() for token in vocabulary.ids)]
        offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
        np.cumsum([len(token) for token in tokens], out=offsets[1:])
        blob = as_readonly(np.frombuffer(b"".join(tokens), dtype=np.uint8))
        ids = np.array([kernel.NONE, *vocabulary.ids.values()], dtype=np.int32)
        edges = np.zeros(table_rows(len(blob)), dtype=np.uint64)
        finals = np.full(len(blob) + 1, kernel.NONE, dtype=np.int32)
        nodes, continuation = kernel.insert_pieces(blob, offsets, ids, edges, finals, 1)
        rules = np.array([continuation, vocabulary.ids[vocabulary.unknown], vocabulary.longest_word], dtype=np.int64)
        self.pieces = kernel.Pieces(edges, finals[:nodes], rules)

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        """Write the ids of the word data[start:end] to out[at:]. Return the end of the ids."""
        return at + int(kernel.cut_long_word(data, start, end, self.pieces, out, at))

    def long_parts(self, data: np.ndarray, start: int, end: int, check: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the ids of the word data[start:end] in one part."""
        out = np.empty(end - start, dtype=np.uint32)
        yield out[: self.encode_long(data, start, end, out, 0, check)]
