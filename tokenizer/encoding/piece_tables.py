"""The tables that the encoding kernel needs to cut words into WordPiece tokens or Unigram pieces."""

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
    from tokenizer.unigram import UnigramVocabulary
    from tokenizer.wordpiece import WordPieceVocabulary


class TrieTables(KernelTables):
    """Tables of a vocabulary whose tokens are in a trie."""

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        """Write the ids of the word data[start:end] to out[at:]. Return the end of the ids."""
        room = end - start + 1 if len(self.pieces.scores) else 0
        path = (np.empty(room), np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32))
        return at + int(kernel.encode_long_word(data, start, end, *self.pieces, *path, out, at))

    def long_parts(self, data: np.ndarray, start: int, end: int, check: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the ids of the word data[start:end] in one part."""
        out = np.empty(end - start, dtype=np.uint32)
        yield out[: self.encode_long(data, start, end, out, 0, check)]


def trie_of(tokens: list[tuple[bytes, int]], root: int, prefix: bytes = b"") -> tuple[np.ndarray, int]:
    """Return `Pieces.edges` for tokens and their ids, all below `root`, and the node of a prefix of tokens."""
    tokens = sorted(tokens, key=lambda entry: len(entry[0]))
    paths = [*(token for token, _ in tokens), prefix]
    ids = np.array([*(i for _, i in tokens), kernel.NOT_A_TOKEN], dtype=np.int32)
    offsets = np.zeros(len(paths) + 1, dtype=np.int64)
    np.cumsum([len(path) for path in paths], out=offsets[1:])
    blob = as_readonly(np.frombuffer(b"".join(paths), dtype=np.uint8))
    # Tokens share edges, so a table with room for all bytes is too large for the cache. This one only counts the edges.
    edges = np.zeros(table_rows(len(blob)), dtype=np.uint64)
    kernel.insert_pieces(blob, offsets, ids, root, edges)
    edges = aligned(table_rows(int(np.count_nonzero(edges))), 0)
    return edges, int(kernel.insert_pieces(blob, offsets, ids, root, edges))


class PieceTables(TrieTables):
    """Read-only tables of a WordPiece vocabulary that all threads share."""

    def __init__(self, vocabulary: WordPieceVocabulary):
        super().__init__(vocabulary.pattern)
        tokens = [(token.encode(), i) for token, i in vocabulary.ids.items()]
        edges, continuation = trie_of(tokens, vocabulary.size, vocabulary.prefix.encode())
        unknown = vocabulary.ids[vocabulary.unknown]
        rules = np.array([vocabulary.size, continuation, unknown, vocabulary.longest_word], dtype=np.int64)
        self.pieces = kernel.Pieces(edges, rules, np.zeros(0))


class UnigramTables(TrieTables):
    """Read-only tables of a Unigram vocabulary that all threads share."""

    def __init__(self, vocabulary: UnigramVocabulary):
        super().__init__(vocabulary.pattern)
        root = len(vocabulary.pieces)
        edges, _ = trie_of([(piece.encode(), i) for piece, i in vocabulary.matches.items()], root)
        byte_ids = vocabulary.byte_ids or [kernel.NOTHING] * 256
        self.pieces = kernel.Pieces(
            edges,
            np.array([root, vocabulary.unknown, vocabulary.sums_are_float32, *byte_ids], dtype=np.int64),
            np.array([*vocabulary.edge_scores, vocabulary.unknown_score]),
        )
