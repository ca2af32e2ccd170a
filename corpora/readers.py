"""Readers: one class for each place where documents come from. Each can be read again, in the same order.

.txt files are read as bytes by `read_text` (the reader in `datasets` rewrites line ends), .jsonl by
`corpora.jsonl`, .parquet and .arrow by pyarrow (`datasets` takes a path for a pattern, in which brackets are no
brackets); the hub comes through `datasets`, streamed. It is slow to import, so that happens at first use.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from corpora.compression import SUFFIXES, mapped_size, read_whole
from corpora.csv_files import read_csv
from corpora.documents import Chunk, single_document
from corpora.files import InputFile, file_format, standard_library_files, standard_library_folder
from corpora.json_files import read_json
from corpora.jsonl import choose_column, read_jsonl
from corpora.reading import Reading
from corpora.text_files import read_text

_TABLE_ROWS = 256
_ARROW_FILE = b"ARROW1"


class Reader(Protocol):
    """Where documents come from."""

    own_splits: tuple[str, ...]
    """the splits that its chunks are marked with; empty where it has none, and then its chunks carry None"""

    bytes_estimate: int | None
    """about how many bytes of text there are, where that is cheaply known"""

    mapped_bytes: int
    """size of the largest document that a pass maps into memory, 0 if it maps none"""

    def surely_many(self, documents: int) -> bool:
        """Whether there are at least so many non-empty documents, as far as can be told without reading."""

    def chunks(self) -> Iterator[Chunk]:
        """One pass over all documents."""


class StandardLibrary:
    """The running interpreter's standard library (see `corpora.files.standard_library_files`)."""

    own_splits = ()
    mapped_bytes = 0

    def __init__(self):
        self._files = list(standard_library_files())
        if not self._files:
            raise FileNotFoundError(f"this Python's standard library holds no .py file at {standard_library_folder()}")
        self.bytes_estimate = sum(path.stat().st_size for path in self._files)

    def surely_many(self, documents: int) -> bool:
        # The card defines files that are not UTF-8 away: a handful in some versions.
        return len(self._files) >= 2 * documents

    def chunks(self) -> Iterator[Chunk]:
        for path in self._files:
            yield Chunk(documents=single_document(read_whole(path)), origin=str(path), skip_invalid=True)


class Files:
    """Files of the known formats, in the order given."""

    def __init__(self, files: Sequence[InputFile], reading: Reading):
        self._files = files
        self._reading = reading
        # Splits that only some files say are no splits: the others would be nowhere.
        all_say = all(file.split for file in files)
        self.own_splits = tuple(dict.fromkeys(file.split for file in files)) if all_say else ()
        kinds = {file_format(file.path, reading.suffix) for file in files}
        plain = kinds <= {".txt", ".jsonl"} and not any(file.path.suffix.lower() in SUFFIXES for file in files)
        self.bytes_estimate = sum(file.path.stat().st_size for file in files) if plain else None
        texts = [file.path for file in files if file_format(file.path, reading.suffix) == ".txt"]
        self.mapped_bytes = max(map(mapped_size, texts), default=0)

    def surely_many(self, documents: int) -> bool:
        texts = (file.path for file in self._files if file.path.suffix.lower() == ".txt")
        return sum(path.stat().st_size > 0 for path in texts) >= documents

    def chunks(self) -> Iterator[Chunk]:
        for file in self._files:
            split = file.split if self.own_splits else None
            match file_format(file.path, self._reading.suffix):
                case ".txt":
                    yield read_text(file.path, split, self._reading)
                case ".jsonl":
                    yield from read_jsonl(file.path, split, self._reading)
                case ".csv":
                    yield from read_csv(file.path, split, self._reading)
                case ".json":
                    yield from read_json(file.path, split, self._reading)
                case ".parquet":
                    yield from _read_parquet(file.path, split, self._reading.text_column)
                case ".arrow":
                    yield from _read_arrow(file.path, split, self._reading.text_column)


def quiet_datasets():
    """The `datasets` package without its progress bars and log lines."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    return datasets


def one_line(error: Exception) -> str:
    """What an error of a library says, on one line and not endlessly."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _read_parquet(path: Path, split: str | None, text_column: str | None) -> Iterator[Chunk]:
    """Yield the text column of a .parquet file.

    Not through `datasets`, whose Arrow scanner reads ahead of a slow consumer by up to a gigabyte of decoded text.
    """
    import pyarrow.parquet

    def failure(error: Exception) -> Exception:
        return _unreadable(path, "parquet", error)

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise failure(error) from error
    with file:
        column = choose_column(columns, path, text_column)
        batches = file.iter_batches(batch_size=_TABLE_ROWS, columns=[column], use_threads=False)
        yield from column_chunks(batches, column, str(path), split, failure)


def _read_arrow(path: Path, split: str | None, text_column: str | None) -> Iterator[Chunk]:
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


def _unreadable(path: Path, kind: str, error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return MemoryError(f"{path} asks for more memory than there is ({one_line(error)}): it may be damaged")
    return ValueError(f"{path} is not a readable {kind} file ({one_line(error)}): fetch or write it again")


def _arrow_batches(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of a file in Arrow's file format or stream format."""
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    source = pa.py_buffer(mapped)
    if mapped[: len(_ARROW_FILE)] != _ARROW_FILE:
        stream = pa.ipc.open_stream(source)
        return stream.schema, _releasing(stream, mapped)
    file = pa.ipc.open_file(source)
    return file.schema, _releasing(map(file.get_batch, range(file.num_record_batches)), mapped)


def _releasing(batches: Iterable[pa.RecordBatch], mapped: mmap.mmap) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and release the file's pages after each one, so that a large file does not fill memory."""
    for batch in batches:
        yield batch
        if hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)


def stream_tables(dataset, column: str) -> Iterator[pa.Table]:
    """The rows of an iterable dataset of `datasets` as Arrow tables of one column."""
    return iter(dataset.select_columns([column]).with_format("arrow").iter(batch_size=_TABLE_ROWS))


def column_chunks(
    tables: Iterator[pa.Table | pa.RecordBatch],
    column: str,
    origin: str,
    split: str | None,
    failure: Callable[[Exception], Exception],
) -> Iterator[Chunk]:
    """Yield one column of a table that arrives in pieces.

    Every piece is validated first, because Arrow reads the offsets of a damaged file unchecked and crashes.
    `failure` turns an error of the reader into one sentence.
    """
    row = 1
    while True:
        try:
            rows = next(tables, None)
            whole = rows.column(column) if rows is not None else None
        except Exception as error:
            raise failure(error) from error
        if whole is None:
            return
        for documents in whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]:
            if not _holds_text(documents.type):
                raise ValueError(
                    f'column "{column}" of {origin} holds {documents.type}, not text: choose another with '
                    "--text-column or --pairs"
                )
            try:
                documents = _validated(documents)
            except Exception as error:
                raise failure(error) from error
            yield Chunk(documents=documents, origin=origin, split=split, first_row=row)
            row += len(documents)


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    return pa.types.is_null(kind) or kind in _BYTES_OF


def _validated(documents: pa.Array) -> pa.Array:
    """Return the array as bytes after checking its offsets and indices. Raises ArrowException for a damaged array.

    Strings are checked as bytes, because Arrow would also check UTF-8, which `corpora.documents.clean` handles.
    """
    kind = documents.type
    if pa.types.is_dictionary(kind):
        # `take` checks that the indices are within the dictionary.
        return _validated(documents.dictionary).take(documents.indices)
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


class Several:
    """Readers one after the other. They have own splits if each has."""

    def __init__(self, readers: Iterable[Reader]):
        self._readers = list(readers)
        own = [reader.own_splits for reader in self._readers]
        self.own_splits = tuple(dict.fromkeys(s for splits in own for s in splits)) if all(own) else ()
        estimates = [reader.bytes_estimate for reader in self._readers]
        self.bytes_estimate = None if None in estimates else sum(estimates)
        self.mapped_bytes = max((reader.mapped_bytes for reader in self._readers), default=0)

    def surely_many(self, documents: int) -> bool:
        return any(reader.surely_many(documents) for reader in self._readers)

    def chunks(self) -> Iterator[Chunk]:
        for reader in self._readers:
            yield from reader.chunks()
