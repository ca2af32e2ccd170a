"""Files of predictions: the fields of each example and its predicted fields."""

import csv
import io
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from corpora.rows import Row
from tokenizer.formats.whole_files import whole_file

if TYPE_CHECKING:
    from pipelines.tasks.task import Example, Task

TABLES = (".csv", ".tsv", ".parquet")
TABLE_ROWS = 4096  # in memory at once


def check_fields(path: Path, examples: "Iterable[Example]", task: "Task") -> None:
    """Raise ValueError, which names a place and a field, if a table at `path` cannot hold the fields of the examples.

    `write_predictions` raises the same errors, but after the work.
    """
    if path.suffix not in TABLES or path.suffix in task.suffixes:
        return
    rows = _same_fields(example.row for example in examples)
    for _ in _tables(rows) if path.suffix == ".parquet" else rows:
        pass


def write_predictions(path: Path, predicted: "Iterable[tuple[Example, dict[str, Any]]]", task: "Task") -> int:
    """Write predictions to .jsonl, .csv, .tsv or .parquet, or in a format of the task, and return their number.

    The file appears whole or not at all. Raises ValueError if there is no prediction, if an example already has a
    field with the name of a predicted field, or if a table cannot hold the fields of all examples.
    """
    pairs = iter(predicted)
    first = next(pairs, None)
    if first is None:
        raise ValueError("there is no example to predict for")
    pairs = chain([first], pairs)
    write = {".jsonl": _write_jsonl, ".parquet": _write_parquet}.get(path.suffix, _write_csv)
    with whole_file(path) as partial:
        if path.suffix in task.suffixes:
            return _write_text(partial, pairs, task)
        return write(partial, _rows(pairs), path.suffix)


def _rows(predicted: "Iterable[tuple[Example, dict[str, Any]]]") -> Iterator[Row]:
    for example, fields in predicted:
        if taken := example.row.fields.keys() & fields.keys():
            raise ValueError(
                f'{example.row.place} has a field "{min(taken)}", which the prediction would replace: rename it'
            )
        yield Row(example.row.place, {**example.row.fields, **fields})


def _same_fields(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of a table; ValueError for a field that the first row lacks."""
    first: Row | None = None
    for row in rows:
        first = first or row
        if more := row.fields.keys() - first.fields.keys():
            raise ValueError(
                f'{row.place} has a field "{min(more)}", which {first.place} lacks, but the first row decides the '
                "columns of a table: give an `out` that ends in .jsonl"
            )
        yield row


def _write_text(path: Path, predicted: "Iterable[tuple[Example, dict[str, Any]]]", task: "Task") -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for example, fields in predicted:
            file.write(task.as_text(example, fields))
            count += 1
    return count


def _write_jsonl(path: Path, rows: Iterator[Row], suffix: str) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row.fields, ensure_ascii=False, default=str) + "\n")
            count += 1
    return count


def _write_csv(path: Path, rows: Iterator[Row], suffix: str) -> int:
    """Write the columns of the first row. Lists and objects become JSON."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        columns: list[str] = []
        for row in _same_fields(rows):
            if not columns:
                columns = list(row.fields)
                writer.writerow(columns)
            writer.writerow([_cell(row.fields.get(column)) for column in columns])
            count += 1
    return count


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else value


def _write_parquet(path: Path, rows: Iterator[Row], suffix: str) -> int:
    tables = _tables(_same_fields(rows))
    first = next(tables)
    count = 0
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
            count += len(table)
    return count


def _tables(rows: Iterator[Row]) -> Iterator[pa.Table]:
    """Yield tables of TABLE_ROWS rows with the types of the first table; ValueError for a value of another type."""
    kinds: dict[str, pa.DataType | None] = {}
    while chunk := list(islice(rows, TABLE_ROWS)):
        kinds = kinds or dict.fromkeys(chunk[0].fields)
        columns = {}
        for name, kind in kinds.items():
            values = [row.fields.get(name) for row in chunk]
            if (column := _column(values, kind)) is None:
                last = bisect_left(range(len(values)), True, key=lambda i: _column(values[: i + 1], kind) is None)
                raise ValueError(
                    f'"{name}" in {chunk[last].place} is {values[last]!r:.60}, which has another type than the values '
                    "before it, or one that Parquet lacks: give an `out` that ends in .jsonl"
                )
            columns[name] = column
        kinds = {name: column.type for name, column in columns.items()}
        yield pa.table(columns)


def _column(values: list[Any], kind: pa.DataType | None) -> pa.Array | None:
    """Return the values as a column of type `kind` (None: inferred), or None if Parquet cannot hold it."""
    try:
        column = pa.array(values, kind)
        if kind is None:
            pyarrow.parquet.ParquetWriter(io.BytesIO(), pa.schema([("column", column.type)])).close()
        elif pa.types.is_nested(kind):  # pyarrow drops fields that an object of `kind` lacks
            types = [pa.schema([("column", each)]) for each in (kind, pa.array(values).type)]
            return column if pa.unify_schemas(types, promote_options="permissive") == types[0] else None
    except (pa.ArrowException, OverflowError):
        return None
    return column
