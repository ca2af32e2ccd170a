"""Rows of tables: JSON lines, CSV, Parquet, Arrow, or a folder of `datasets`, as dicts with their places."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora.formats.csv_files import read_csv_objects
from corpora.formats.text_files import found_encoding, text_pieces, whole_lines
from corpora.input_files import file_format, regular_size
from corpora.object_store import AnyPath
from corpora.read_options import MAX_DOCUMENT, ReadOptions
from corpora.warn import warn

TABLE_ROWS = 1024  # read at a time
ARROW_FILE = b"ARROW1"  # how an Arrow file begins; a stream begins otherwise


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    place: str
    """Where it stands: `line 3 of reviews.jsonl`"""
    fields: Mapping[str, Any]
    lines: tuple[str, ...] = ()
    """The lines that it was read from, of a file of tagged words"""

    def value(self, name: str, wanted: str, *kinds: type) -> Any:
        """Return the field `name`, or the field `a.b` within another; ValueError unless it is one of `kinds`.

        `wanted` names the kinds in the error, such as "a text". A boolean is no number.
        """
        value: Any = self.fields
        for step in (name,) if name in self.fields else name.split("."):
            if not isinstance(value, Mapping) or step not in value:
                has = ", ".join(self.fields) or "none"
                raise ValueError(f'{self.place} has no field "{name}": it has {has}; choose with `columns`')
            value = value[step]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(
                f'"{name}" in {self.place} is {value!r:.60}, not {wanted}: fix it, or choose with `columns`'
            )
        return self.encodable(value, name) if isinstance(value, str) else value

    def text(self, name: str) -> str:
        """Return a field that is a text; "" for null."""
        value: str | None = self.value(name, "a text", str, type(None))
        return value or ""

    def encodable(self, text: str, name: str) -> str:
        """Return a text of the field `name`; ValueError if it has a lone surrogate."""
        try:
            text.encode()
        except UnicodeEncodeError:
            escape = next(f"\\u{ord(c):04x}" for c in text if "\ud800" <= c <= "\udfff")
            raise ValueError(
                f'"{name}" in {self.place} has the lone surrogate {escape}, which UTF-8 cannot encode: fix it'
            ) from None
        return text


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of .jsonl, .csv or .tsv, also compressed, of .parquet or .arrow, or of a folder of `datasets`.

    Values of CSV are strings. A warning names the encoding that was found in a file that is not UTF-8. Raises
    ValueError with file and row for a row that cannot be read, and for another format.
    """
    kind = "folder" if path.is_dir() else file_format(path, (".csv", ".tsv"))
    if kind and kind != "folder":
        regular_size(path)
    if kind == "folder":
        rows = _dataset_rows(path)
    elif kind in (".parquet", ".arrow"):
        rows = _table_rows(path, kind)
    elif kind in (".jsonl", ".csv"):
        encoding = found_encoding(path)
        if encoding:
            warn(f"{path} is not UTF-8 but read as {encoding}")
        rows = (_json_rows if kind == ".jsonl" else read_csv_objects)(path, ReadOptions(encoding=encoding))
    else:
        raise ValueError(
            f"{path} is not a file of examples: give a .jsonl, .csv or .tsv (also .gz, .xz, .zst), a .parquet, an "
            ".arrow, or a folder that the datasets library saved"
        )
    for place, fields in rows:
        yield Row(place, fields)


def read_text_rows(path: Path, size: int = 4000) -> Iterator[Row]:
    """Yield a text file as rows with the field `text`, pieces of at least `size` bytes that end with a line."""
    options = ReadOptions(encoding=found_encoding(path))
    too_long = ValueError(f"{path} has a line of more than {MAX_DOCUMENT:,} bytes: break it")
    lines: list[bytes] = []
    number, held = 1, 0
    for line in whole_lines(text_pieces(path, options), MAX_DOCUMENT, too_long):
        lines.append(line)
        held += len(line) + 1
        if held >= size:
            yield _text_row(path, number, lines)
            number, held, lines = number + len(lines), 0, []
    if lines:
        yield _text_row(path, number, lines)


def _text_row(path: Path, first: int, lines: list[bytes]) -> Row:
    place = f"the text from line {first} of {path}"
    try:
        return Row(place, {"text": b"\n".join([*lines, b""]).decode()})
    except UnicodeDecodeError:
        raise ValueError(f"{place} is not UTF-8: convert the file to UTF-8") from None


def hash_split(keys: Sequence[str], fraction: float) -> np.ndarray:
    """Return which of N examples are held out, (N,) bool, by the hash of their `keys`: duplicates stay together.

    The rule is that of `HashRouter`, without pyarrow's arrays of lists, which import pandas.
    """
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return np.frombuffer(digests, dtype=">u8") < int(fraction * 2**64)


def _json_rows(path: AnyPath, options: ReadOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) of each line that is not blank."""
    too_long = ValueError(f"{path} has a line of more than {MAX_DOCUMENT:,} bytes: shorten or remove it")
    for number, line in enumerate(whole_lines(text_pieces(path, options), MAX_DOCUMENT, too_long), 1):
        place = f"line {number} of {path}"
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place} is not JSON ({str(error).split(': line ')[0].lower()}): fix it") from None
        if not isinstance(row, dict):
            raise ValueError(
                f'{place} is not a JSON object: each line should be like {{"text": "...", "label": "..."}}'
            )
        if line.strip():
            yield place, row


def _table_rows(path: Path, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet

    try:
        if kind == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from _numbered(file.iter_batches(TABLE_ROWS), path)
            return
        with pa.memory_map(str(path)) as source:
            magic = source.read(len(ARROW_FILE))
            source.seek(0)
            table = (pa.ipc.open_file if magic == ARROW_FILE else pa.ipc.open_stream)(source).read_all()
            yield from _numbered(table.to_batches(TABLE_ROWS), path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable {kind[1:]} file ({error}): fetch or write it again") from None


def _numbered(batches: Iterable[pa.RecordBatch], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, fields) of each row. Integers to which `datasets` gave names, such as labels, get them."""
    number = 0
    for batch in batches:
        labels = _label_names(batch.schema.metadata or {})
        for row in batch.to_pylist():
            number += 1
            named = {name: _with_names(row[name], names) for name, names in labels.items() if name in row}
            yield f"row {number} of {path}", row | named


def _label_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of integers by column, from the metadata that `datasets` writes: of labels, or of lists."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    inner = {name: feature[0] if isinstance(feature, list) else feature for name, feature in features.items()}
    inner = {name: one.get("feature", one) for name, one in inner.items() if isinstance(one, dict)}
    return {name: one["names"] for name, one in inner.items() if isinstance(one, dict) and one.get("names")}


def _with_names(value: Any, names: list[str]) -> Any:
    """Return the name of a label, or of each in a list; a label below 0 has none."""
    if isinstance(value, list):
        return [_with_names(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _dataset_rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a folder that `Dataset.save_to_disk` wrote."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / file["filename"] for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        remedy = f"name one of its splits, such as {folder / splits[0]}" if splits else "give a file instead"
        raise ValueError(f"{folder} is not a folder that the datasets library saved: {remedy}") from None
    for file in files:
        yield from _table_rows(file, ".arrow")
