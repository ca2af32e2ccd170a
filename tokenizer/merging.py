"""From pretoken counts to the merge list: the rule of byte-pair encoding, exactly.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), on bytes: the pair with
the largest count is merged, among equals the one with the smallest left, then right id; a pair's count is the
sum over pretokens of their count times its overlapping occurrences; replacement goes from left to right
without overlap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenizer.counting import PretokenCounts

# Hugging Face's ByteLevel alphabet: printable characters first, the rest behind. Only ties depend on it.
GPT2_BYTE_ORDER = bytes([*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173])
RAW_BYTE_ORDER = bytes(range(256))
BYTE_ORDERS = {"gpt2": GPT2_BYTE_ORDER, "raw": RAW_BYTE_ORDER}

WORK_PER_CALL = 200_000  # replacements, about 10 ms: Ctrl-C and progress are heard in between


def learn_merges(
    counts: PretokenCounts,
    wanted: int,
    *,
    byte_order: bytes,
    min_frequency: int,
    max_token_length: int | None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> np.ndarray:
    """Return up to `wanted` merges, int32 (n, 2): symbols below 256 are places in `byte_order`, 256 + k is merge k."""
    from tokenizer import merge_kernel as kernel

    index = np.int32 if len(counts.data) < 2**31 and len(counts) < 2**31 else np.int64
    symbol_of_byte = np.empty(256, dtype=np.int64)
    symbol_of_byte[np.frombuffer(byte_order, dtype=np.uint8)] = np.arange(256)
    nodes = np.empty((len(counts.data), 7), dtype=index)
    kernel.initialize(counts.data, counts.offsets, symbol_of_byte, nodes)

    state = np.zeros(4, dtype=np.int64)
    capacity = 65536 + 2 * (256 + wanted)
    pairs = np.empty((capacity, 5), dtype=np.int64)
    free = np.empty(capacity, dtype=np.int64)
    heap_counts = np.empty(capacity, dtype=np.int64)
    heap_records = np.empty(capacity, dtype=np.int64)
    min_count = max(1, min_frequency)
    max_length = max_token_length if max_token_length is not None else 2**62
    record_of_pair = np.full(65536, -1, dtype=np.int64)
    kernel.list_first_pairs(nodes, counts.counts, pairs, record_of_pair, state)
    kernel.push_first_pairs(nodes, pairs, free, heap_counts, heap_records, state, min_count, max_length)

    lengths = np.ones(256 + wanted, dtype=np.int64)
    merges = np.empty((wanted, 2), dtype=np.int32)
    with_left = np.full(256 + wanted, -1, dtype=np.int64)
    with_right = np.full(256 + wanted, -1, dtype=np.int64)
    made = np.empty(2 * (256 + wanted) + 2, dtype=np.int64)
    while True:
        outcome = kernel.merge(
            nodes,
            counts.counts,
            pairs,
            free,
            heap_counts,
            heap_records,
            lengths,
            merges,
            with_left,
            with_right,
            made,
            state,
            min_count,
            max_length,
            WORK_PER_CALL,
        )
        if progress is not None:
            progress("merge", int(state[kernel.MERGES]), wanted)
        if outcome == 2:
            return merges[: state[kernel.MERGES]]
        if outcome == 1:
            pairs, free, heap_counts, heap_records = (
                np.concatenate([array, np.empty_like(array)]) for array in (pairs, free, heap_counts, heap_records)
            )
