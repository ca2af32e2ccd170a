"""Files of predictions: the fields of each example and its predicted fields."""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizer.formats.whole_files import whole_file

if TYPE_CHECKING:
    from pipelines.tasks.task import Example, Task

TABLE_ROWS = 4096  # in memory at once


def write_predictions(path: Path, predicted: "Iterable[tuple[Example, dict[str, Any]]]", task: "Task") -> int:
    """Write predictions to .jsonl, .csv, .tsv or .parquet, or in a format of the task, and return their number.

    The file appears whole or not at all. Raises ValueError if there is no prediction, or if an example already has a
    field with the name of a predicted field.
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


def _rows(predicted: "Iterable[tuple[Example, dict[str, Any]]]") -> Iterator[dict[str, Any]]:
    for example, fields in predicted:
        if taken := example.row.fields.keys() & fields.keys():
            raise ValueError(
                f'{example.row.place} has a field "{min(taken)}", which the prediction would replace: rename it'
            )
        yield {**example.row.fields, **fields}


def _write_text(path: Path, predicted: "Iterable[tuple[Example, dict[str, Any]]]", task: "Task") -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for example, fields in predicted:
            file.write(task.as_text(example, fields))
            count += 1
    return count


def _write_jsonl(path: Path, rows: Iterator[dict[str, Any]], suffix: str) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            count += 1
    return count


def _write_csv(path: Path, rows: Iterator[dict[str, Any]], suffix: str) -> int:
    """Write the columns of the first row. Lists and objects become JSON."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        columns: list[str] = []
        for row in rows:
            if not columns:
                columns = list(row)
                writer.writerow(columns)
            writer.writerow([_cell(row.get(column)) for column in columns])
            count += 1
    return count


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else value


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]], suffix: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet

    first = pa.Table.from_pylist(list(islice(rows, TABLE_ROWS)))
    count = len(first)
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        while chunk := list(islice(rows, TABLE_ROWS)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=first.schema))
            count += len(chunk)
    return count
