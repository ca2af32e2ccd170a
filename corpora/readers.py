"""Readers of corpora. A reader yields the same documents in the same order in every pass."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from corpora.documents import Chunk, single_document
from corpora.formats.compression import SUFFIXES, mapped_size, read_whole
from corpora.formats.csv_files import read_csv
from corpora.formats.json_files import read_json, read_jsonl
from corpora.formats.tables import read_arrow, read_parquet
from corpora.formats.text_files import read_text
from corpora.input_files import InputFile, file_format, standard_library_files, standard_library_folder
from corpora.read_options import ReadOptions


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

    def chunks(self) -> Iterator[Chunk]:
        """One pass over all documents."""


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

    def chunks(self) -> Iterator[Chunk]:
        for path in self._files:
            yield Chunk(documents=single_document(read_whole(path)), origin=str(path), skip_invalid=True)


class Files:
    """Files of the known formats, in the order given."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions):
        self._files = files
        self._options = options
        # A file without a split would be in none, so either all files have one or none does.
        splits = [file.split for file in files if file.split]
        self.own_splits = tuple(dict.fromkeys(splits)) if len(splits) == len(files) else ()
        formats = {file_format(file.path, options.suffix) for file in files}
        plain = formats <= {".txt", ".jsonl"} and not any(file.path.suffix.lower() in SUFFIXES for file in files)
        self.bytes_estimate = sum(file.path.stat().st_size for file in files) if plain else None
        texts = [file.path for file in files if file_format(file.path, options.suffix) == ".txt"]
        self.mapped_bytes = max(map(mapped_size, texts), default=0)

    def surely_many(self, documents: int) -> bool:
        texts = (file.path for file in self._files if file.path.suffix.lower() == ".txt")
        return sum(path.stat().st_size > 0 for path in texts) >= documents

    def chunks(self) -> Iterator[Chunk]:
        for file in self._files:
            yield from self._read(file.path, file.split if self.own_splits else None)

    def _read(self, path: Path, split: str | None) -> Iterator[Chunk]:
        match file_format(path, self._options.suffix):
            case ".txt":
                yield read_text(path, split, self._options)
            case ".jsonl":
                yield from read_jsonl(path, split, self._options)
            case ".csv":
                yield from read_csv(path, split, self._options)
            case ".json":
                yield from read_json(path, split, self._options)
            case ".parquet":
                yield from read_parquet(path, split, self._options.text_column)
            case ".arrow":
                yield from read_arrow(path, split, self._options.text_column)


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

    def chunks(self) -> Iterator[Chunk]:
        for reader in self._readers:
            yield from reader.chunks()
