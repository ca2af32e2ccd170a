"""Decoding many ids at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import as_readonly
from tokenizer.kernels import decode as kernel

if TYPE_CHECKING:
    import pyarrow as pa

IDS_PER_CALL = 1 << 22  # about 10 ms, between which Ctrl-C is handled


class Decoder:
    """Decoder of arrays of ids. by_id: the bytes of each id, None for an id without a token."""

    def __init__(self, by_id: list[bytes | None]):
        self._offsets = np.zeros(len(by_id) + 1, dtype=np.int64)
        np.cumsum([len(token or b"") for token in by_id], out=self._offsets[1:])
        whole = b"".join(token or b"" for token in by_id) + bytes(kernel.PADDING)
        self._table = as_readonly(np.frombuffer(whole, dtype=np.uint8))

    def decode(self, ids: np.ndarray | pa.Array) -> bytes | None:
        """Return the bytes of a numpy or Arrow array of integer ids; None if an id has no token."""
        ids = ids if isinstance(ids, np.ndarray) else ids.to_numpy(zero_copy_only=False)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            return None
        if len(ids) and (ids.dtype.itemsize > 4 or ids.dtype.kind == "i") and (ids.min() < 0 or ids.max() >= 2**32):
            return None
        ids = np.ascontiguousarray(ids, dtype=np.uint32)
        steps = [(first, min(first + IDS_PER_CALL, len(ids))) for first in range(0, len(ids), IDS_PER_CALL)]
        sizes = [kernel.measure(ids, self._offsets, *step) for step in steps]
        if any(size < 0 for size in sizes):
            return None
        out = np.empty(sum(sizes), dtype=np.uint8)
        at = 0
        for step in steps:
            at = kernel.write(ids, self._table, self._offsets, *step, out, at)
        return out.tobytes()
