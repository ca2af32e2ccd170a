"""Random segmentations of long texts by kernels, with the ids that plain Python gives for the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import as_readonly, single_block
from tokenizer.encoding.long_pretokens import check_pretoken_size
from tokenizer.kernels import sampling as kernel
from tokenizer.kernels.merges import make_heap
from tokenizer.splitting.pretokenize import pretokenize

if TYPE_CHECKING:
    from random import Random

    from tokenizer.encoding.kernel_encoder import KernelTables

NUMBERS_PER_BYTE = 1.5  # random numbers that one call of a kernel gets; it rarely needs more
LEAST_NUMBERS = 64
# Takes the text, the start of the first pretoken, the ends of all, random numbers, and the array and index to write ids
# to. Returns the number of pretokens done, of random numbers used, and the end of the ids.
Draw = Callable[[np.ndarray, int, np.ndarray, np.ndarray, np.ndarray, int], tuple[int, int, int]]


def draw_with_dropout(text: bytes, tables: KernelTables, dropout: float, random: Random) -> list[int]:
    """Return the ids of a text by BPE dropout, as `DropoutEncoder.encode` does."""

    def draw(
        data: np.ndarray, start: int, ends: np.ndarray, numbers: np.ndarray, out: np.ndarray, at: int
    ) -> tuple[int, int, int]:
        longest = _longest(start, ends)
        heap, dropped = make_heap(longest), np.empty(longest, dtype=np.uint64)
        drawn: tuple[int, int, int] = kernel.merge_with_dropout(
            data, start, ends, tables.merges, dropout, numbers, heap, dropped, out, at
        )
        return drawn

    return _draw(text, tables, random, draw)


def draw_pieces(text: bytes, tables: KernelTables, alpha: float, random: Random) -> list[int]:
    """Return the ids of a random segmentation of a text, as `Segmentations.sample` does."""

    def draw(
        data: np.ndarray, start: int, ends: np.ndarray, numbers: np.ndarray, out: np.ndarray, at: int
    ) -> tuple[int, int, int]:
        room = _longest(start, ends) + 1
        edges, sums, path = kernel.make_edges(room), np.empty(room), np.empty(room, dtype=np.int64)
        drawn: tuple[int, int, int] = kernel.draw_pieces(
            data, start, ends, tables.pieces, alpha, numbers, edges, sums, path, out, at
        )
        return drawn

    return _draw(text, tables, random, draw)


def _longest(start: int, ends: np.ndarray) -> int:
    """Return the size of the longest pretoken in bytes. ValueError for more than 2 GiB."""
    longest = int(np.diff(ends, prepend=start).max())
    check_pretoken_size(longest)
    return longest


def _draw(text: bytes, tables: KernelTables, random: Random, draw: Draw) -> list[int]:
    """Return the ids that `draw` gives a text, and advance `random` by exactly the numbers used."""
    block, chunks = pretokenize(single_block(text), tables.pattern)
    data, start, at = as_readonly(block.data), int(block.offsets[0]), 0
    out = np.empty(block.size, dtype=np.uint32)
    for ends in chunks:
        factor = 1
        while len(ends):
            state = random.getstate()
            wanted = factor * (LEAST_NUMBERS + int(NUMBERS_PER_BYTE * (ends[-1] - start)))
            done, used, at = draw(data, start, ends, uniform_numbers(random, wanted), out, at)
            random.setstate(state)
            uniform_numbers(random, used)
            factor = 1 if done else 2 * factor
            if done:
                start, ends = int(ends[done - 1]), ends[done:]
    ids: list[int] = out[:at].tolist()
    return ids


def uniform_numbers(random: Random, n: int) -> np.ndarray:
    """Return the results of n calls of random.random(), float64."""
    # CPython makes each number of the upper 27 and 26 bits of two words of the Mersenne Twister.
    words = np.frombuffer(random.randbytes(8 * n), dtype="<u4").reshape(n, 2)
    return ((words[:, 0] >> 5) * 67108864.0 + (words[:, 1] >> 6)) / 9007199254740992.0
