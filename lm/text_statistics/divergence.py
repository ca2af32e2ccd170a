"""Compute divergences between two texts from their smoothed unigrams and bigrams, in bits.

Unigrams have add-one smoothing. Bigrams have Witten-Bell smoothing over the unigrams (`lm.metrics.baselines`). So all
divergences are finite. Bigrams are compared by their joint distributions p(a, b) = p(a) p(b | a).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.metrics.baselines import Bigram, Unigram
from lm.text_statistics import kernels as text_kernels
from lm.text_statistics.distributions import js, kl
from lm.text_statistics.mutual_information import SYMBOLS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """D(text || other), D(other || text) and the Jensen-Shannon divergence (0 to 1), in bits."""

    kl: float
    reverse_kl: float
    js: float


def text_divergences(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Divergence, Divergence]:
    """Return the divergences of the unigrams and of the bigrams of two texts (ids, offsets) over the same alphabet.

    ids (N,) unsigned integers; offsets (D + 1,) int64. If there are more than 256 symbols, bigrams keep the 255 most
    frequent of both texts together and count the rest as "other".
    """
    size = 1 + max(int(ids.max(initial=0)) for ids, _ in (first, second))
    counts = [np.bincount(ids, minlength=size) for ids, _ in (first, second)]
    order = np.argsort(-(counts[0] + counts[1]), kind="stable")
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size)
    few = np.minimum(place, SYMBOLS - 1).astype(np.uint8)
    joints = [_bigrams(few[ids], offsets, min(size, SYMBOLS)) for ids, offsets in (first, second)]
    return _divergence(*(Unigram(count).probabilities for count in counts)), _divergence(*joints)


def _bigrams(ids: Array, offsets: Array, symbols: int) -> Array:
    """Return the smoothed p(a, b), (K, K) float64."""
    pairs = np.zeros((symbols, symbols), dtype=np.int64)
    text_kernels.count_pairs(ids, offsets, 1, pairs)
    unigram = Unigram(np.bincount(ids, minlength=symbols))
    keys = np.flatnonzero(pairs)
    bigram = Bigram(keys, pairs.ravel()[keys], unigram)
    previous, following = np.divmod(np.arange(symbols * symbols), symbols)
    joint: Array = unigram.probabilities[previous] * np.exp(-bigram.nll(previous, following))
    joint /= joint.sum()  # 1 but for rounding
    return joint


def _divergence(p: Array, q: Array) -> Divergence:
    return Divergence(kl=kl(p, q), reverse_kl=kl(q, p), js=js(p, q))
