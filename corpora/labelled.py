"""Labelled texts, from JSON lines, CSV or a Parquet table."""

import json
from collections.abc import Iterator
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
from corpora.splits import HashRouter
from corpora.warn import warn

Label = str | int


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their labels, in the same order."""

    texts: list[str]
    labels: list[Label]
    empty: int = 0
    """Rows left out because their text is empty or null."""

    def __len__(self) -> int:
        return len(self.texts)

    def distinct_labels(self) -> list[Label]:
        """Return each label once: numbers in numerical order, then words in alphabetical order."""
        return sorted(set(self.labels), key=lambda label: (isinstance(label, str), label))

    def hold_out(self, fraction: float) -> tuple["LabelledTexts", "LabelledTexts"]:
        """Return (training, held-out) rows, split by the hash of the text, so that duplicates stay together.

        A label keeps its held-out texts in training if it would have no training text otherwise.
        """
        held_out = HashRouter(fraction).validation_mask(
            pa.array([text.encode() for text in self.texts], pa.large_binary())
        )
        trained = {label for label, chosen in zip(self.labels, held_out, strict=True) if not chosen}
        needed = {text for text, label in zip(self.texts, self.labels, strict=True) if label not in trained}
        held_out &= np.array([text not in needed for text in self.texts])
        return self._rows(~held_out, self.empty), self._rows(held_out, 0)

    def _rows(self, chosen: np.ndarray, empty: int) -> "LabelledTexts":
        rows = np.flatnonzero(chosen)
        return LabelledTexts([self.texts[i] for i in rows], [self.labels[i] for i in rows], empty)


def read_labelled(path: Path, text_field: str = "text", label_field: str = "label") -> LabelledTexts:
    """Read texts and labels (strings or whole numbers) from .jsonl, .csv or .tsv, also compressed, or .parquet.

    Labels of CSV are strings. A warning names the encoding that was found in a file that is not UTF-8.
    Raises ValueError with file and row for a field that is missing or of another type, and for labels of both types.
    Raises ValueError for another format, and for a file without any text.
    """
    kind = file_format(path, (".csv", ".tsv"))
    if kind:
        regular_size(path)
    if kind == ".parquet":
        rows = _parquet_rows(path, {text_field, label_field})
    elif kind in (".jsonl", ".csv"):
        encoding = found_encoding(path)
        if encoding:
            warn(f"{path} is not UTF-8 but read as {encoding}")
        rows = (_json_rows if kind == ".jsonl" else read_csv_objects)(path, ReadOptions(encoding=encoding))
    else:
        raise ValueError(
            f"{path} is not a file of labelled texts: give a .jsonl, .csv or .tsv (also .gz, .xz, .zst) or a .parquet"
        )
    texts, labels, empty = [], [], 0
    first: dict[type, tuple[str, Label]] = {}  # the first label of each type, and its place
    for place, row in rows:
        text = _field(row, text_field, place, (str, type(None)), "a text", "`text_field`")
        if not text:
            empty += 1
            continue
        texts.append(_encodable(text, text_field, place))
        label = _field(row, label_field, place, (str, int), "a string or a whole number", "`label_field`")
        labels.append(_encodable(label, label_field, place) if isinstance(label, str) else label)
        first.setdefault(type(label), (place, label))
        if len(first) > 1:
            (place, label), (other_place, other) = first.values()
            raise ValueError(
                f'"{label_field}" is {_show(label)} in {place} and {_show(other)} in {other_place}: make all labels '
                "strings, or all whole numbers"
            )
    if not texts:
        raise ValueError(f"{path} holds no text ({empty} empty rows): give one with a text and a label a row")
    return LabelledTexts(texts, labels, empty)


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


def _parquet_rows(path: Path, wanted: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a readable parquet file ({error}): fetch or write it again") from None
    with file:
        # If a wanted column is missing, read all columns: the error for the first row lists their names.
        columns = file.schema_arrow.names
        batches = file.iter_batches(columns=columns if wanted - set(columns) else sorted(wanted))
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield f"row {number} of {path}", row


def _field(row: dict[str, Any], field: str, place: str, kinds: tuple[type, ...], wanted: str, option: str) -> Any:
    if field not in row:
        raise ValueError(f'{place} has no field "{field}": it has {", ".join(row) or "none"}; choose with {option}')
    value = row[field]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f'"{field}" in {place} is {value!r:.60}, not {wanted}: fix it, or choose with {option}')
    return value


def _show(label: Label) -> str:
    return (
        f"the string {json.dumps(label, ensure_ascii=False):.60}" if isinstance(label, str) else f"the number {label}"
    )


def _encodable(text: str, field: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        escape = next(f"\\u{ord(c):04x}" for c in text if "\ud800" <= c <= "\udfff")
        raise ValueError(
            f'"{field}" in {place} has the lone surrogate {escape}, which UTF-8 cannot encode: fix it'
        ) from None
    return text
