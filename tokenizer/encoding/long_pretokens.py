"""Encoding one very long pretoken, such as a gigabyte of one letter, window by window.

This needs a vocabulary in which every merge ranks after the merges that make its parts. Then a sequence of ids is the
encoding of the whole text if merging the bytes of any two neighbours gives the same two ids: before the first merge
across their boundary, both are merged as in isolation, so that merge would also happen to the two alone. Windows are
therefore merged separately. Each starts at an id boundary of the window before, and only the two ids that meet there
are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.kernels import long as long_kernel
from tokenizer.kernels import merges as apply_kernel
from tokenizer.kernels.hash_tables import find_token

if TYPE_CHECKING:
    from tokenizer.encoding.kernel_encoder import MergeTables

WINDOW = 1 << 16  # bytes
MARGIN = 128  # bytes at the end of a window whose ids may depend on the text after it
WORK_PER_CALL = 1_000_000  # steps: about 0.2 s, between which Ctrl-C is handled


def encode_long(
    data: np.ndarray,
    start: int,
    end: int,
    tables: MergeTables,
    out: np.ndarray,
    at: int,
    check: Callable[[], None],
) -> int:
    """Write the ids of the pretoken data[start:end] to out[at:]. Return the end of the ids.

    data: uint8; out: uint32, with room for one id per byte. ValueError for more than 2 GiB.
    """
    token = find_token(data, start, end, tables.tokens)
    if token >= 0:
        out[at] = token
        return at + 1
    check_pretoken_size(end - start)
    if tables.made_by is None:
        return merge_by_heap(data, start, end - start, tables, out, at, check)
    first, window = at, WINDOW
    apart: dict[tuple[int, int], bool] = {}  # whether two ids that meet stay apart; periodic texts repeat few pairs
    long = long_kernel.make_long(min(window, end - start), len(tables.made_by))
    while True:
        size = min(window, end - start)
        last = _merge_window(data, start, size, tables, long, out, at, check)
        meeting = (int(out[at - 1]), int(out[at])) if at > first else None
        if meeting and meeting not in apart:
            apart[meeting] = _stay_apart(*meeting, tables, check)
        if meeting and not apart[meeting]:
            # These ids depend on more text than a window holds: retry with a longer window that starts further back.
            window *= 2
            wanted = start - window // 4
            while at > first and start > wanted:
                at -= 1
                start -= int(tables.byte_lengths[out[at]])
            long = long_kernel.make_long(min(window, end - start), len(tables.made_by))
        elif size == end - start:
            return last
        else:
            start += size
            wanted = start - MARGIN
            while last > at + 1 and start > wanted:
                last -= 1
                start -= int(tables.byte_lengths[out[last]])
            at = last


def check_pretoken_size(size: int) -> None:
    """Raise ValueError for a pretoken of 2 GiB or more: kernels store a place in it in 31 bits."""
    if size >= 2**31:
        raise ValueError(f"a single pretoken of {size} bytes is longer than the 2 GiB supported; cut the text")


def _merge_window(
    data: np.ndarray,
    start: int,
    size: int,
    tables: MergeTables,
    long: long_kernel.Long,
    out: np.ndarray,
    at: int,
    check: Callable[[], None],
) -> int:
    long.state[:] = long_kernel.NEW_STATE
    while long.state[long_kernel.BEGUN] < size:
        check()
        long_kernel.begin(data, start, size, tables.merges, long, WORK_PER_CALL)
    while long_kernel.merge(size, tables.merges, tables.made_by, long, WORK_PER_CALL):
        check()
    return int(long_kernel.write(size, long, out, at))


def _stay_apart(left: int, right: int, tables: MergeTables, check: Callable[[], None]) -> bool:
    """Return whether merging the bytes of two ids gives the same two ids."""
    assert tables.made_by is not None  # checked by `encode_long`
    both = np.frombuffer(tables.token_bytes[left] + tables.token_bytes[right], dtype=np.uint8)
    long = long_kernel.make_long(len(both), len(tables.made_by))
    ids = np.empty(len(both), dtype=np.uint32)
    end = _merge_window(both, 0, len(both), tables, long, ids, 0, check)
    return bool(ids[:end].tolist() == [left, right])


def merge_by_heap(
    data: np.ndarray,
    start: int,
    n: int,
    tables: MergeTables,
    out: np.ndarray,
    at: int,
    check: Callable[[], None],
) -> int:
    """Merge n bytes through a heap, for any ranks, in O(n log n) steps. Return the end of the ids in `out`."""
    merges, heap = tables.merges, apply_kernel.make_heap(n)
    size = 0
    for first in range(0, n, WORK_PER_CALL):
        check()
        size = apply_kernel.heap_begin(data, start, first, min(first + WORK_PER_CALL, n), n, merges, heap, size)
    while size:
        check()
        size = apply_kernel.heap_merge(n, merges, heap, size, WORK_PER_CALL)
    return int(apply_kernel.heap_ids(n, heap, out, at))
