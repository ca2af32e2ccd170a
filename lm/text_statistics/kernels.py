"""numba kernels over long texts, which release the GIL: windows, pairs, matches and words.

`ids` are symbol numbers from 0, and document k is ids[offsets[k]:offsets[k + 1]]. No window and no pair spans two
documents.
"""

from collections.abc import Callable
from contextlib import suppress

import numba
import numpy as np


def kernel(function: Callable):
    """Compile a function at its first call, and keep the result on disk if there is a writable folder."""
    dispatcher = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # no writable folder: every process compiles
        dispatcher.enable_caching()
    return dispatcher


@kernel
def windows(ids, offsets, bits, per_word, low, high, out):
    """Write the window of every position whose symbol is in [low, high) to a column of `out`, uint64 (words, windows).

    A word has `per_word` symbols of `bits` bits, the first in the highest bits. A symbol is its number plus 1, so
    that 0 stands for a position after the end of the document.
    """
    words = out.shape[0]
    top = np.uint64((per_word - 1) * bits)
    width = np.uint64(bits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    window = np.zeros(words, dtype=np.uint64)
    column = 0
    for document in range(len(offsets) - 1):
        window[:] = 0
        for i in range(offsets[document + 1] - 1, offsets[document] - 1, -1):
            for word in range(words - 1, 0, -1):
                window[word] = (window[word - 1] & mask) << top | window[word] >> width
            window[0] = (np.uint64(ids[i]) + np.uint64(1)) << top | window[0] >> width
            if low <= ids[i] < high:
                for word in range(words):
                    out[word, column] = window[word]
                column += 1


@kernel
def count_runs(sorted_windows, bits, per_word, sums, counts):
    """Add up the statistics of n-grams for n = 1 to N: a run of equal prefixes is one n-gram.

    sorted_windows (words, windows) uint64, as `windows` writes them. Row n of `counts` (N + 1, 4) int64 gets the
    number of windows, of distinct n-grams, of n-grams that occur once, and of distinct contexts. Row n of `sums`
    (N + 1, 2) float64 gets the sum of c log2 c over n-grams and over contexts. A context is the first n - 1 symbols
    of a window of n.
    """
    longest = len(sums) - 1
    total = sorted_windows.shape[1]
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    start = np.zeros(longest + 2, dtype=np.int64)
    ended = np.zeros(longest + 2, dtype=np.int64)  # windows of the current context that end before symbol n
    for i in range(1, total + 1):
        shared = 0
        while i < total and shared < longest:
            word = shared // per_word
            different = sorted_windows[word, i] ^ sorted_windows[word, i - 1]
            place = per_word - 1 - shared % per_word
            if different >> np.uint64(place * bits):
                break
            shared += 1
        for n in range(longest, shared, -1):
            count = i - start[n]
            start[n] = i
            place = per_word - 1 - (n - 1) % per_word
            last = sorted_windows[(n - 1) // per_word, i - 1] >> np.uint64(place * bits) & mask
            if last == 0:
                ended[n] += count
            else:
                counts[n, 0] += count
                counts[n, 1] += 1
                if count == 1:
                    counts[n, 2] += 1
                else:
                    sums[n, 0] += count * np.log2(count)
                going_on = count - ended[n + 1]
                if n < longest and going_on > 0:
                    counts[n + 1, 3] += 1
                    sums[n + 1, 1] += going_on * np.log2(going_on)
            ended[n + 1] = 0


@kernel
def count_pairs(ids, offsets, distance, counts):
    """Count the pairs of symbols at that distance in `counts` (K, K) int64."""
    for document in range(len(offsets) - 1):
        for i in range(offsets[document], offsets[document + 1] - distance):
            counts[ids[i], ids[i + distance]] += 1


@kernel
def shuffle(ids, offsets, seed):
    """Permute the symbols of each document in place, uniformly at random (Fisher and Yates; splitmix64)."""
    state = np.uint64(seed)
    for document in range(len(offsets) - 1):
        first = offsets[document]
        for i in range(offsets[document + 1] - 1, first, -1):
            state += np.uint64(0x9E3779B97F4A7C15)
            mixed = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            j = first + np.int64(np.float64(mixed >> np.uint64(11)) * 2.0**-53 * (i - first + 1))
            ids[i], ids[j] = ids[j], ids[i]


@kernel
def longest_previous_matches(text, suffixes, before, after, lengths):
    """Write the length of the longest match of each position with text that begins earlier to `lengths`, int32.

    text (N,) uint8; suffixes (N,) int32, its suffix array; before, after (N,) int32, working memory. A match may
    overlap its own position. Of all earlier positions, the two that are next in the suffix array match longest. Each
    match is at most one shorter than the match of the position before (Kärkkäinen, Kempa & Puglisi 2013).
    """
    size = len(text)
    for rank in range(size):
        before[suffixes[rank]] = suffixes[rank - 1] if rank else -1
        after[suffixes[rank]] = suffixes[rank + 1] if rank + 1 < size else -1
    # Remove positions from the last to the first: what is left around a position then begins earlier.
    for i in range(size - 1, -1, -1):
        if before[i] >= 0:
            after[before[i]] = after[i]
        if after[i] >= 0:
            before[after[i]] = before[i]
    smaller = 0
    larger = 0
    for i in range(size):
        smaller = _extend(text, before[i], i, max(smaller - 1, 0))
        larger = _extend(text, after[i], i, max(larger - 1, 0))
        lengths[i] = max(smaller, larger)


@kernel
def longest_matches(text, first, suffixes, before, after, lengths):
    """Update `lengths` to the longest match of each position from `first` on with text that begins before `first`.

    text (N,); suffixes (N,) int32, its suffix array; before, after (N - first,) int32, working memory; lengths
    (N - first,) int32, which only grow. The longest match of a position is with one of its two nearest positions below
    `first` in the suffix array. As above, it is at most one shorter than the match of the previous position.
    """
    size = len(text)
    nearest = -1
    for rank in range(size):
        if suffixes[rank] < first:
            nearest = suffixes[rank]
        else:
            before[suffixes[rank] - first] = nearest
    nearest = -1
    for rank in range(size - 1, -1, -1):
        if suffixes[rank] < first:
            nearest = suffixes[rank]
        else:
            after[suffixes[rank] - first] = nearest
    smaller = 0
    larger = 0
    for i in range(size - first):
        smaller = _extend(text, before[i], first + i, max(smaller - 1, 0))
        larger = _extend(text, after[i], first + i, max(larger - 1, 0))
        lengths[i] = max(lengths[i], smaller, larger)


@kernel
def _extend(text, j, i, length):
    """Return the length of the match of positions j < i, which is at least `length`; 0 if j is negative."""
    if j < 0:
        return 0
    while i + length < len(text) and text[j + length] == text[i + length]:
        length += 1
    return length


@kernel
def hash_words(text, offsets, space, hashes):
    """Write a 64-bit hash of each word to `hashes`, uint64, if it has room; return the number of words.

    A word is a longest run of bytes outside white space; `space` (B,) bool marks the bytes of white space.
    """
    words = 0
    for document in range(len(offsets) - 1):
        inside = False
        value = np.uint64(0)
        for i in range(offsets[document], offsets[document + 1] + 1):
            if i == offsets[document + 1] or space[i]:
                if inside:
                    if words < len(hashes):
                        hashes[words] = value ^ value >> np.uint64(31)
                    words += 1
                inside = False
            else:
                if not inside:
                    value = np.uint64(0xCBF29CE484222325)
                inside = True
                value = (value ^ np.uint64(text[i])) * np.uint64(0x9E3779B97F4A7C15)
                value ^= value >> np.uint64(32)
    return words
