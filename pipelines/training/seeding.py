"""Seed the random generators of a whole batch at once.

`np.random.default_rng` takes 20 microseconds per seed, which is longer than masking a row. Most of this time goes into
numpy's SeedSequence, which this module computes for all rows together.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

Array = np.ndarray

# Constants of numpy's SeedSequence, a version of O'Neill's seed_seq_fe128 (pcg-random.org, "Developing a seed_seq
# Alternative").
POOL = 4
INITIAL_A, MULTIPLIER_A = 0x43B0D7E5, 0x931E8875
INITIAL_B, MULTIPLIER_B = 0x8B51F9DD, 0x58F38DED
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
WORD = 1 << 32


def generators(seeds: Array) -> list[np.random.Generator]:
    """Return `np.random.default_rng(row)` for each row of `seeds` (B, K) int64, which must not be negative.

    Rows are seeded one by one if a number is 2^32 or more.
    """
    if len(seeds) and int(seeds.max()) >= WORD:
        return [np.random.default_rng(row) for row in seeds.tolist()]
    seeded: list[Any] = [_Words(words) for words in _seed_words(seeds)]  # stubs of PCG64 lack ISeedSequence
    return [np.random.Generator(np.random.PCG64(words)) for words in seeded]


class _Words(ISeedSequence):
    """The four uint64 words that seed a PCG64 generator."""

    def __init__(self, words: Array) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> Array:
        """Return the words; PCG64 asks for no others."""
        return self._words


def _seed_words(seeds: Array) -> Array:
    """Return `SeedSequence(row).generate_state(4, np.uint64)` for each row of `seeds` (B, K): (B, 4) uint64.

    Numbers must be below 2^32. The first four numbers fill a pool of four words, with 0 for missing numbers. Each word
    is then mixed into the three others, and each further number into all four words.
    """
    entropy = seeds.T.astype(np.uint32)
    extra = entropy[POOL:]
    constants = _constants(INITIAL_A, MULTIPLIER_A, POOL * (POOL + len(extra)))
    pool = np.zeros((POOL, len(seeds)), np.uint32)
    pool[: len(entropy)] = entropy[:POOL]
    pool = _hash(pool, constants[: POOL + 1])
    used = POOL
    for source in range(POOL):
        others = [target for target in range(POOL) if target != source]
        pool[others] = _mix(pool[others], _hash(pool[source], constants[used : used + POOL]))
        used += POOL - 1
    for word in extra:
        pool = _mix(pool, _hash(word, constants[used : used + POOL + 1]))
        used += POOL
    state = _hash(np.concatenate([pool, pool]), _constants(INITIAL_B, MULTIPLIER_B, 2 * POOL))
    return np.ascontiguousarray(state.T).astype("<u4").view("<u8").astype(np.uint64)


@cache
def _constants(first: int, multiplier: int, count: int) -> Array:
    """Return the constants of `count` hashes, one more than there are hashes: (count + 1, 1) uint32."""
    powers = np.cumprod(np.array([first] + [multiplier] * count, np.uint32), dtype=np.uint32)
    return powers[:, None]


def _hash(words: Array, constants: Array) -> Array:
    """Return the hashes (H, B) of words (H, B), or of one word (B,) each time, with H + 1 constants."""
    product: Array = (words ^ constants[:-1]) * constants[1:]
    return _fold(product)


def _mix(left: Array, right: Array) -> Array:
    difference: Array = left * MIX_LEFT - right * MIX_RIGHT
    return _fold(difference)


def _fold(words: Array) -> Array:
    """Return words whose lower half is mixed with their upper half."""
    folded: Array = words ^ (words >> 16)
    return folded
