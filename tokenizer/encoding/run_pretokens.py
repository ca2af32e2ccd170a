"""Encoding a pretoken of a few long runs of one byte, such as 64 MB of spaces, in time proportional to its ids.

This needs a vocabulary in which every merge ranks after the merges that make its parts. Then each pair is merged
everywhere before the next pair.
"""

from __future__ import annotations

from itertools import pairwise
from math import isqrt

import numpy as np

from tokenizer.kernels.hash_tables import LOW_HALF, NOTHING, Merges, look_up_pair
from tokenizer.training.byte_runs import run_starts

BYTES_PER_STEP = 1000  # a merge takes a step per run, and each run adds merges

Run = tuple[int, int]  # a byte or id, and its repeat count


def long_runs(pretoken: np.ndarray) -> list[Run] | None:
    """Return the runs of a pretoken's bytes, or None if merging that many runs takes longer than merging bytes."""
    starts = run_starts(pretoken, isqrt(len(pretoken) // BYTES_PER_STEP))
    if starts is None or len(starts) ** 2 * BYTES_PER_STEP > len(pretoken):
        return None
    repeats = np.diff(starts, append=len(pretoken))
    return list(zip(pretoken[starts].tolist(), repeats.tolist(), strict=True))


def merge_runs(runs: list[Run], merges: Merges) -> list[Run]:
    """Merge runs of bytes. Return the runs of ids."""
    runs = [(int(merges.byte_ids[byte]), repeat) for byte, repeat in runs]
    values: dict[tuple[int, int], int] = {}  # rank << 32 | merged id of each pair that was looked up
    while True:
        pairs = {(symbol, symbol) for symbol, repeat in runs if repeat > 1}
        pairs.update((left[0], right[0]) for left, right in pairwise(runs))
        for pair in pairs - values.keys():
            values[pair] = int(look_up_pair(merges.pairs, *pair))
        first = min(pairs, key=values.__getitem__, default=None)
        if first is None or values[first] == NOTHING:
            return runs
        runs = _replace(runs, *first, values[first] & int(LOW_HALF))


def _replace(runs: list[Run], left: int, right: int, new: int) -> list[Run]:
    """Replace a pair by `new` from left to right. Return the new runs."""
    replaced: list[Run] = []

    def append(symbol: int, repeat: int) -> None:
        if repeat and replaced and replaced[-1][0] == symbol:
            repeat += replaced.pop()[1]
        if repeat:
            replaced.append((symbol, repeat))

    for symbol, repeat in runs:
        if symbol == left == right:
            append(new, repeat // 2)
            append(symbol, repeat % 2)
        elif symbol == right and replaced and replaced[-1][0] == left:
            append(left, replaced.pop()[1] - 1)
            append(new, 1)
            append(symbol, repeat - 1)
        else:
            append(symbol, repeat)
    return replaced


def write_runs(runs: list[Run], out: np.ndarray, at: int) -> int:
    """Write the ids of runs to out[at:]. Return the end of the ids."""
    for symbol, repeat in runs:
        out[at : at + repeat] = symbol
        at += repeat
    return at
