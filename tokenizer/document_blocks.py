"""Blocks of documents from any corpus: the concatenated bytes, and the offset of each document.

A corpus is the path of a text file, or an iterable of documents: str and bytes are texts, `Path` objects are files,
pyarrow arrays and record batches with one text column hold many texts. A block is a view of a few megabytes that
kernels read without the GIL.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenizer.text import text_bytes

if TYPE_CHECKING:
    import re

    import pyarrow as pa

    from tokenizer.splitting.normalizers import Normalization

BLOCK_BYTES = 4 << 20
LONGEST_PATH = 1 << 15
NORMALIZED_BYTES = 1 << 20  # normalized at once
SEARCHED_BYTES = 1 << 14  # searched at once for a place to cut


@dataclass(frozen=True)
class Block:
    """Consecutive documents. data: uint8, read-only; document d is data[offsets[d]:offsets[d + 1]]; offsets: int64."""

    data: np.ndarray
    offsets: np.ndarray

    @property
    def size(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])


def as_readonly(data: np.ndarray) -> np.ndarray:
    """Return a read-only view; kernels are compiled for read-only bytes only."""
    view = data.view()
    view.flags.writeable = False
    return view


def single_block(text: bytes | memoryview | mmap.mmap) -> Block:
    """Return a block of one document."""
    return Block(np.frombuffer(text, dtype=np.uint8), np.array([0, len(text)], dtype=np.int64))


def block_of(documents: list[bytes]) -> Block:
    """Return one block of several documents."""
    offsets = np.zeros(len(documents) + 1, dtype=np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    return Block(np.frombuffer(b"".join(documents), dtype=np.uint8), offsets)


def arrow_lists(ids: np.ndarray, id_offsets: np.ndarray) -> pa.LargeListArray:
    """Return ids, uint32, as one list for each document. id_offsets: int64 (documents + 1,)."""
    import pyarrow as pa

    # pa.array would import pandas.
    values = pa.Array.from_buffers(pa.uint32(), len(ids), [None, pa.py_buffer(ids)])
    offsets = [None, pa.py_buffer(id_offsets)]
    return pa.Array.from_buffers(pa.large_list(pa.uint32()), len(id_offsets) - 1, offsets, children=[values])


def arrow_block(array: pa.Array) -> Block:
    """Return the documents of a pyarrow string or binary array without copying their bytes. ValueError for nulls."""
    import pyarrow as pa

    small = array.type in (pa.string(), pa.binary())
    if not small and array.type not in (pa.large_string(), pa.large_binary()):
        if not (pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type)):
            raise ValueError(
                f"documents must be an Arrow string, large_string, binary or large_binary array, not {array.type}"
            )
        array = array.cast(pa.large_binary())
    if array.null_count:
        first = array.is_null().index(True).as_py()
        raise ValueError(
            f"the array has {array.null_count} null documents (the first is number {first}); "
            "drop them, or replace them by empty ones"
        )
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return Block(np.frombuffer(b"", dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64))
    offsets = np.frombuffer(offsets, dtype=np.int32 if small else np.int64)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    return Block(as_readonly(data), offsets)


def cut(block: Block, target: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield blocks of whole documents, of about `target` bytes each."""
    offsets = block.offsets
    first, documents = 0, len(offsets) - 1
    while first < documents:
        last = int(np.searchsorted(offsets, offsets[first] + target, side="right")) - 1
        last = min(max(last, first + 1), documents)
        yield Block(block.data, offsets[first : last + 1])
        first = last


def cut_within(block: Block, target: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield blocks of about `target` bytes; long documents are cut into parts with the same pretokens."""
    for piece in cut(block, target):
        start, end = int(piece.offsets[0]), int(piece.offsets[-1])
        if end - start <= 2 * target:
            yield piece
            continue
        assert len(piece.offsets) == 2
        places = safe_places(block.data[start:end], target)
        for first, last in pairwise(chain([0], places, [end - start])):
            yield Block(block.data, np.array([start + first, start + last], dtype=np.int64))


def safe_places(data: np.ndarray, target: int) -> Iterator[int]:
    """Yield ascending places that cut UTF-8 bytes into parts of about `target` bytes.

    A place is before a space or line feed that follows an ASCII letter or digit. A pattern that `splits_at_spaces`
    always ends a pretoken there. The search goes back from the end of a part; without a place, the part becomes longer.
    """
    start, wanted = 0, target
    while wanted < len(data):
        first = max(wanted - SEARCHED_BYTES, start) + 1
        before, here = data[first - 1 : wanted], data[first : wanted + 1]
        letter = before | 0x20
        safe = (letter >= 97) & (letter <= 122) | (before >= 48) & (before <= 57)
        places = np.flatnonzero(safe & ((here == 32) | (here == 10)))
        if len(places):
            start = first + int(places[-1])
            yield start
            wanted = start + target
        else:
            wanted += SEARCHED_BYTES


def cut_out(block: Block, spellings: re.Pattern[bytes] | None) -> Block:
    """Return a block whose documents are the text between matches of `spellings`; the same block without a match."""
    text = block.data.data
    if spellings is None or not spellings.search(text, int(block.offsets[0]), int(block.offsets[-1])):
        return block
    documents = []
    for start, end in pairwise(block.offsets.tolist()):
        for match in spellings.finditer(text, start, end):
            documents.append(bytes(text[start : match.start()]))
            start = match.end()
        documents.append(bytes(text[start:end]))
    return block_of(documents)


def normalized_block(block: Block, normalization: Normalization) -> Block:
    """Return a block with every document normalized; the same block if nothing changes."""
    apply, places = normalization.apply, block.offsets.tolist()
    if not normalization.cuts_at_ascii:
        return block_of([apply(block.data[start:end].tobytes()) for start, end in pairwise(places)])
    # Parts of a text that is normalized are normalized.
    if all(apply(piece) is piece for piece in _pieces(block.data, places[0], places[-1])):
        return block
    return block_of([b"".join(map(apply, _pieces(block.data, start, end))) for start, end in pairwise(places)])


def _pieces(data: np.ndarray, start: int, end: int) -> Iterator[bytes]:
    """Yield data[start:end] in pieces that end before an ASCII character: no characters compose across these ends."""
    while start < end:
        stop = min(start + NORMALIZED_BYTES, end)
        while stop < end and not (ascii_bytes := data[stop : min(stop + 4096, end)] < 128).any():
            stop += len(ascii_bytes)
        if stop < end:
            stop += int(ascii_bytes.argmax())
        yield data[start:stop].tobytes()
        start = stop


def corpus_blocks(corpus: object) -> tuple[Iterator[Block], int | None]:
    """Return the blocks of a corpus in order, and its size in bytes if known in advance."""
    paths = _as_paths(corpus)
    if paths is not None:
        return map(file_block, paths), sum(path.stat().st_size for path in paths)
    if isinstance(corpus, (bytes, bytearray, memoryview)):
        raise ValueError("a single bytes object is not a corpus: pass a path, or a list of documents")
    if not isinstance(corpus, Iterable) and not hasattr(corpus, "to_batches"):
        raise ValueError(
            "corpus must be a path, or an iterable of str, bytes, Path objects or Arrow record batches, "
            f"not {type(corpus).__name__}"
        )
    return _blocks_of_documents(_arrow_chunks(corpus)), None


def _as_paths(corpus: object) -> list[Path] | None:
    """Return the files of a corpus that is one path or a list of `Path` objects; None for a corpus of documents."""
    if isinstance(corpus, (str, os.PathLike)):
        return [_existing(corpus)]
    if isinstance(corpus, (list, tuple)) and corpus:
        if all(isinstance(x, os.PathLike) for x in corpus):
            return [_existing(path) for path in corpus]
        if all(isinstance(x, str) and _is(Path.is_file, x) for x in corpus):
            raise ValueError(
                f"every str in the corpus names an existing file (the first is {corpus[0][:200]!r}): "
                "pass Path objects to read these files, or iter([...]) to use the strings as texts"
            )
    return None


def _existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file. ValueError for a folder, FileNotFoundError where there is no such file."""
    if _is(Path.is_dir, path):
        raise ValueError(f"{path} is a folder; pass the files in it")
    if not _is(Path.is_file, path):
        hint = "; a text itself goes in a list" if isinstance(path, str) else ""
        raise FileNotFoundError(f"no such file: {str(path)[:200]!r}{hint}")
    return Path(path)


def _is(test: Callable[[Path], bool], path: str | os.PathLike[str]) -> bool:
    """Return Path.is_file or is_dir; False for a text that is too long for a path or has a NUL."""
    if isinstance(path, str) and len(path) > LONGEST_PATH:
        return False
    try:
        return test(Path(path))
    except (OSError, ValueError):
        return False


def file_block(path: str | os.PathLike[str]) -> Block:
    """Return a file as one document, memory-mapped so that it need not fit in memory; a pipe is read."""
    with open(path, "rb") as file:  # noqa: PTH123 - open takes str and Path
        try:
            data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a pipe, or an empty file
            data = file.read()
    return single_block(data)


def release(block: Block) -> None:
    """Release the pages of a mapped file; the system would do so only under memory pressure."""
    mapped = getattr(block.data.base, "obj", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        first = -(-int(block.offsets[0]) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = int(block.offsets[-1]) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _arrow_chunks(corpus: Any) -> Iterator[Any]:  # whatever has pyarrow's methods
    """Yield the items of a corpus; Arrow tables, chunked arrays and batches become plain arrays."""
    if hasattr(corpus, "to_batches"):  # a table or dataset
        corpus = corpus.to_batches()
    elif hasattr(corpus, "iterchunks"):
        corpus = corpus.iterchunks()
    elif hasattr(corpus, "buffers"):  # one array
        corpus = [corpus]
    for item in corpus:
        if hasattr(item, "columns"):
            if item.num_columns != 1:
                raise ValueError(
                    f"a record batch must have one text column, not {item.num_columns} ({item.schema.names})"
                )
            item = item.column(0)
        if hasattr(item, "iterchunks"):
            yield from item.iterchunks()
        else:
            yield item


def _blocks_of_documents(items: Iterable[Any]) -> Iterator[Block]:
    pending: list[bytes] = []
    size = 0
    for item in items:
        if hasattr(item, "buffers"):
            yield arrow_block(item)
            continue
        if isinstance(item, os.PathLike):
            yield file_block(_existing(item))
            continue
        pending.append(text_bytes(item))
        size += len(pending[-1])
        if size >= BLOCK_BYTES:
            yield block_of(pending)
            pending, size = [], 0
    if pending:
        yield block_of(pending)
