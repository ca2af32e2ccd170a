"""How many of its first merges a vocabulary trained without rare pretokens shares with one of the whole corpus.

Training merges the pair with the largest count. Leaving out pretokens lowers the counts of their pairs, so another pair
may come first. Here all pretokens go through the first merges: as long as each merged pair has a larger count than any
other pair, training on all pretokens makes the same merges. Pretokens go through in batches, so memory does not grow
with the corpus.
"""

from __future__ import annotations

import numpy as np

from tokenizer.training.count_table import Counted
from tokenizer.training.counting import PretokenCounts
from tokenizer.training.replay import pairs_at, replace
from tokenizer.training.spilling import batches
from tokenizer.vocabulary import Vocabulary


def exact_merges(
    counts: PretokenCounts, vocabulary: Vocabulary, most: int, *, max_token_length: int | None = None
) -> int:
    """Return how many of the first `most` merges training on `counts` certainly makes too, in the same order.

    A merge is certain if its pair has a larger count than any other pair. A tie is uncertain, and so is every later
    merge. max_token_length: the limit used in training, in bytes.
    """
    spelled = vocabulary.merge_pairs[:most]
    symbols = [bytes([byte]) for byte in range(256)] + [left + right for left, right in spelled]
    numbers = {token: number for number, token in enumerate(symbols)}
    merges = [(numbers[left], numbers[right]) for left, right in spelled]
    changes = _Changes(len(symbols), merges)
    for data, offsets, occurrences in batches(Counted(counts.data, counts.offsets, counts.counts)):
        changes.add(data[offsets[0] : offsets[-1]], np.diff(offsets), occurrences)
    lengths = np.array([len(token) for token in symbols])
    too_long = lengths[:, None] + lengths > (max_token_length or lengths.max() * 2)
    pairs = np.zeros((len(symbols), len(symbols)), np.int64)
    changes.apply(0, pairs)
    for made, pair in enumerate(merges):
        others = np.where(too_long, 0, pairs)
        others[pair] = 0
        if pairs[pair] <= others.max():
            return made
        changes.apply(made + 1, pairs)
    return len(merges)


class _Changes:
    """The counts of pairs before the first merge, and what each merge adds to them."""

    def __init__(self, symbols: int, merges: list[tuple[int, int]]) -> None:
        self._symbols, self._merges = symbols, merges
        self._changes: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(len(merges) + 1)]

    def add(self, data: np.ndarray, lengths: np.ndarray, occurrences: np.ndarray) -> None:
        """Pass a batch of pretokens through all merges."""
        ids, words = data.astype(np.int32), np.repeat(np.arange(len(lengths)), lengths)
        self._count(0, ids, words, occurrences)
        for number, (left, right) in enumerate(self._merges, 1):
            pairs = pairs_at(ids, words, left, right)
            if not len(pairs):
                continue
            changed = np.zeros(len(lengths), bool)
            changed[words[pairs]] = True
            self._count(number, *_inside(ids, words, changed), -occurrences)
            ids, words = replace(ids, words, left, right, 255 + number)
            self._count(number, *_inside(ids, words, changed), occurrences)

    def _count(self, number: int, ids: np.ndarray, words: np.ndarray, occurrences: np.ndarray) -> None:
        """Add the pairs of some pretokens to a change. words: the number of the pretoken of each id."""
        first = np.flatnonzero(words[1:] == words[:-1])
        pairs, places = np.unique(ids[first] * np.int64(self._symbols) + ids[first + 1], return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, places, occurrences[words[first]])
        self._changes[number].append((pairs, sums))

    def apply(self, number: int, pairs: np.ndarray) -> None:
        """Add a change to the counts of pairs, int64 (symbols, symbols)."""
        for changed, sums in self._changes[number]:
            pairs.ravel()[changed] += sums


def _inside(ids: np.ndarray, words: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and the pretoken numbers within the changed pretokens."""
    inside = changed[words]
    return ids[inside], words[inside]
