"""Find the longest match of each position of a text in other texts, exactly, by suffix arrays."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lm.analysis import text_kernels
from lm.analysis.match_lengths import suffix_array

Array = np.ndarray[Any, Any]


def longest_matches(text: Array, offsets: Array, others: Iterable[tuple[Array, Array]]) -> Array:
    """Return the length of the longest string that begins at each position of a text and occurs in one of `others`.

    text (N,) uint8; offsets (D + 1,) int64, the starts of its documents, and N. `others` yields more pairs of text and
    offsets. No match spans two documents of any text. Returns (N,) int32.

    Each of `others` is joined to the text in turn; time and memory are those of the suffix array of both.
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


def covered(matches: Array, length: int) -> Array:
    """Return whether each byte is inside a match of at least `length` bytes, (N,) bool.

    matches (N,): the length of the longest match of each position.
    """
    places = np.arange(len(matches), dtype=np.int32)
    ends = np.where(matches >= length, places + matches, 0)
    inside: Array = np.maximum.accumulate(ends) > places
    return inside
