"""Count-based baselines that every model should beat, in numpy.

A unigram and a bigram for text, naive Bayes for labels, ridge regression for numbers. Unigram and bigram are fitted in
one pass over chunks of a token stream. Memory is bounded by the distinct tokens and pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

PENDING_PAIRS = 2**22  # pairs between merges into the sorted counts: 32 MB

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Unigram:
    """q(w) = (c(w) + 1) / (n + V): add-one smoothing, so every token has a finite cost."""

    def __init__(self, counts: ArrayLike) -> None:
        """counts (V,): occurrences of each token."""
        self.counts: Ints = np.asarray(counts, dtype=np.int64)
        self.probabilities: Floats = (self.counts + 1.0) / (self.counts.sum() + len(self.counts))

    @classmethod
    def fit(cls, chunks: Iterable[np.ndarray], vocab_size: int) -> Unigram:
        """Fit to the ids of all chunks. Raises ValueError for an id outside [0, vocab_size)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for chunk in chunks:
            counts += np.bincount(_ids(chunk, vocab_size), minlength=vocab_size)
        return cls(counts)

    def nll(self, ids: np.ndarray) -> Floats:
        """Return -ln q(id) of each id, in nats: (N,) int to (N,) float64."""
        probabilities = self.probabilities[_ids(ids, len(self.counts))]
        return -np.log(probabilities)


class Bigram:
    """A bigram with Witten-Bell smoothing (1991, method C) over a unigram q.

    With T(h) distinct followers of h, p(w | h) = (c(h, w) + T(h) q(w)) / (c(h) + T(h)), or q(w) if h has no follower.
    A pair is the key h V + w in one sorted array, found by binary search.
    """

    def __init__(self, keys: Ints, counts: Ints, unigram: Unigram) -> None:
        """keys (P,) sorted and distinct, with counts (P,) of the pairs."""
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
        """Fit to the pairs of one stream in consecutive chunks, pairs across chunks included."""
        vocab_size = len(unigram.counts)
        keys, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        pending: list[Ints] = []
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

    def nll(self, previous_ids: np.ndarray, ids: np.ndarray) -> Floats:
        """Return -ln p(id | previous id) of each pair, in nats: (N,), (N,) int to (N,) float64."""
        vocab_size = len(self.unigram.counts)
        previous, following = _ids(previous_ids, vocab_size), _ids(ids, vocab_size)
        if previous.shape != following.shape:
            raise ValueError(f"{len(previous)} previous ids and {len(following)} ids: give one for each")
        pairs = self._pair_counts(previous * vocab_size + following)
        followers, seen = self.followers[previous], self.context_counts[previous]
        prior = self.unigram.probabilities[following]
        known = followers > 0
        smoothed = (pairs + followers * prior) / np.where(known, seen + followers, 1)
        probabilities: Floats = np.where(known, smoothed, prior)
        return -np.log(probabilities)

    def _pair_counts(self, keys: Ints) -> Ints:
        if len(self.keys) == 0:
            return np.zeros(len(keys), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.counts[places], 0)


def _ids(ids: np.ndarray, vocab_size: int) -> Ints:
    """Return a flat copy. Raises ValueError for an id outside [0, vocab_size)."""
    flat: Ints = np.asarray(ids).reshape(-1).astype(np.int64)
    if len(flat) and not (flat.min() >= 0 and flat.max() < vocab_size):
        stray = int(flat.max() if flat.max() >= vocab_size else flat.min())
        raise ValueError(f"id {stray} lies outside a vocabulary of {vocab_size}: use the tokenizer of these ids")
    return flat


def _merge(keys: Ints, counts: Ints, pending: list[Ints]) -> tuple[Ints, Ints]:
    """Return sorted distinct keys with their counts, after counting the pending keys."""
    if not pending:
        return keys, counts
    new_keys, new_counts = np.unique(np.concatenate(pending), return_counts=True)
    all_keys = np.concatenate((keys, new_keys))
    order = np.argsort(all_keys, kind="stable")  # merges the two sorted runs in linear time
    all_keys, all_counts = all_keys[order], np.concatenate((counts, new_counts))[order]
    if len(all_keys) == 0:
        return all_keys, all_counts
    first = np.concatenate(([True], all_keys[1:] != all_keys[:-1]))
    return all_keys[first], np.add.reduceat(all_counts, np.flatnonzero(first))


SMOOTHINGS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class NaiveBayes:
    """Multinomial naive Bayes (Manning, Raghavan and Schütze 2008, equations 13.3 and 13.7).

    Label y has n(y) texts, in which token w occurs c(w, y) times:

        ln p(y | text) = ln n(y) + sum over tokens w of ln (c(w, y) + a) / (sum_v c(v, y) + a V) + constant.

    The book has a = 1. Here a is chosen from `SMOOTHINGS` by leave-one-out accuracy on the training texts.
    """

    def __init__(self, counts: np.ndarray, texts: np.ndarray, smoothing: float) -> None:
        """counts (L, V): occurrences of each token in the texts of each label; texts (L,): texts of each label."""
        self.smoothing = smoothing
        self._log_prior = _log(texts)
        self._log_likelihood = np.log(counts + smoothing) - np.log(_totals(counts, smoothing))

    @classmethod
    def fit(cls, texts: Sequence[np.ndarray], labels: np.ndarray, label_count: int, vocab_size: int) -> NaiveBayes:
        """Fit to the ids of `texts`, each (T,), with `labels` (N,) in [0, label_count)."""
        counts = np.zeros((label_count, vocab_size))
        bags = [np.unique(text, return_counts=True) for text in texts]
        for (tokens, times), label in zip(bags, labels, strict=True):
            counts[label, tokens] += times
        sizes = np.bincount(labels, minlength=label_count)
        correct = [_leave_one_out_correct(counts, sizes, bags, labels, smoothing) for smoothing in SMOOTHINGS]
        return cls(counts, sizes, SMOOTHINGS[int(np.argmax(correct))])

    def log_posteriors(self, texts: Sequence[np.ndarray]) -> Floats:
        """Return ln p(label | text) in nats, (N, L)."""
        scores = np.stack([self._log_prior + self._log_likelihood[:, text].sum(axis=1) for text in texts])
        shifted: Floats = scores - scores.max(axis=1, keepdims=True)
        log_sum: Floats = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return shifted - log_sum


def _leave_one_out_correct(
    counts: np.ndarray,
    sizes: np.ndarray,
    bags: Sequence[tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
    smoothing: float,
) -> int:
    """Return the number of texts that the counts of all other texts label correctly."""
    log_counts, totals, log_prior = np.log(counts + smoothing), _totals(counts, smoothing)[:, 0], _log(sizes)
    correct = 0
    for (tokens, times), label in zip(bags, labels, strict=True):
        length = times.sum()
        scores = log_prior + log_counts[:, tokens] @ times - length * np.log(totals)
        likelihood = np.log(counts[label, tokens] - times + smoothing) @ times
        scores[label] = _log(sizes[label] - 1) + likelihood - length * np.log(totals[label] - length)
        correct += int(scores.argmax()) == label
    return correct


def _totals(counts: np.ndarray, smoothing: float) -> Floats:
    totals: Floats = counts.sum(axis=1, keepdims=True) + smoothing * counts.shape[1]
    return totals


def _log(sizes: np.ndarray) -> Floats:
    """Return ln sizes, minus infinity for 0: a label without texts is never chosen."""
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(sizes)
    return logs


FEATURES = 1000  # the gram matrix of counts takes 8 MB, its eigenvectors half a second
TEXTS = 4096  # whose counts are in memory at once
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)


class Ridge:
    """Ridge regression of numbers on counts of tokens (Hoerl and Kennard 1970), with a free intercept.

    With the counts x of the `FEATURES` tokens that occur in most training texts, y = mean(y) + (x - mean(x)) w, where w
    minimises the squared error plus a |w|^2. The strength a is chosen from `STRENGTHS` by the leave-one-out squared
    error on the training texts, which needs one fit: (residual / (1 - leverage))^2 (Allen 1974).
    """

    def __init__(
        self, tokens: np.ndarray, means: np.ndarray, weights: np.ndarray, mean: float, strength: float
    ) -> None:
        """tokens (D,) int64, whose counts have `means` (D,) and `weights` (D,); `mean` of the numbers."""
        self.tokens, self.strength = tokens, strength
        self._means, self._weights, self._mean = means, weights, mean

    @classmethod
    def fit(cls, texts: Sequence[np.ndarray], targets: np.ndarray, vocab_size: int) -> Ridge:
        """Fit to the ids of `texts`, each (T,), with `targets` (N,) float64."""
        occurrences = np.bincount(np.concatenate([np.unique(text) for text in texts]), minlength=vocab_size)
        most = min(FEATURES, int((occurrences > 0).sum()))
        tokens = np.sort(np.argsort(-occurrences, kind="stable")[:most])
        centred = targets - targets.mean()
        sums, gram, products = np.zeros(most), np.zeros((most, most)), np.zeros(most)
        for part, counts in _token_counts(texts, tokens):
            sums += counts.sum(axis=0)
            gram += counts.T @ counts
            products += counts.T @ centred[part]
        means = sums / len(texts)
        values, vectors = np.linalg.eigh(gram - np.outer(means, sums))
        shrunk = 1 / (np.maximum(values, 0)[:, None] + np.array(STRENGTHS))  # (D, strengths)
        scaled = (vectors.T @ products)[:, None] * shrunk
        errors = np.zeros(len(STRENGTHS))
        for part, counts in _token_counts(texts, tokens):
            rotated = (counts - means) @ vectors
            leverages = 1 / len(texts) + rotated**2 @ shrunk
            errors += (((centred[part, None] - rotated @ scaled) / (1 - leverages)) ** 2).sum(axis=0)
        best = int(errors.argmin())
        return cls(tokens, means, vectors @ scaled[:, best], float(targets.mean()), STRENGTHS[best])

    def predict(self, texts: Sequence[np.ndarray]) -> Floats:
        """Return the numbers of texts, (N,)."""
        parts = [(counts - self._means) @ self._weights for _, counts in _token_counts(texts, self.tokens)]
        numbers: Floats = self._mean + np.concatenate(parts)
        return numbers


def _token_counts(texts: Sequence[np.ndarray], tokens: np.ndarray) -> Iterator[tuple[slice, Floats]]:
    """Yield the counts (M, D) of the sorted `tokens` (D,) in at most TEXTS texts, and the places of these texts."""
    for start in range(0, len(texts), TEXTS):
        part = slice(start, start + TEXTS)
        counts = np.zeros((len(texts[part]), len(tokens)))
        for row, text in zip(counts, texts[part], strict=True):
            known = text[np.isin(text, tokens)]
            row += np.bincount(np.searchsorted(tokens, known), minlength=len(tokens))
        yield part, counts
