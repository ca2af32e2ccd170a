"""Compute block and conditional entropies of the n-grams of a text, n = 1 to 8.

With c(w) occurrences of the n-gram w among N windows, the plug-in block entropy is H_n = log2 N - sum c log2 c / N. The
conditional entropy h_n of a symbol given the n - 1 symbols before it uses the same N windows. Both are too low if most
n-grams are rare. Miller and Madow (1955) add (distinct - 1) / (2 N ln 2) to H_n, which removes part of the bias. The
coverage 1 - singletons / N is Good's (1953) estimate of the total probability of the n-grams seen.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.text_statistics import kernels as text_kernels

LONGEST = 8
WORD_BITS = 64
PARTS = 16  # parts of the windows, sorted separately: this bounds the memory and occupies all threads
RELIABLE_COVERAGE = 0.95

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class NgramEntropy:
    """The entropies of n-grams in bits. No window spans two documents."""

    n: int
    windows: int
    distinct: int
    singletons: int
    block: float
    block_miller_madow: float
    conditional: float
    conditional_miller_madow: float

    @property
    def coverage(self) -> float:
        """1 - singletons / windows, from 0 to 1."""
        return 1 - self.singletons / self.windows

    @property
    def reliable(self) -> bool:
        """Whether the coverage is at least `RELIABLE_COVERAGE`."""
        return self.coverage >= RELIABLE_COVERAGE


def ngram_entropies(
    ids: Array,
    offsets: Array,
    *,
    longest: int = LONGEST,
    threads: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[NgramEntropy]:
    """Return the entropies for n = 1, 2, ... up to `longest`, or up to the longest document.

    ids (N,) unsigned integers: symbol numbers. offsets (D + 1,) int64: where documents start, then N. One sort of
    windows of `longest` symbols serves every n, because n-grams are their prefixes. Each thread needs about 2 N bytes.
    """
    symbol_counts = np.bincount(ids) if len(ids) else np.zeros(0, dtype=np.int64)
    bits = len(symbol_counts).bit_length()
    per_word = min(longest, WORD_BITS // bits) if bits else 1
    words = math.ceil(longest / per_word)
    sums, counts = np.zeros((longest + 1, 2)), np.zeros((longest + 1, 4), dtype=np.int64)

    def count(part: tuple[int, int, int]) -> tuple[int, Array, Array]:
        low, high, size = part
        windows = np.empty((words, size), dtype=np.uint64)
        text_kernels.windows(ids, offsets, bits, per_word, low, high, windows)
        if words == 1:
            windows.sort(axis=1)
        else:
            windows = windows[:, np.lexsort(windows[::-1])]
        part_sums, part_counts = np.zeros_like(sums), np.zeros_like(counts)
        text_kernels.count_runs(windows, bits, per_word, part_sums, part_counts)
        return size, part_sums, part_counts

    done = 0
    with ThreadPoolExecutor(threads) as pool:
        for size, part_sums, part_counts in pool.map(count, _parts(symbol_counts)):
            sums += part_sums
            counts += part_counts
            done += size
            progress(done, len(ids))
    counts[1, 3] = 1  # the empty context
    sums[1, 1] = counts[1, 0] * math.log2(max(1, counts[1, 0]))
    return [_entropy(n, sums[n].tolist(), counts[n].tolist()) for n in range(1, longest + 1) if counts[n, 0]]


def _parts(symbol_counts: Array) -> list[tuple[int, int, int]]:
    """Return ranges (first symbol, last symbol + 1, windows that begin with one of them), about `PARTS` of them."""
    most = symbol_counts.sum() / PARTS
    parts, low, size = [], 0, 0
    for symbol, count in enumerate(symbol_counts.tolist()):
        if size and size + count > most:
            parts.append((low, symbol, size))
            low, size = symbol, 0
        size += count
    return [*parts, (low, len(symbol_counts), size)] if size else parts


def _entropy(n: int, sums: list[float], counts: list[int]) -> NgramEntropy:
    windows, distinct, singletons, contexts = counts
    block = max(0.0, math.log2(windows) - sums[0] / windows)
    conditional = max(0.0, (sums[1] - sums[0]) / windows)
    per_distinct = 1 / (2 * windows * math.log(2))
    return NgramEntropy(
        n=n,
        windows=windows,
        distinct=distinct,
        singletons=singletons,
        block=block,
        block_miller_madow=block + (distinct - 1) * per_distinct,
        conditional=conditional,
        conditional_miller_madow=conditional + (distinct - contexts) * per_distinct,
    )
