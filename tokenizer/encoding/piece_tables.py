"""The tables that the encoding kernel needs to cut words into WordPiece tokens or Unigram pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import as_readonly
from tokenizer.encoding.kernel_encoder import KernelTables
from tokenizer.encoding.long_pretokens import check_pretoken_size
from tokenizer.kernels import trie
from tokenizer.kernels import trie_words as kernel
from tokenizer.kernels.tools import align

if TYPE_CHECKING:
    from tokenizer.unigram_vocabulary import UnigramVocabulary
    from tokenizer.word_vocabulary import WordVocabulary
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary


class TrieTables(KernelTables):
    """Tables of a vocabulary whose tokens are in a trie."""

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        """Write the ids of the word data[start:end] to out[at:]. Return the end of the ids.

        ValueError for more than 2 GiB in a vocabulary with scores.
        """
        has_path = len(self.pieces.scores) > 0
        if has_path:
            check_pretoken_size(end - start)
        room = end - start + 1 if has_path else 0
        sums, path = np.empty(room), np.empty(room, dtype=np.int64)
        return at + int(kernel.encode_long_word(data, start, end, *self.pieces, sums, path, out, at))


def trie_of(tokens: Iterable[tuple[bytes, int]]) -> np.ndarray:
    """Return the `Pieces.units` of different tokens and their ids. ValueError if they need too much memory."""
    ordered = sorted(tokens)
    if not ordered:
        return np.zeros(trie.ROOT + trie.BYTES, dtype=np.uint64)
    blob = as_readonly(np.frombuffer(b"".join(token for token, _ in ordered), dtype=np.uint8))
    offsets = np.zeros(len(ordered) + 1, dtype=np.int64)
    np.cumsum([len(token) for token, _ in ordered], out=offsets[1:])
    ids = np.array([i for _, i in ordered], dtype=np.int64)
    words = (len(blob) + 4 * trie.BYTES) // 64  # of 64 units; more than enough unless many nodes have many children
    while True:
        if 64 * words > trie.MOST_UNITS:
            raise ValueError(f"the vocabulary is too large: its tokens have {len(blob):,} bytes together")
        units, queue = np.zeros(64 * words, dtype=np.uint64), np.empty((64 * words, 4), dtype=np.int32)
        taken, bases = np.zeros(words + 5, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
        used = trie.build(blob, offsets, ids, units, taken, bases, queue)
        if used >= 0:
            compact = align(used, 0)
            compact[:] = units[:used]
            return compact
        words *= 2


def _children_of(prefix: bytes, units: np.ndarray) -> int:
    """Return the base of the children of the node at the end of a prefix; `NO_CHILDREN` if there is no such node."""
    base = trie.ROOT
    for byte in prefix:
        unit = int(units[base + byte])
        if unit & trie.LABEL != trie.USED | byte:
            return trie.NO_CHILDREN
        base = unit >> trie.BASE_PLACE
    return base


class PieceTables(TrieTables):
    """Read-only tables of a vocabulary of WordPiece or of words that all threads share."""

    def __init__(self, vocabulary: WordPieceVocabulary | WordVocabulary):
        super().__init__(vocabulary.pattern)
        tokens = [(token.encode(), i) for token, i in vocabulary.ids.items() if token]
        units = trie_of(tokens)
        prefix = getattr(vocabulary, "continuation", vocabulary.prefix)
        continuation = trie.NO_CHILDREN if prefix is None else _children_of(prefix.encode(), units)
        unknown = vocabulary.ids[vocabulary.unknown]
        rules = np.array([continuation, unknown, vocabulary.longest_word], dtype=np.int64)
        self.pieces = kernel.Pieces(units, rules, np.zeros(0))


class UnigramTables(TrieTables):
    """Read-only tables of a Unigram vocabulary that all threads share."""

    def __init__(self, vocabulary: UnigramVocabulary):
        super().__init__(vocabulary.pattern)
        byte_ids = vocabulary.byte_ids or [kernel.NOTHING] * 256
        self.pieces = kernel.Pieces(
            trie_of((piece.encode(), i) for piece, i in vocabulary.matches.items()),
            np.array([vocabulary.unknown, vocabulary.sums_are_float32, *byte_ids], dtype=np.int64),
            np.array([*vocabulary.edge_scores, vocabulary.unknown_score]),
        )
