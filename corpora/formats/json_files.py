"""Readers of .jsonl and .json files.

The .jsonl reader is exact and needs bounded memory. Like the one in `datasets` it parses with Arrow, but it gives Arrow
the type of the one column that it needs. The reader in `datasets` infers all columns from the first lines. It therefore
rewrites texts that look like dates, and fails if a later line has a new field.
"""

import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.json

from corpora.document_error import DocumentError
from corpora.documents import Chunk, too_long, unread
from corpora.formats.text_files import text_pieces
from corpora.object_store import AnyPath
from corpora.read_options import Column, ReadOptions, choose_column, json_type

_CHUNK_BYTES = 8 << 20
_SHORT_BYTES = 4096  # reading this much in Python takes as long as starting Arrow's reader
_SAMPLED_LINES = 1000
_PLAIN = Column("text", ("text",))
_REMEDY = "make the file an array of texts or of objects, or JSON lines (.jsonl)"


def read_jsonl(
    path: AnyPath, split: str | None, options: ReadOptions, start: int = 0, stop: int | None = None
) -> Iterator[Chunk]:
    """Yield one document per line.

    A line counts as an invalid document if it is not a JSON object or its text is not a string. Null is an empty
    document.

    `start`, `stop`: offsets at which lines begin, both or neither (see `line_cuts`). Lines are counted from `start`.
    """
    chunks = _whole_lines(path, options, start, stop)
    cut = stop is not None
    head = list(_until_lines(_whole_lines(path, options) if cut else chunks))
    column = _text_column((head[-1] or b"") if head else b"", path, options)
    # If the column is merely the only one in the first lines, a later line with "text" makes the choice ambiguous.
    unexpected = None if options.text_column or column.name == "text" else "text"
    origin = f"{path} from byte {start:,}" if start else str(path)
    line = 1
    for lines in chunks if cut else itertools.chain(head, chunks):
        if lines is None:
            bad = too_long(f"line {line} of {origin}", f"is longer than {_line_limit(options):,} bytes", options)
            yield unread(bad, origin, split)
            line += 1
            continue
        ends = lines.count(b"\n")
        for rows, documents in _parse(lines, ends, line, origin, column, unexpected, options.invalid):
            if isinstance(documents, DocumentError):
                yield unread(documents, origin, split)
            else:
                yield Chunk(documents=documents, origin=origin, split=split, rows=rows)
        line += ends


def line_cuts(path: AnyPath, size: int) -> list[int]:
    """Return offsets, from 0 to the file's size, that cut it at line ends into ranges of at least `size` bytes.

    Only the last range may be shorter.
    """
    total = path.stat().st_size
    cuts = [0]
    with path.open("rb") as file:
        while cuts[-1] + size < total:
            file.seek(cuts[-1] + size - 1)
            while (piece := file.readline(_CHUNK_BYTES)) and not piece.endswith(b"\n"):
                pass
            cuts.append(file.tell())
    return cuts if cuts[-1] == total else [*cuts, total]


def _until_lines(chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Yield the chunks of `_whole_lines` up to the first with lines."""
    for lines in chunks:
        yield lines
        if lines is not None:
            return


def _line_limit(options: ReadOptions) -> int:
    return max(options.max_document, _CHUNK_BYTES)


def _whole_lines(
    path: AnyPath, options: ReadOptions, start: int = 0, stop: int | None = None
) -> Iterator[bytes | None]:
    """Yield the file's content cut after line feeds, about 8 MB at a time; None for a line above the limit.

    Raises DocumentError where the file is damaged, after the whole lines before the damage.
    """
    pieces: list[bytes] = []
    size, limit, within_long = 0, _line_limit(options), False
    try:
        for piece in text_pieces(path, options, start, stop):
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
                content = b"".join(pieces)
                if end := content.rfind(b"\n") + 1:
                    yield content[:end]
                pieces, size = [content[end:]], len(content) - end
                if size > limit:
                    yield None
                    pieces, size, within_long = [], 0, True
    except DocumentError:
        content = b"".join(pieces)
        if end := content.rfind(b"\n") + 1:  # the last line may be cut short
            yield content[:end]
        raise
    if size:
        yield b"".join(pieces)


def _text_column(lines: bytes, path: AnyPath, options: ReadOptions) -> Column:
    wanted = options.text_column
    columns = _columns(itertools.islice(io.BytesIO(lines), _SAMPLED_LINES))
    if wanted:
        with suppress(ValueError):
            return choose_column(list(columns), path, wanted)
        # Later lines may have it.
        columns |= _columns(line for chunk in _whole_lines(path, options) for line in (chunk or b"").split(b"\n"))
    return choose_column(list(columns) or [wanted or "text"], path, wanted)


def _columns(lines: Iterable[bytes]) -> dict[str, None]:
    """Return the fields of the lines that are JSON objects, in order."""
    columns: dict[str, None] = {}
    for line in lines:
        try:
            row = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            columns.update(dict.fromkeys(row))
    return columns


def _parse(
    lines: bytes, ends: int, number: int, origin: str, column: Column, unexpected: str | None, policy: str
) -> Iterator[tuple[Sequence[int], pa.Array | DocumentError]]:
    """Yield (line numbers, documents or the error of a line) for `lines`, which begin at line `number` of the file.

    `ends`: number of line feeds in `lines`. Raises ValueError if a line has the field `unexpected`. A block that Arrow
    refuses is halved until the bad line is found. That line may still hold a document (a lone surrogate, a repeated
    field); otherwise it is an error.

    Several objects on one line, and objects that span lines, are read as Arrow reads them. With the policy "skip" they
    are bad lines instead: otherwise the other lines of a block would decide whether Arrow reads such an object.
    """
    if len(lines) <= _SHORT_BYTES and (documents := _parse_short(lines, column, unexpected)) is not None:
        yield _rows(lines, ends, number, len(documents)), documents
        return
    schema = pa.schema([(name, pa.large_binary()) for name in (column.name, unexpected) if name])
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    body = lines.lstrip(b" \t\r\n")
    if not body:
        return
    # Arrow (26) crashes on a block that begins with null, so it gets only blocks that begin with an object.
    if body.startswith(b"{") and not column.is_nested:
        try:
            table = pa.json.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)
        except pa.ArrowInvalid:
            pass
        else:
            broken = policy == "skip" and not _is_object_per_line(lines, len(table))
            if not broken and unexpected and table.column(unexpected).null_count < len(table):
                raise ValueError(_late(origin, column, unexpected))
            if not broken:
                yield _rows(lines, ends, number, len(table)), table.column(column.name).combine_chunks()
                return
    middle = lines.find(b"\n", len(lines) // 2) + 1
    if not 0 < middle < len(lines):
        middle = lines.rfind(b"\n", 0, max(len(lines) // 2, 0)) + 1
    if 0 < middle < len(lines):
        half = lines.count(b"\n", 0, middle)
        yield from _parse(lines[:middle], half, number, origin, column, unexpected, policy)
        yield from _parse(lines[middle:], ends - half, number + half, origin, column, unexpected, policy)
    else:
        yield [number], _parse_line(lines, number, origin, column, unexpected, policy)


def _rows(lines: bytes, ends: int, number: int, documents: int) -> Sequence[int]:
    """Return the line number of each document in `lines`, which have `ends` line feeds and begin at line `number`.

    If there are several documents on a line, or documents that span lines, they count as one line each.
    """
    if documents != ends + (lines[-1:] != b"\n"):
        filled = [row for row, line in enumerate(lines.split(b"\n"), number) if line.strip()]
        if len(filled) == documents:
            return filled
    return range(number, number + documents)


def _parse_short(lines: bytes, column: Column, unexpected: str | None) -> pa.Array | None:
    """Return the documents of a few lines; None for lines that need a closer look, such as lines with errors."""
    documents: list[bytes | None] = []
    try:
        for line in filter(bytes.strip, lines.split(b"\n")):
            row = json.loads(line.decode())
            text = column.text(row.get(column.steps[0]))
            if unexpected and row.get(unexpected) is not None:
                return None
            documents.append(None if text is None else text.encode())
    except (ValueError, AttributeError, RecursionError):
        return None
    return pa.array(documents, pa.large_binary())


def _is_object_per_line(lines: bytes, objects: int) -> bool:
    """Return whether `lines`, a sequence of JSON objects, has one on each line that is not blank.

    A line break within an object is never between "}" and "{".
    """
    filled = [line for line in map(bytes.strip, lines.split(b"\n")) if line]
    return len(filled) == objects and all(line[:1] == b"{" and line[-1:] == b"}" for line in filled)


def _late(origin: str, column: Column, unexpected: str) -> str:
    return (
        f'the first lines of {origin} have only "{column.name}", and later lines have "{unexpected}": choose one with '
        "`text_column`"
    )


def _parse_line(
    line: bytes, number: int, origin: str, column: Column, unexpected: str | None, policy: str
) -> pa.Array | DocumentError:
    """Return the document or the error of one line that Arrow refuses.

    A line is an error if it is not a JSON object, or if its text is not a string or has a lone surrogate.
    """
    content, is_utf8 = _decode(line)
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).split(": line ")[0].lower()
        return DocumentError("invalid", f"line {number} of {origin} is not JSON ({reason}): fix or remove it")
    if row is None:
        return pa.array([None], pa.large_binary())
    if not isinstance(row, dict):
        return DocumentError(
            "invalid",
            f'line {number} of {origin} is not a JSON object: each line should be like {{"{column.name}": "..."}}',
        )
    if unexpected and row.get(unexpected) is not None:
        raise ValueError(_late(origin, column, unexpected))
    try:
        text = column.text(row.get(column.steps[0]))
    except ValueError as error:
        return DocumentError(
            "invalid",
            f'"{column.name}" in line {number} of {origin} is {error}: '
            "choose another column, or a field within it such as doc.text, with `text_column` or `pairs`",
        )
    document = None if text is None else _encode(text, f"line {number} of {origin}", is_utf8, policy)
    return document if isinstance(document, DocumentError) else pa.array([document], pa.large_binary())


def read_json(path: AnyPath, split: str | None, options: ReadOptions) -> Iterator[Chunk]:
    """Yield the texts of an array, or one column of its objects; null is an empty document.

    The whole file is read at once, so its size is limited to `options.max_document`. Elements of other types count as
    invalid documents. Raises ValueError if the file does not hold an array.
    """
    elements, is_utf8 = _elements(path, options)
    documents: list[bytes | None] = []
    rows: list[int] = []
    for number, text in enumerate(_texts(elements, path, options), 1):
        encoded = (
            _encode(text, f"element {number} of {path}", is_utf8, options.invalid) if isinstance(text, str) else text
        )
        if isinstance(encoded, DocumentError):
            yield unread(encoded, path, split)
        else:
            documents.append(encoded)
            rows.append(number)
    yield Chunk(documents=pa.array(documents, pa.large_binary()), origin=str(path), split=split, rows=rows)


def _elements(path: AnyPath, options: ReadOptions) -> tuple[list[Any], bool]:
    """Return the array in a file, and whether the file is UTF-8."""
    pieces, size = [], 0
    for piece in text_pieces(path, options):
        pieces.append(piece)
        size += len(piece)
        if size > options.max_document:
            raise DocumentError(
                "long",
                f"{path} is longer than {options.max_document:,} bytes, and a .json file is read as a whole: convert "
                "it to JSON lines (.jsonl), or raise `max_document`",
            )
    text, is_utf8 = _decode(b"".join(pieces))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError("damaged", f"{path} is not JSON ({error}): fix it, or leave it out") from error
    if not isinstance(content, list):
        raise ValueError(f"{path} holds {json_type(content)}, not an array of documents: {_REMEDY}")
    return content, is_utf8


def _texts(elements: list[Any], path: AnyPath, options: ReadOptions) -> list[str | DocumentError | None]:
    """Return the text of each element: None for null, and an error for any other type."""
    column = None
    if any(isinstance(element, dict) for element in elements):
        columns = dict.fromkeys(name for element in elements if isinstance(element, dict) for name in element)
        column = choose_column(list(columns), path, options.text_column)
    texts: list[str | DocumentError | None] = []
    for number, element in enumerate(elements, 1):
        try:
            if column and isinstance(element, dict):
                texts.append(column.text(element.get(column.steps[0])))
            else:
                texts.append(_PLAIN.text(element))
        except ValueError as error:
            message = f"element {number} of {path} is {error}: {_REMEDY}"
            texts.append(DocumentError("invalid", message))
    return texts


def _decode(content: bytes) -> tuple[str, bool]:
    """Return the text of UTF-8 and True. Other bytes become lone surrogates, and the second value is False."""
    try:
        return content.decode(), True
    except UnicodeDecodeError:
        return content.decode("utf-8", "surrogateescape"), False


def _encode(text: str, what: str, is_utf8: bool, policy: str) -> bytes | DocumentError:
    """Return text as UTF-8, or the error of the document `what`.

    Bytes that were not UTF-8 are restored. A lone surrogate, from an escape such as \\ud800, becomes one U+FFFD with
    the policy "replace" and its three bytes with "bytes". With other policies it is an error.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    document = []
    for character in text:
        if not is_utf8 and "\udc80" <= character <= "\udcff":
            document.append(bytes([ord(character) - 0xDC00]))
        elif not "\ud800" <= character <= "\udfff":
            document.append(character.encode())
        elif policy in ("replace", "bytes"):
            document.append("\ufffd".encode() if policy == "replace" else character.encode("utf-8", "surrogatepass"))
        else:
            return DocumentError(
                "invalid",
                f"{what} has the lone surrogate \\u{ord(character):04x}, which UTF-8 cannot encode: fix it, or choose "
                "what to do with such documents (`invalid='replace'`, skip or bytes; not with `pairs`)",
            )
    return b"".join(document)
