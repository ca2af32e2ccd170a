"""The tables that the encoding kernel needs to cut words into WordPiece tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.documents import as_readonly
from tokenizer.encoding.bulk import KernelTables
from tokenizer.encoding.merge_tables import table_rows
from tokenizer.kernels import pieces as kernel
from tokenizer.kernels.tools import aligned

if TYPE_CHECKING:
    from tokenizer.wordpiece import WordPieceVocabulary


class PieceTables(KernelTables):
    """Read-only tables of a WordPiece vocabulary that all threads share."""

    def __init__(self, vocabulary: WordPieceVocabulary):
        super().__init__(vocabulary.pattern)
        tokens = sorted(((token.encode(), i) for token, i in vocabulary.ids.items()), key=lambda entry: len(entry[0]))
        paths = [*(token for token, _ in tokens), vocabulary.prefix.encode()]
        ids = np.array([*(i for _, i in tokens), kernel.NOT_A_TOKEN], dtype=np.int32)
        offsets = np.zeros(len(paths) + 1, dtype=np.int64)
        np.cumsum([len(path) for path in paths], out=offsets[1:])
        blob = as_readonly(np.frombuffer(b"".join(paths), dtype=np.uint8))
        root = vocabulary.size
        # Paths share their first edges, so a table for all bytes is too large for the cache. It only counts the edges.
        edges = np.zeros(table_rows(len(blob)), dtype=np.uint64)
        kernel.insert_pieces(blob, offsets, ids, root, edges)
        edges = aligned(table_rows(int(np.count_nonzero(edges))), 0)
        continuation = kernel.insert_pieces(blob, offsets, ids, root, edges)
        unknown = vocabulary.ids[vocabulary.unknown]
        rules = np.array([root, continuation, unknown, vocabulary.longest_word], dtype=np.int64)
        self.pieces = kernel.Pieces(edges, rules)

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        """Write the ids of the word data[start:end] to out[at:]. Return the end of the ids."""
        return at + int(kernel.cut_long_word(data, start, end, self.pieces, out, at))

    def long_parts(self, data: np.ndarray, start: int, end: int, check: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the ids of the word data[start:end] in one part."""
        out = np.empty(end - start, dtype=np.uint32)
        yield out[: self.encode_long(data, start, end, out, 0, check)]
