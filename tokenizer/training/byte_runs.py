"""Runs of one byte in long pretokens. Training stores pretokens that are mostly runs as runs (`kernels.byte_runs`)."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels import byte_runs as kernel
from tokenizer.kernels.pairs import NONE

LEAST_LENGTH = 4096  # bytes; shorter pretokens are not examined
BYTES_PER_RUN = 64  # least average in a pretoken that is mostly runs
MOST_RUNS = 4096  # every merge visits all runs
BYTES_PER_CALL = 1 << 20


def find_runs(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the runs of the pretokens that are mostly runs, int64 (n, RUN), in the order of the text.

    Symbols are bytes; records are NONE. Pretokens beyond MOST_RUNS are left out.
    """
    found, total = [np.empty((0, kernel.RUN), dtype=np.int64)], 0
    for word in np.flatnonzero(np.diff(offsets) >= LEAST_LENGTH):
        pretoken = data[offsets[word] : offsets[word + 1]]
        starts = run_starts(pretoken, len(pretoken) // BYTES_PER_RUN)
        if starts is None or total + len(starts) > MOST_RUNS:
            continue
        total += len(starts)
        runs = np.full((len(starts), kernel.RUN), NONE, dtype=np.int64)
        runs[:, kernel.SYMBOL] = data[offsets[word] + starts]
        runs[:, kernel.REPEAT] = np.diff(starts, append=offsets[word + 1] - offsets[word])
        runs[:, kernel.WORD] = word
        found.append(runs)
    return np.concatenate(found)


def run_starts(pretoken: np.ndarray, most: int) -> np.ndarray | None:
    """Return the starts of the runs of one byte in a pretoken, int64 (n,), or None if there are more than `most`."""
    starts, total = [np.zeros(1, dtype=np.int64)], 1
    for first in range(1, len(pretoken), BYTES_PER_CALL):
        last = min(first + BYTES_PER_CALL, len(pretoken))
        starts.append(first + np.flatnonzero(pretoken[first - 1 : last - 1] != pretoken[first:last]))
        total += len(starts[-1])
        if total > most:
            return None
    return np.concatenate(starts)
