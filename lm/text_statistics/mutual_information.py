"""Estimate the mutual information between symbols at a distance, with two baselines.

I(d) = sum p(a, b) log2(p(a, b) / (p(a) p(b))) over the pairs of symbols at distance d in the same document. The plug-in
value is above 0 even for independent symbols, by about (K - 1)^2 / (2 N ln 2), and by less if many cells are rare. Two
baselines measure this bias. They count the same pairs after shuffling the symbols

- of the whole corpus: only the bias remains;
- of each document: the bias and the differences between documents remain, but no order.

Lin and Tegmark (2017) attribute a slow decay of I(d) to long-range order. The second baseline tests this.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.text_statistics import kernels as text_kernels

SYMBOLS = 256  # the 255 most frequent symbols, and "other" for the rest
LARGEST_DISTANCE = 100_000
DISTANCES = 50
LEAST_PAIRS, PAIRS_PER_CELL = 10_000, 4  # with fewer pairs, the bias hides the information
SEED = 0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class MutualInformation:
    """Plug-in mutual information in bits at each distance: of the text, and of the two shuffled texts.

    symbols: number of different symbols, including "other";
    other: share of the positions whose symbol is "other".
    """

    symbols: int
    other: float
    distances: list[int]
    pairs: list[int]
    text: list[float]
    shuffled: list[float]
    shuffled_within: list[float]


def log_distances(largest: int, count: int = DISTANCES) -> list[int]:
    """Return about `count` distances from 1 to `largest`, evenly spaced in their logarithms, with all powers of 10."""
    if largest < 1:
        return []
    powers = [10**power for power in range(len(str(largest)))]
    wanted = count
    while True:  # small distances coincide after rounding: ask for more
        distances = np.union1d(np.round(np.geomspace(1, largest, wanted)).astype(np.int64), powers)
        if len(distances) >= min(count, largest):
            return [int(distance) for distance in distances]
        wanted += 1


def mutual_information(
    ids: Array,
    offsets: Array,
    *,
    distances: list[int] | None = None,
    threads: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MutualInformation:
    """Return the mutual information at `distances`, by default the `log_distances` with enough pairs.

    ids (N,) unsigned integers: symbol numbers, 0 for the most frequent symbol. offsets (D + 1,) int64: where documents
    start. If there are more than 256 symbols, all from number 255 on count as "other". The shuffles have a fixed seed.
    """
    few = ids if ids.dtype == np.uint8 else np.minimum(ids, SYMBOLS - 1).astype(np.uint8)
    symbols = int(few.max(initial=0)) + 1
    lengths = np.diff(offsets)
    if distances is None:
        enough = max(LEAST_PAIRS, PAIRS_PER_CELL * symbols**2)
        candidates = log_distances(min(LARGEST_DISTANCE, int(lengths.max(initial=0)) - 1))
        distances = [distance for distance in candidates if np.maximum(lengths - distance, 0).sum() >= enough]
    texts = [few, few.copy(), few.copy()]
    text_kernels.shuffle(texts[1], offsets[[0, -1]], SEED)
    text_kernels.shuffle(texts[2], offsets, SEED)

    def measure(job: tuple[Array, int]) -> float:
        counts = np.zeros((symbols, symbols), dtype=np.int64)
        text_kernels.count_pairs(job[0], offsets, job[1], counts)
        return information(counts)

    jobs = [(text, distance) for text in texts for distance in distances]
    found: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for bits in pool.map(measure, jobs):
            found.append(bits)
            progress(len(found), len(jobs))
    text, shuffled, within = (found[first * len(distances) : (first + 1) * len(distances)] for first in range(3))
    return MutualInformation(
        symbols=symbols,
        other=float(np.count_nonzero(ids >= SYMBOLS - 1) / max(1, len(ids)))
        if int(ids.max(initial=0)) >= SYMBOLS
        else 0.0,
        distances=distances,
        pairs=[int(np.maximum(lengths - distance, 0).sum()) for distance in distances],
        text=text,
        shuffled=shuffled,
        shuffled_within=within,
    )


def information(counts: Array) -> float:
    """Return the plug-in mutual information in bits of counts of pairs (K, K) int64; 0 without pairs."""
    total = int(counts.sum())
    if not total:
        return 0.0
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    x, y = np.nonzero(counts)
    cells = counts[x, y].astype(np.float64)
    ratios = cells / rows[x] * (total / columns[y])
    return max(0.0, float(cells @ np.log2(ratios)) / total)
