"""The reader of .json files that hold one array: of texts, or of objects with a text column."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from corpora.documents import Chunk, DocumentError
from corpora.jsonl import choose_column, encode_text, json_type
from corpora.reading import Reading
from corpora.text_files import text_pieces

_REMEDY = "make it an array of texts or of objects, or JSON lines (.jsonl)"


def read_json(path: Path, split: str | None, reading: Reading) -> Iterator[Chunk]:
    """Yield the texts of an array, or one column of its objects; null is an empty document.

    The whole file is read at once, so its size is limited to `reading.max_document`. Raises ValueError for any other
    JSON value.
    """
    texts = _texts(_elements(path, reading), path, reading)
    encoded = [None if text is None else encode_text(text) for text in texts]
    yield Chunk(documents=pa.array(encoded, pa.large_binary()), origin=str(path), split=split, first_row=1)


def _elements(path: Path, reading: Reading) -> list[Any]:
    pieces, size = [], 0
    for piece in text_pieces(path, reading):
        pieces.append(piece)
        size += len(piece)
        if size > reading.max_document:
            raise DocumentError(
                "long",
                f"{path} is longer than {reading.max_document:,} bytes, and a .json file is read as a whole: convert "
                "it to JSON lines (.jsonl), or raise --max-document",
            )
    try:
        content = json.loads(b"".join(pieces).decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): mend it, or leave it out") from error
    if not isinstance(content, list):
        raise ValueError(f"{path} holds {json_type(content)}, not an array of documents: {_REMEDY}")
    return content


def _texts(elements: list[Any], path: Path, reading: Reading) -> list[str | None]:
    """Return the text of each element, None for null."""
    if any(isinstance(element, dict) for element in elements):
        columns = dict.fromkeys(name for element in elements if isinstance(element, dict) for name in element)
        column = choose_column(list(columns), path, reading.text_column)
        elements = [element.get(column) if isinstance(element, dict) else element for element in elements]
    for number, text in enumerate(elements, 1):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"element {number} of {path} holds {json_type(text)} where a text should be: {_REMEDY}")
    return elements
