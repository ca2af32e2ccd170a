"""Readers of .parquet and .arrow files: one document per row, from one column of texts or of lists of integers.

They use pyarrow, because `datasets` takes a path with brackets for a glob.
"""

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from corpora.document_error import DocumentError
from corpora.documents import Chunk, unread
from corpora.formats.integers import documents_of_lists, holds_integers
from corpora.object_store import AnyPath, ObjectPath, ObjectStoreError
from corpora.read_options import Column, choose_column

TABLE_ROWS = 256  # read at a time
_ARROW_FILE = b"ARROW1"


def read_parquet(
    path: AnyPath, split: str | None, text_column: str | None, first: int = 0, last: int | None = None
) -> Iterator[Chunk]:
    """Yield the text column of the row groups [first, last) of a .parquet file.

    The Arrow scanner in `datasets` would read up to a gigabyte of decoded text ahead of a slow consumer.
    """
    import pyarrow.parquet

    def failure(error: Exception) -> Exception:
        return _unreadable(path, "parquet", error)

    try:
        file = pyarrow.parquet.ParquetFile(_table_source(path))
        columns = file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise failure(error) from error
    with file:
        column = choose_column(columns, path, text_column)
        groups = range(file.num_row_groups)
        row = 1 + sum(file.metadata.row_group(group).num_rows for group in groups[:first])
        # One row group at a time, so that damage costs the same rows for every division of the file into ranges.
        for group in groups[first:last]:
            batches = file.iter_batches(TABLE_ROWS, [group], columns=[column.steps[0]], use_threads=False)
            try:
                yield from column_chunks(batches, column, str(path), split, failure, row)
            except DocumentError as bad:
                yield unread(bad, path, split)
            row += file.metadata.row_group(group).num_rows


def row_group_cuts(path: AnyPath, size: int) -> list[int]:
    """Return row group numbers, from 0 to their total, that cut a .parquet file into ranges of about `size` bytes."""
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.read_metadata(_table_source(path))
        ends = list(itertools.accumulate(file.row_group(group).total_byte_size for group in range(file.num_row_groups)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, "parquet", error) from error
    cuts, start = [0], 0
    for group, end in enumerate(ends[:-1], 1):
        if end - start >= size:
            cuts.append(group)
            start = end
    return [*cuts, len(ends)]


def read_arrow(path: AnyPath, split: str | None, text_column: str | None) -> Iterator[Chunk]:
    """Yield the text column of a memory-mapped .arrow file: Arrow's stream format or its file format."""

    def failure(error: Exception) -> Exception:
        return _unreadable(path, "arrow", error)

    try:
        schema, batches = _arrow_batches(path)
        columns = schema.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise failure(error) from error
    column = choose_column(columns, path, text_column)
    yield from column_chunks(batches, column, str(path), split, failure)


def _table_source(path: AnyPath) -> Any:
    """Return what pyarrow opens: a local path, or a file object of which it reads only what it needs."""
    return path if isinstance(path, Path) else pa.PythonFile(path.open_raw(), "r")


def _unreadable(path: AnyPath, kind: str, error: Exception) -> Exception:
    if isinstance(error, ObjectStoreError):
        return error
    if isinstance(error, MemoryError):
        return MemoryError(f"{path} needs more memory than is free ({one_line(error)}): it may be damaged")
    message = f"{path} is not a readable {kind} file ({one_line(error)}): fetch or write it again"
    refused = isinstance(error, OSError) and error.errno is not None  # such as a missing permission
    return ValueError(message) if refused else DocumentError("damaged", message)


def one_line(error: Exception) -> str:
    """Return the message of a library's error on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _arrow_batches(path: AnyPath) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of a file in Arrow's file format or stream format."""
    if not isinstance(path, Path):
        return _object_batches(path)
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    source = pa.py_buffer(mapped)
    if mapped[: len(_ARROW_FILE)] != _ARROW_FILE:
        stream = pa.ipc.open_stream(source)
        return stream.schema, _release_pages(stream, mapped)
    file = pa.ipc.open_file(source)
    return file.schema, _release_pages(map(file.get_batch, range(file.num_record_batches)), mapped)


def _object_batches(path: ObjectPath) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return what `_arrow_batches` returns, for an object store, from which the batches are read one by one."""
    opened = path.open()
    is_file = opened.read(len(_ARROW_FILE)) == _ARROW_FILE
    opened.seek(0)
    if not is_file:
        stream = pa.ipc.open_stream(pa.PythonFile(opened, "r"))
        return stream.schema, iter(stream)
    file = pa.ipc.open_file(pa.PythonFile(opened, "r"))
    return file.schema, map(file.get_batch, range(file.num_record_batches))


def _release_pages(batches: Iterable[pa.RecordBatch], mapped: mmap.mmap) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and release the file's pages after each one, so that a large file does not fill memory."""
    for batch in batches:
        yield batch
        if hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)


def column_chunks(
    tables: Iterator[pa.Table | pa.RecordBatch],
    column: Column,
    origin: str,
    split: str | None,
    failure: Callable[[Exception], Exception],
    row: int = 1,
) -> Iterator[Chunk]:
    """Yield one column of a table that arrives in pieces, the first of which begins with row number `row`.

    Every piece is validated first, because Arrow reads the offsets of a damaged file unchecked and crashes.
    `failure` turns an error of the reader into one sentence.
    """
    while True:
        try:
            rows = next(tables, None)
            cells = rows.column(column.steps[0]) if rows is not None else None
        except Exception as error:
            raise failure(error) from error
        if cells is None:
            return
        for documents in cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]:
            if holds_integers(documents.type):
                documents = _lists(documents, column, origin, failure)
            elif column.is_nested:
                documents = _inner_texts(documents, column, origin, row, failure)
            elif not _holds_text(documents.type):
                raise ValueError(
                    f'column "{column.name}" of {origin} holds {documents.type}, not text: choose another with '
                    "`text_column` or `pairs`"
                )
            try:
                documents = _validate(documents)
            except Exception as error:
                raise failure(error) from error
            yield Chunk(documents=documents, origin=origin, split=split, rows=range(row, row + len(documents)))
            row += len(documents)


def _lists(cells: pa.Array, column: Column, origin: str, failure: Callable[[Exception], Exception]) -> pa.Array:
    """Return lists of integers as documents."""
    try:
        cells.validate(full=True)
    except Exception as error:
        raise failure(error) from error
    return documents_of_lists(cells, column.name, origin)


def _inner_texts(
    cells: pa.Array, column: Column, origin: str, row: int, failure: Callable[[Exception], Exception]
) -> pa.Array:
    """Return the texts in a field within the cells of a column. Raises ValueError for other types."""
    try:
        cells.validate(full=True)
        values = cells.to_pylist()
    except Exception as error:
        raise failure(error) from error
    texts = []
    for number, value in enumerate(values, row):
        try:
            texts.append(column.text(value))
        except ValueError as error:
            raise ValueError(
                f'"{column.name}" in row {number} of {origin} is {error}: choose another with `text_column` or `pairs`'
            ) from None
    return pa.array(texts, pa.large_string())


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    return pa.types.is_null(kind) or kind in _BYTES_OF


def _validate(documents: pa.Array) -> pa.Array:
    """Return the array as bytes after checking its offsets and indices. Raises ArrowException for a damaged array.

    Strings are checked as bytes, because Arrow would also check UTF-8, which `corpora.documents.clean` handles.
    """
    kind = documents.type
    if pa.types.is_dictionary(kind):
        # `take` checks that the indices are within the dictionary.
        return _validate(documents.dictionary).take(documents.indices)
    if pa.types.is_null(kind):
        return documents.cast(pa.large_binary())
    documents = documents.view(_BYTES_OF[kind])
    documents.validate(full=True)
    return documents.cast(pa.large_binary())


_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.binary(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.large_binary(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
    pa.binary_view(): pa.binary_view(),
}
