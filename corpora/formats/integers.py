"""Sequences of integers as documents: arrays in .npy files, and lists in columns of Parquet and Arrow files.

The integer i is the character U+F0000 + i, as in `tokenizer.splitting.integers`. A .npy file has a sequence in each row
of a 2-D array, or one sequence in a 1-D array. Sequences of different lengths are lists in Parquet or Arrow, which have
a type for them; .npy has none without pickled objects.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from corpora.document_error import DocumentError
from corpora.documents import BATCH_BYTES, Chunk, too_long
from corpora.object_store import AnyPath
from corpora.read_options import ReadOptions

FIRST, MOST, WIDTH = 0xF0000, 0x20000, 4  # character of 0; number of integers; bytes of each


def as_documents(integers: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Return sequences as large_binary documents of UTF-8.

    integers: (N,) of any integer dtype, from 0 to 131,071. offsets: int64 (sequences + 1,), in `integers`. Raises
    ValueError with the first integer outside of this range.
    """
    wrong = (integers < 0) | (integers >= MOST)
    if wrong.any():
        raise ValueError(f"the integer {integers[wrong.argmax()]}, but they must be from 0 to {MOST - 1:,}")
    points = integers.astype(np.uint32) + np.uint32(FIRST)
    shifted = [0xF0 | points >> 18, *(0x80 | points >> shift & 0x3F for shift in (12, 6, 0))]
    data = np.stack(shifted, axis=1).astype(np.uint8)
    buffers = [None, pa.py_buffer(offsets.astype(np.int64) * WIDTH), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def read_npy(path: AnyPath, split: str | None, options: ReadOptions) -> Iterator[Chunk]:
    """Yield the sequences of a .npy file: the rows of a 2-D array, or a whole 1-D array."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise DocumentError("damaged", f"{path} is not a readable .npy file ({error}): write it again") from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{path} is {array.ndim}-D of {array.dtype}: give a 1-D or 2-D array of integers; sequences of different "
            "lengths are lists in Parquet"
        )
    rows = np.atleast_2d(array)
    width = rows.shape[1]
    if width * WIDTH > options.max_document:
        raise too_long(path, f"has sequences of {width:,} integers, {width * WIDTH:,} bytes as text", options)
    step = max(1, BATCH_BYTES // (WIDTH * max(1, width)))
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        try:
            documents = as_documents(some.reshape(-1), np.arange(len(some) + 1) * width)
        except ValueError as error:
            raise ValueError(f"{path} has {error}") from None
        numbers = None if array.ndim == 1 else range(first + 1, first + 1 + len(some))
        yield Chunk(documents=documents, origin=str(path), split=split, rows=numbers)


def holds_integers(kind: pa.DataType) -> bool:
    """Return whether the cells of a column are lists of integers."""
    is_list: bool = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and bool(pa.types.is_integer(kind.value_type))


def documents_of_lists(cells: Any, column: str, origin: str) -> pa.Array:
    """Return a validated array of lists of integers as documents; a null is an empty one.

    Raises ValueError for an integer that is null or out of range.
    """
    lists = cells.cast(pa.large_list(cells.type.value_type))
    values = lists.flatten()
    if values.null_count:
        raise ValueError(f'column "{column}" of {origin} has a list with a null: remove it')
    lengths = np.array([length or 0 for length in lists.value_lengths().to_pylist()], np.int64)
    try:
        return as_documents(values.to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(lengths)]))
    except ValueError as error:
        raise ValueError(f'column "{column}" of {origin} has {error}') from None
