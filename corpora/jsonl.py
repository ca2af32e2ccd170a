"""The reader of .jsonl files, exact and in bounded memory.

It parses with Arrow like the reader in `datasets`, but tells Arrow the type of the one column that it needs.
The reader in `datasets` infers all columns from the first lines, which rewrites texts that look like dates,
and gives up at a field that a later line has and the first ones had not.
"""

import io
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json

from corpora.documents import Chunk, too_long
from corpora.reading import Reading
from corpora.text_files import text_pieces

_CHUNK_BYTES = 8 << 20
_SAMPLED_LINES = 1000


def read_jsonl(path: Path, split: str | None, reading: Reading) -> Iterator[Chunk]:
    """Yield one document per line. Raises ValueError naming the file and line of what is not a JSON object."""
    chunks = _whole_lines(path, reading)
    head: list[bytes | None] = []
    for lines in chunks:
        head.append(lines)
        if lines is not None:
            break
    column = _text_column(head[-1] or b"", path, reading) if head else "text"
    # Where a column was taken as the only one, the first lines may not have told all.
    unexpected = None if reading.text_column or column == "text" else "text"
    line = 1
    for lines in itertools.chain(head, chunks):
        if lines is None:
            bad = too_long(f"line {line} of {path}", f"is longer than {_line_limit(reading):,} bytes", reading)
            yield Chunk(documents=pa.array([], pa.large_binary()), origin=str(path), split=split, bad=bad)
            line += 1
            continue
        for number, documents in _parse(lines, line, path, column, unexpected):
            yield Chunk(documents=documents, origin=str(path), split=split, first_row=number)
        line += lines.count(b"\n")


def _line_limit(reading: Reading) -> int:
    return max(reading.max_document, _CHUNK_BYTES)


def _whole_lines(path: Path, reading: Reading) -> Iterator[bytes | None]:
    """Yield the file's content cut after line feeds, about 8 MB at a time; None for a line above the limit."""
    pieces: list[bytes] = []
    size, limit, within_long = 0, _line_limit(reading), False
    for piece in text_pieces(path, reading):
        if within_long:
            end = piece.find(b"\n") + 1
            within_long, piece = not end, piece[end:] if end else b""
        pieces.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES and (end := piece.rfind(b"\n") + 1):
            pieces[-1] = piece[:end]
            yield b"".join(pieces)
            pieces, size = [piece[end:]], len(piece) - end
        elif size > limit:
            whole = b"".join(pieces)
            if end := whole.rfind(b"\n") + 1:
                yield whole[:end]
            pieces, size = [whole[end:]], len(whole) - end
            if size > limit:
                yield None
                pieces, size, within_long = [], 0, True
    if size:
        yield b"".join(pieces)


def _text_column(lines: bytes, path: Path, reading: Reading) -> str:
    wanted = reading.text_column
    columns = _columns(itertools.islice(io.BytesIO(lines), _SAMPLED_LINES))
    if wanted and wanted not in columns:  # later lines may have it
        columns |= _columns(line for chunk in _whole_lines(path, reading) for line in (chunk or b"").split(b"\n"))
    return choose_column(list(columns), path, wanted) if columns else wanted or "text"


def _columns(lines: Iterable[bytes]) -> dict[str, None]:
    """The fields of what are JSON objects, in order."""
    columns: dict[str, None] = {}
    for line in lines:
        try:
            row = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            columns.update(dict.fromkeys(row))
    return columns


def choose_column(columns: list[str], origin: object, wanted: str | None) -> str:
    """The column to read: `wanted`, else "text", else the only one there is. ValueError names what there is."""
    column = wanted or ("text" if "text" in columns or len(columns) != 1 else columns[0])
    if column in columns:
        return column
    there = ", ".join(columns) or "none"
    raise ValueError(
        f'{origin} has no column "{column}": choose one of its columns ({there}) with --text-column or --pairs'
    )


def _parse(
    lines: bytes, number: int, path: Path, column: str, unexpected: str | None
) -> Iterator[tuple[int, pa.Array]]:
    """(line number, documents) of `lines`, of which the first is line `number` of the file. ValueError where one has
    the field `unexpected`.

    What Arrow refuses is halved until the line is found that it stumbles on: that one may still hold a document
    (a lone surrogate, a field given twice), or is the caller's mistake.
    """
    schema = pa.schema([(name, pa.large_binary()) for name in (column, unexpected) if name])
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    body = lines.lstrip(b" \t\r\n")
    if not body:
        return
    # Arrow (26) crashes on a block that begins with null, so only objects are let in.
    if body.startswith(b"{"):
        try:
            table = pa.json.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)
        except pa.ArrowInvalid:
            pass
        else:
            if unexpected and table.column(unexpected).null_count < len(table):
                raise ValueError(_late(path, column, unexpected))
            yield number, table.column(column).combine_chunks()
            return
    middle = lines.find(b"\n", len(lines) // 2) + 1
    if not 0 < middle < len(lines):
        middle = lines.rfind(b"\n", 0, max(len(lines) // 2, 0)) + 1
    if 0 < middle < len(lines):
        yield from _parse(lines[:middle], number, path, column, unexpected)
        yield from _parse(lines[middle:], number + lines.count(b"\n", 0, middle), path, column, unexpected)
    else:
        yield number, _parse_line(lines, number, path, column, unexpected)


def _late(path: Path, column: str, unexpected: str) -> str:
    return (
        f'{path} has "{column}" alone in its first lines, and "{unexpected}" in later ones: choose one with '
        "--text-column"
    )


def _parse_line(line: bytes, number: int, path: Path, column: str, unexpected: str | None) -> pa.Array:
    """The document of one line that Arrow does not take; a lone surrogate becomes its three bytes, not UTF-8."""
    try:
        row = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        reason = str(error).split(": line ")[0].lower()
        raise ValueError(f"line {number} of {path} is not JSON ({reason}): mend or remove it") from error
    if row is None:
        return pa.array([None], pa.large_binary())
    if not isinstance(row, dict):
        raise ValueError(f'line {number} of {path} is no JSON object: each line should be like {{"{column}": "..."}}')
    if unexpected and row.get(unexpected) is not None:
        raise ValueError(_late(path, column, unexpected))
    text = row.get(column)
    if text is not None and not isinstance(text, str):
        raise ValueError(
            f'"{column}" in line {number} of {path} is {json_type(text)}, not a string: '
            "mend the line, or choose another column with --text-column or --pairs"
        )
    return pa.array([None if text is None else encode_text(text)], pa.large_binary())


def encode_text(text: str) -> bytes:
    """Return text as UTF-8. Escaped bytes that were not UTF-8 are restored, other surrogates become three bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    return b"".join(
        bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else c.encode("utf-8", "surrogatepass") for c in text
    )


def json_type(value: object) -> str:
    """Return the JSON type of a value, with its article."""
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case str():
            return "a string"
        case None:
            return "null"
    return "an object"
