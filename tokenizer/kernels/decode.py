"""Decoding many ids to bytes at once."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import kernel, load_8, store_8

IDS_PER_CALL = 1 << 22  # about 10 ms, between which Ctrl-C is handled
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


class Decoder:
    """Decoder of arrays of ids. by_id: the bytes of each id, None for an id without a token."""

    def __init__(self, by_id: list[bytes | None]):
        self._offsets = np.zeros(len(by_id) + 1, dtype=np.int64)
        np.cumsum([len(token or b"") for token in by_id], out=self._offsets[1:])
        whole = b"".join(token or b"" for token in by_id) + bytes(PADDING)
        self._table = np.frombuffer(whole, dtype=np.uint8)

    def decode(self, ids: np.ndarray) -> bytes | None:
        """Return the bytes of an array of integer ids; None if an id has no token."""
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            return None
        if len(ids) and (ids.dtype.itemsize > 4 or ids.dtype.kind == "i") and (ids.min() < 0 or ids.max() >= 2**32):
            return None
        ids = np.ascontiguousarray(ids, dtype=np.uint32)
        steps = [(first, min(first + IDS_PER_CALL, len(ids))) for first in range(0, len(ids), IDS_PER_CALL)]
        sizes = [measure(ids, self._offsets, *step) for step in steps]
        if any(size < 0 for size in sizes):
            return None
        out = np.empty(sum(sizes), dtype=np.uint8)
        at = 0
        for step in steps:
            at = write(ids, self._table, self._offsets, *step, out, at)
        return out.tobytes()
