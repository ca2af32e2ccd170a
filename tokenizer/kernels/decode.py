"""Decoding of ids to bytes."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import kernel, load_8, store_8

PADDING = 16  # bytes after the last token, so that 16 bytes can be loaded from the start of any token


@kernel
def measure(ids, offsets, first, last):
    """Return the number of bytes of ids[first:last], or -1 - i for the first id, ids[i], without a token.

    ids: uint32; offsets: int64 (vocabulary + 1,), the start of each token in the table. An id without a token has no
    bytes.
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
    """Write the bytes of ids[first:last] to out[at:], uint8. Return the end of the bytes.

    Most tokens are short: each copy is 16 bytes, and the next token overwrites the excess.
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
