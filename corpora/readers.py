"""Readers of corpora. A reader yields the same documents in the same order in every pass."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from corpora.document_error import DocumentError
from corpora.documents import Chunk, single_document, unread
from corpora.formats.arrow_files import read_arrow, read_parquet, row_group_cuts
from corpora.formats.compression import SUFFIXES, is_mapped, read_whole
from corpora.formats.csv_files import read_csv
from corpora.formats.encodings import OtherEncoding
from corpora.formats.integers import read_npy
from corpora.formats.json_files import line_cuts, read_json, read_jsonl
from corpora.formats.text_files import read_text, text_pieces
from corpora.input_files import InputFile, standard_library_files, standard_library_folder
from corpora.object_store import AnyPath
from corpora.read_options import ReadOptions

END_BYTES = 4096


class Part(Protocol):
    """Consecutive documents of a reader. It can be pickled, and read without the rest."""

    @property
    def size(self) -> int:
        """Approximate bytes, for packing parts into ranges."""

    def chunks(self) -> Iterator[Chunk]:
        """One pass over the documents."""

    def identity(self) -> Any:
        """Return what decides the documents, as JSON: for a file see `file_identity`."""


class Reader(Protocol):
    """A source of documents."""

    @property
    def own_splits(self) -> tuple[str, ...]:
        """Splits that the source itself defines. Without any, `Chunk.split` is None."""

    @property
    def bytes_estimate(self) -> int | None:
        """Approximate bytes of text; None if they take long to estimate."""

    @property
    def mapped_bytes(self) -> int:
        """Size of the largest document that a pass maps into memory, 0 if it maps none."""

    def surely_many(self, documents: int) -> bool:
        """Return whether the source is known, without reading it, to have at least `documents` non-empty documents."""

    def parts(self, size: int | None = None) -> Iterator[Part]:
        """Yield all documents in parts. With `size`, larger files are cut to about this many bytes if they can be.

        These parts can be read from any working folder.
        """


@dataclass(frozen=True)
class _SourceFile:
    """A file of the standard library."""

    path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def chunks(self) -> Iterator[Chunk]:
        yield Chunk(
            documents=single_document(read_whole(self.path, self.size)), origin=str(self.path), skip_invalid=True
        )

    def identity(self) -> Any:
        return file_identity(self.path)


@dataclass(frozen=True)
class _FilePart:
    """A file, or a range of its lines or row groups."""

    path: AnyPath
    split: str | None
    options: ReadOptions
    format: str
    size: int
    start: int = 0
    stop: int | None = None
    """offsets of lines (.jsonl), or numbers of row groups (.parquet)"""

    def chunks(self) -> Iterator[Chunk]:
        encoding = None
        try:
            yield from self._readable_chunks(self.options)
        except OtherEncoding as other:  # before the first document
            encoding = other.encoding
        if encoding is not None:
            decoded = self._readable_chunks(replace(self.options, encoding=encoding))
            yield from (replace(chunk, encoding=encoding) for chunk in decoded)

    def _readable_chunks(self, options: ReadOptions) -> Iterator[Chunk]:
        """Yield the documents. A damaged file ends with a chunk that has the error."""
        try:
            yield from self._sound_chunks(options)
        except DocumentError as error:  # the rest of the file cannot be read
            bad = error if error.kind == "long" else DocumentError("damaged", str(error))
            yield unread(bad, self.path, self.split)

    def _sound_chunks(self, options: ReadOptions) -> Iterator[Chunk]:
        """Yield the documents. Raises DocumentError where the file is damaged."""
        path, split = self.path, self.split
        match self.format:
            case ".txt":
                yield read_text(path, split, options)
            case ".jsonl":
                yield from read_jsonl(path, split, options, self.start, self.stop)
            case ".csv":
                yield from read_csv(path, split, options)
            case ".json":
                yield from read_json(path, split, options)
            case ".parquet":
                yield from read_parquet(path, split, options.text_column, self.start, self.stop)
            case ".arrow":
                yield from read_arrow(path, split, options.text_column)
            case ".npy":
                yield from read_npy(path, split, options)

    def identity(self) -> Any:
        return [*file_identity(self.path), self.split, asdict(self.options), self.start, self.stop]


class StandardLibrary:
    """The running interpreter's standard library (see `corpora.input_files.standard_library_files`)."""

    own_splits = ()
    mapped_bytes = 0

    def __init__(self) -> None:
        self._files = list(standard_library_files())
        if not self._files:
            raise FileNotFoundError(f"this Python's standard library holds no .py file at {standard_library_folder()}")
        self.bytes_estimate = sum(path.stat().st_size for path in self._files)

    def surely_many(self, documents: int) -> bool:
        # Twice as many: a few files, which the card leaves out, are not UTF-8 in some versions.
        return len(self._files) >= 2 * documents

    def parts(self, size: int | None = None) -> Iterator[Part]:
        return map(_SourceFile, self._files)


class Files:
    """Files of the known formats, in the order given."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions):
        self._files = files
        self._options = options
        # A file without a split would be in none, so either all files have one or none does.
        splits = [file.split for file in files if file.split]
        self.own_splits = tuple(dict.fromkeys(splits)) if len(splits) == len(files) else ()
        formats = {file.format for file in files}
        plain = formats <= {".txt", ".jsonl"} and not any(file.path.suffix.lower() in SUFFIXES for file in files)
        self.bytes_estimate = sum(file.size for file in files) if plain else None
        mapped = (file.size for file in files if file.format == ".txt" and is_mapped(file.path, file.size))
        self.mapped_bytes = max(mapped, default=0)

    def surely_many(self, documents: int) -> bool:
        return sum(file.size > 0 for file in self._files if file.path.suffix.lower() == ".txt") >= documents

    def parts(self, size: int | None = None) -> Iterator[Part]:
        for file in self._files:
            split = file.split if self.own_splits else None
            path = file.path.absolute() if size else file.path  # Ray's workers have another working folder
            whole = _FilePart(path, split, self._options, file.format, file.size)
            cuts = _cuts(file, size, self._options) if size and whole.size > size else []
            if len(cuts) <= 2:
                yield whole
                continue
            for start, stop in pairwise(cuts):
                # The last range ends as long as the file has the size that it had when it was cut.
                yield replace(whole, size=whole.size * (stop - start) // cuts[-1], start=start, stop=stop)


def _cuts(file: InputFile, size: int, options: ReadOptions) -> list[int]:
    """Return where to cut a file into ranges of about `size` bytes, with its start and end; [] if it is not cut."""
    path = file.path
    with suppress(DocumentError, OtherEncoding):  # reading the file reports the damage
        match file.format:
            case ".jsonl" if path.suffix.lower() not in SUFFIXES and not options.encoding:
                next(text_pieces(path, options))  # a file in another encoding is not cut
                return line_cuts(path, size)
            case ".parquet":
                return row_group_cuts(path, size)
    return []


def file_identity(path: AnyPath) -> list[Any]:
    """Return values that change when a file is edited, without reading all of it.

    For any file: its absolute path, size in bytes and modification time in nanoseconds. For a local file also the time
    of the inode's change, which programs cannot set, and the SHA-256 of the first and last END_BYTES bytes.
    """
    facts = path.stat()
    identity: list[Any] = [str(path.absolute()), facts.st_size, facts.st_mtime_ns]
    if isinstance(facts, os.stat_result):  # a local file
        identity.append(facts.st_ctime_ns)
        with suppress(OSError), path.open("rb") as file:  # reading the file reports the error
            ends = file.read(END_BYTES)
            file.seek(max(0, facts.st_size - END_BYTES))
            identity.append(hashlib.sha256(ends + file.read(END_BYTES)).hexdigest())
    return identity


class Several:
    """Readers one after the other. They have own splits if each has."""

    def __init__(self, readers: Iterable[Reader]):
        self._readers = list(readers)
        own = [reader.own_splits for reader in self._readers]
        self.own_splits = tuple(dict.fromkeys(s for splits in own for s in splits)) if all(own) else ()
        estimates = [reader.bytes_estimate for reader in self._readers]
        known = [size for size in estimates if size is not None]
        self.bytes_estimate = sum(known) if len(known) == len(estimates) else None
        self.mapped_bytes = max((reader.mapped_bytes for reader in self._readers), default=0)

    def surely_many(self, documents: int) -> bool:
        return any(reader.surely_many(documents) for reader in self._readers)

    def parts(self, size: int | None = None) -> Iterator[Part]:
        for reader in self._readers:
            yield from reader.parts(size)
