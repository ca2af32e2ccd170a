"""What a count predicts: the unigram and the bigram that every model should beat. numpy only.

Both are fitted in one pass over chunks of a token stream; memory is bounded by the distinct tokens and
pairs, not by the stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

PENDING_PAIRS = 2**22  # pairs gathered between merges into the sorted counts: 32 MB


class Unigram:
    """q(w) = (c(w) + 1) / (n + V): add-one smoothing, so every token has a finite cost."""

    def __init__(self, counts: np.ndarray) -> None:
        """counts (V,): how often each token occurs."""
        self.counts = np.asarray(counts, dtype=np.int64)
        self.probabilities = (self.counts + 1.0) / (self.counts.sum() + len(self.counts))

    @classmethod
    def fit(cls, chunks: Iterable[np.ndarray], vocab_size: int) -> Unigram:
        """Count the ids of all chunks. Raises ValueError for an id outside [0, vocab_size)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for chunk in chunks:
            counts += np.bincount(_ids(chunk, vocab_size), minlength=vocab_size)
        return cls(counts)

    def nats(self, ids: np.ndarray) -> np.ndarray:
        """-ln q(id) of each id: (N,) int to (N,) float64."""
        return -np.log(self.probabilities[_ids(ids, len(self.counts))])


class Bigram:
    """Witten-Bell smoothing (1991, method C) over a unigram q: with T(h) distinct followers of h,

        p(w | h) = (c(h, w) + T(h) q(w)) / (c(h) + T(h)),        q(w) after an h that was never followed.

    Pairs are keys h V + w in one sorted array, found by binary search.
    """

    def __init__(self, keys: np.ndarray, counts: np.ndarray, unigram: Unigram) -> None:
        """keys (P,) int64 sorted and distinct, counts (P,) of the pairs."""
        vocab_size = len(unigram.counts)
        self.unigram = unigram
        self.keys = keys
        self.counts = counts
        previous = keys // vocab_size
        self.context_counts = np.zeros(vocab_size, dtype=np.int64)
        np.add.at(self.context_counts, previous, counts)
        self.followers = np.bincount(previous, minlength=vocab_size)

    @classmethod
    def fit(cls, chunks: Iterable[np.ndarray], unigram: Unigram) -> Bigram:
        """Count the pairs of one stream that comes in consecutive chunks; pairs across a cut count too."""
        vocab_size = len(unigram.counts)
        keys, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        pending: list[np.ndarray] = []
        last = np.empty(0, dtype=np.int64)
        for chunk in chunks:
            stream = np.concatenate((last, _ids(chunk, vocab_size)))
            pending.append(stream[:-1] * vocab_size + stream[1:])
            last = stream[-1:]
            if sum(map(len, pending)) >= PENDING_PAIRS:
                keys, counts = _merge(keys, counts, pending)
                pending = []
        keys, counts = _merge(keys, counts, pending)
        return cls(keys, counts, unigram)

    def nats(self, previous_ids: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """-ln p(id | previous id) of each pair: (N,), (N,) int to (N,) float64."""
        vocab_size = len(self.unigram.counts)
        previous, following = _ids(previous_ids, vocab_size), _ids(ids, vocab_size)
        if previous.shape != following.shape:
            raise ValueError(f"{len(previous)} previous ids and {len(following)} ids: give one for each")
        pairs = self._pair_counts(previous * vocab_size + following)
        followers, seen = self.followers[previous], self.context_counts[previous]
        prior = self.unigram.probabilities[following]
        known = followers > 0
        smoothed = (pairs + followers * prior) / np.where(known, seen + followers, 1)
        return -np.log(np.where(known, smoothed, prior))

    def _pair_counts(self, keys: np.ndarray) -> np.ndarray:
        if len(self.keys) == 0:
            return np.zeros(len(keys), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.counts[places], 0)


def _ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """A flat int64 copy, checked."""
    ids = np.asarray(ids).reshape(-1).astype(np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
        stray = int(ids.max() if ids.max() >= vocab_size else ids.min())
        raise ValueError(f"id {stray} lies outside a vocabulary of {vocab_size}: use the tokenizer of these ids")
    return ids


def _merge(keys: np.ndarray, counts: np.ndarray, pending: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct keys with counts, and loose keys, as sorted distinct keys with counts."""
    if not pending:
        return keys, counts
    new_keys, new_counts = np.unique(np.concatenate(pending), return_counts=True)
    all_keys = np.concatenate((keys, new_keys))
    order = np.argsort(all_keys, kind="stable")  # two sorted runs: merged in linear time
    all_keys, all_counts = all_keys[order], np.concatenate((counts, new_counts))[order]
    if len(all_keys) == 0:
        return all_keys, all_counts
    first = np.concatenate(([True], all_keys[1:] != all_keys[:-1]))
    return all_keys[first], np.add.reduceat(all_counts, np.flatnonzero(first))
