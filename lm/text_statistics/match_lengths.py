"""Find the matches of a text with its own past, for its entropy rate, and with other texts.

L_i is the length of the shortest string at position i that did not begin earlier: one more than the longest match with
earlier text. For a stationary ergodic source, L_i / log2 i tends to 1 / H, with H the entropy rate in bits per symbol.

The classic estimate is 1 / mean(L_i / log2 i) (Kontoyiannis, Algoet, Suhov & Wyner 1998). Because E[L_i] is close to
log2(i) / H plus a constant, its error falls only as 1 / log i. The slope estimate removes the constant. It fits a line
to the mean of L against log2 of the length of the past, in half-octave bins from 256 symbols on, and is 1 / slope.

A text of many documents is not stationary: the few symbols with a short past are all in its first document. So short
pasts are taken from the whole text: it is cut into blocks, and each block begins a new past. On a million symbols of
ten known sources, the slope was within 1.2 % of H and the classic estimate within 18 %.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lm.text_statistics import kernels as text_kernels

FIRST = 256  # length of the shortest past in the fit of the slope
LEAST_BINS = 4
BLOCK_SYMBOLS, MOST_BLOCKS = 1 << 20, 512  # limits per octave; longer pasts use the text without blocks
LARGEST = 2**31 - 1  # positions are int32

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MatchRate:
    """Estimates of the entropy rate in bits per symbol from the first `symbols` of a text; None without enough text."""

    symbols: int
    classic: float | None
    slope: float | None


def suffix_array(text: Array) -> Array:
    """Return the positions of a text, sorted by the suffixes that begin there, (N,) int32.

    text (N,) of an unsigned dtype. Memory is about 5 bytes per symbol of one byte, and more for wider symbols. Needs
    `pydivsufsort`.
    """
    from pydivsufsort import divsufsort

    if len(text) > LARGEST:
        raise ValueError(f"a text of {len(text):,} symbols is too long for match lengths: give at most {LARGEST:,}")
    if len(text) < 2:
        return np.arange(len(text), dtype=np.int32)
    return np.asarray(divsufsort(np.require(text, requirements=["C", "W"])), dtype=np.int32)


def previous_match_lengths(text: Array) -> Array:
    """Return the length of the longest match of each position with text that begins earlier, (N,) int32.

    text (N,) uint8. Time is linear in N, and memory is about 20 bytes per symbol.
    """
    suffixes = suffix_array(text)
    before, after = np.empty_like(suffixes), np.empty_like(suffixes)
    lengths = np.zeros_like(suffixes)
    text_kernels.longest_previous_matches(text, suffixes, before, after, lengths)
    return lengths


def match_rates(text: Array, sizes: list[int], progress: Callable[[int], None] = lambda past: None) -> list[MatchRate]:
    """Return the estimates for each of `sizes`, for text (N,) uint8.

    The classic estimate reads the first `size` symbols. The slope reads pasts of at most `size` symbols. `progress` is
    called with the length of each past of the slope before it is read; if it raises, the work ends.
    """
    matches = previous_match_lengths(text)
    bins = _bins(text, matches, progress)
    return [MatchRate(size, _classic(matches[:size]), _slope(bins[bins[:, 0] <= size])) for size in sizes]


def _classic(matches: Array) -> float | None:
    """Return 1 / mean(L_i / log2 i) over i >= 2."""
    if len(matches) < 3:
        return None
    ratios = (matches[2:] + 1.0) / np.log2(np.arange(2, len(matches)))
    return float(1 / ratios.mean())


def _bins(text: Array, matches: Array, progress: Callable[[int], None]) -> Array:
    """Return the half-octave bins, (bins, 3): the longest past, the mean log2 of the past, the mean match length."""
    rows = []
    past = FIRST
    while 2 * past <= len(text):
        progress(past)
        edges = [past, round(past * math.sqrt(2)), 2 * past]
        count = min(MOST_BLOCKS, min(len(text), BLOCK_SYMBOLS) // (2 * past))
        if count > 1:
            starts = np.linspace(0, len(text) - 2 * past, count).astype(np.int64)
            found = np.stack([previous_match_lengths(text[start : start + 2 * past]) for start in starts])
        else:
            found = matches[None, : 2 * past]
        for low, high in pairwise(edges):
            rows.append((high, np.log2(np.arange(low, high)).mean(), found[:, low:high].mean()))
        past *= 2
    return np.array(rows).reshape(-1, 3)


def _slope(bins: Array) -> float | None:
    """Return 1 / slope of mean L against log2 of the past; None below `LEAST_BINS` bins, or if L does not grow."""
    if len(bins) < LEAST_BINS:
        return None
    slope = float(np.polyfit(bins[:, 1], bins[:, 2], 1)[0])
    return 1 / slope if slope > 0 else None


def longest_matches(text: Array, offsets: Array, others: Iterable[tuple[Array, Array]]) -> Array:
    """Return the length of the longest string that begins at each position of a text and occurs in one of `others`.

    text (N,) uint8; offsets (D + 1,) int64, the starts of its documents, and N. `others` yields more pairs of text and
    offsets. No match spans two documents of any text. Returns (N,) int32.

    Each of `others` is joined to the text in turn; each takes the time and memory of a suffix array of both.
    """
    matches = np.zeros(len(text), np.int32)
    absent = np.flatnonzero(np.bincount(text, minlength=256) == 0)
    # Other documents are separated by a symbol that the text lacks, so every match ends there.
    separator = absent[0] if len(absent) else 256
    symbols = np.uint8 if len(absent) else np.uint16
    before, after = np.empty_like(matches), np.empty_like(matches)
    for other, starts in others:
        separated = np.insert(other.astype(symbols, copy=False), starts[1:], separator)
        joined = np.concatenate([separated, text], dtype=symbols)
        text_kernels.longest_matches(joined, len(separated), suffix_array(joined), before, after, matches)
    ends = np.repeat(offsets[1:].astype(np.int32), np.diff(offsets))
    return np.minimum(matches, ends - np.arange(len(text), dtype=np.int32))


def is_covered(matches: Array, length: int) -> Array:
    """Return whether each byte is inside a match of at least `length` bytes, (N,) bool.

    matches (N,): the length of the longest match of each position.
    """
    places = np.arange(len(matches), dtype=np.int32)
    ends = np.where(matches >= length, places + matches, 0)
    inside: Array = np.maximum.accumulate(ends) > places
    return inside
