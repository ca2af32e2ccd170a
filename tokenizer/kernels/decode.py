"""From ids to bytes."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import kernel, load_8, store_8

PADDING = 16  # bytes behind the last token's, so that 16 may be loaded from where any begins


@kernel
def measure(ids, offsets, first, last):
    """How many bytes ids[first:last] stand for, or -1 - i for the first, ids[i], that is no token.

    ids: uint32; offsets: int64 (vocabulary + 1,), where each token begins in the table; what is no token has no bytes.
    """
    size = 0
    for i in range(first, last):
        token = ids[i]
        if token >= np.uint32(len(offsets) - 1) or offsets[token] == offsets[token + np.uint32(1)]:
            return -1 - i
        size += offsets[token + np.uint32(1)] - offsets[token]
    return size


@kernel
def write(ids, table, offsets, first, last, out, at):
    """Write the bytes of ids[first:last] to `out`, uint8, from `at` on; where they end.

    Most tokens are short, so 16 bytes are copied at once and what is too much is overwritten by the next.
    """
    safe = len(out) - PADDING
    for i in range(first, last):
        token = ids[i]
        start = offsets[token]
        length = offsets[token + np.uint32(1)] - start
        if length <= PADDING and at <= safe:
            store_8(out, at, load_8(table, start))
            store_8(out, at + 8, load_8(table, start + 8))
        else:
            for k in range(length):
                out[at + k] = table[start + k]
        at += length
    return at
