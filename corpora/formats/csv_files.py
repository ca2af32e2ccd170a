"""The reader of .csv and .tsv files: one document per row, from one column."""

import csv
import itertools
from collections.abc import Iterator

import pyarrow as pa

from corpora.document_error import DocumentError
from corpora.documents import Chunk, unread
from corpora.formats.text_files import text_pieces, whole_lines
from corpora.object_store import AnyPath
from corpora.read_options import ReadOptions, choose_column

_ROWS = 256
_CHUNK_BYTES = 8 << 20
_CARRIAGE_RETURN = "\udc0d"
"""Stands for a CR within a line, at which csv would end the row. No decoding of bytes gives this character."""


def read_csv(path: AnyPath, split: str | None, options: ReadOptions) -> Iterator[Chunk]:
    """Yield the text column of a file whose first row names the columns.

    Lines end at LF or CR LF. Cells are separated by commas, tabs or semicolons: the most frequent of the three in the
    first row. A tie goes to the tab in a .tsv file, and to the comma in any other. A row with more or fewer cells is an
    invalid document. A cell above the limit is a ValueError under every policy, because the rows after such a cell
    cannot be found.
    """
    rows = _rows(path, options)
    documents: list[bytes] = []
    size = number = 0
    try:
        columns = next(rows, None)
        if columns is None:
            return
        column = columns.index(choose_column(columns, path, options.text_column, nested=False).name)
        for number, row in enumerate(rows, 1):
            if len(row) != len(columns):
                if documents:
                    yield _chunk(documents, path, split, number - 1)
                    documents, size = [], 0
                few = f"row {number} of {path} has {len(row)} cells, but the first row names {len(columns)}: fix it"
                yield unread(DocumentError("invalid", few), path, split)
                continue
            documents.append(row[column].encode("utf-8", "surrogateescape"))
            size += len(documents[-1])
            if len(documents) == _ROWS or size > _CHUNK_BYTES:
                yield _chunk(documents, path, split, number)
                documents, size = [], 0
    except DocumentError:  # where the file is damaged
        if documents:
            yield _chunk(documents, path, split, number)
        raise
    except csv.Error as error:
        if "field limit" in str(error):
            raise _too_long(f"row {number + 1} of {path} has a cell", options) from error
        if documents:
            yield _chunk(documents, path, split, number)
        raise DocumentError("damaged", f"row {number + 1} of {path} is not CSV ({error}): fix it") from error
    if documents:
        yield _chunk(documents, path, split, number)


def read_csv_objects(path: AnyPath, options: ReadOptions) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (place, object) of each row, where the object has the cells by the names in the first row.

    Raises ValueError with the place of a row that is not CSV or has another number of cells.
    """
    rows, number = _rows(path, options), 0
    try:
        columns = next(rows, [])
        for number, row in enumerate(rows, 1):
            place = f"row {number} of {path}"
            if len(row) != len(columns):
                raise ValueError(f"{place} has {len(row)} cells, but the first row names {len(columns)}: fix it")
            yield place, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise ValueError(f"row {number + 1} of {path} is not CSV ({error}): fix it") from None


def _rows(path: AnyPath, options: ReadOptions) -> Iterator[list[str]]:
    """Yield the rows that are not empty. The first names the columns, and its most frequent separator separates cells.

    Bytes that are not UTF-8 become lone surrogates. Raises csv.Error where the file is not CSV.
    """
    csv.field_size_limit(max(csv.field_size_limit(), options.max_document))
    lines = _lines(path, options)
    header = next((line for line in lines if line.strip("\r\n")), None)  # csv leaves out blank lines too
    if header is None:
        return
    if _CARRIAGE_RETURN in header:
        raise DocumentError(
            "damaged",
            f"the first row of {path} holds a carriage return, but rows end at LF or CR LF: convert its line ends",
        )
    is_tsv = ".tsv" in map(str.lower, path.suffixes[-2:])
    delimiter = max("\t,;" if is_tsv else ",\t;", key=header.count)  # the first of equally frequent ones
    for row in csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True):
        if row:
            yield [cell.replace(_CARRIAGE_RETURN, "\r") for cell in row]


def _chunk(documents: list[bytes], path: AnyPath, split: str | None, last: int) -> Chunk:
    array = pa.array(documents, pa.large_binary())
    return Chunk(documents=array, origin=str(path), split=split, rows=range(last - len(documents) + 1, last + 1))


def _too_long(what: str, options: ReadOptions) -> ValueError:
    return ValueError(
        f"{what} above the limit of {options.max_document:,} bytes a document, so the rows after it cannot be found: "
        "raise the limit with `max_document`, or look for a missing quotation mark"
    )


def _lines(path: AnyPath, options: ReadOptions) -> Iterator[str]:
    """Yield the lines of a file, with LF or CR LF. Other CR and bytes that are not UTF-8 become lone surrogates."""
    limit = max(options.max_document, _CHUNK_BYTES)
    for line in whole_lines(text_pieces(path, options), limit, _too_long(f"{path} has a line", options)):
        text = line.decode("utf-8", "surrogateescape") + "\n"
        end = "\r\n" if text.endswith("\r\n") else "\n"
        yield text.removesuffix(end).replace("\r", _CARRIAGE_RETURN) + end
