"""Options for reading a corpus: files, column, encoding, and the treatment of bad documents."""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from corpora.formats.compression import SUFFIXES

INVALID_POLICIES = ("error", "replace", "skip", "bytes")
MAX_DOCUMENT = 256_000_000


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading documents. Raises ValueError for an invalid option."""

    text_column: str | None = None
    """column of tables, CSV and JSON that holds the text; default: "text", or the only column"""

    invalid: str = "error"
    """policy for unreadable documents, such as invalid UTF-8; see `open_corpus`"""

    max_document: int = MAX_DOCUMENT
    """longest document in bytes"""

    suffix: Sequence[str] = ()
    """suffixes of the files to read in folders and globs; default: `corpora.input_files.FORMATS`"""

    encoding: str | None = None
    """encoding of text files; by default found in each file (see `corpora.open_corpus`)"""

    first_bytes: int | None = None
    """how much of a text file to read, in bytes of UTF-8; all of it by default"""

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Return the options with these names. Raises ValueError for an unknown name too."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise ValueError(f"there is no option {name!r} of a corpus: choose from {', '.join(names[:-1])}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("text_column", "encoding"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a text, not {value!r}")
        if self.invalid not in INVALID_POLICIES:
            raise ValueError(f'invalid="{self.invalid}" is not one of {", ".join(INVALID_POLICIES)}')
        if isinstance(self.max_document, bool) or not isinstance(self.max_document, int) or self.max_document < 1:
            raise ValueError(f"max_document is a number of bytes, at least 1, not {self.max_document!r}")
        object.__setattr__(self, "suffix", _suffixes(self.suffix))
        if self.encoding is not None:
            object.__setattr__(self, "encoding", _encoding(self.encoding))
            if self.invalid == "bytes":
                raise ValueError("`invalid='bytes'` keeps bytes unchanged, and `encoding` decodes them: leave one out")


def _suffixes(suffixes: str | Sequence[str]) -> tuple[str, ...]:
    """Return suffixes in lower case with a leading dot: ".md"."""
    given = [suffixes] if isinstance(suffixes, str) or not isinstance(suffixes, Sequence) else suffixes
    for suffix in given:
        if not isinstance(suffix, str):
            raise ValueError(f'suffix must be one such as ".md", or a list of them, not {suffixes!r}')
    found = tuple("." + suffix.lower().lstrip("*").lstrip(".") for suffix in given)
    for suffix in found:
        if suffix == "." or "/" in suffix or suffix.count(".") > 1:
            raise ValueError(f'the suffix "{suffix}" is not one such as .md')
        if suffix in SUFFIXES:
            raise ValueError(f"{suffix} files are compressed: name the suffix before it, and .md{suffix} is read too")
    return found


def _encoding(name: str) -> str:
    """Return Python's name of a text encoding."""
    try:
        codec = codecs.lookup(name)
        "".encode(codec.name)
    except (LookupError, ValueError):
        raise ValueError(
            f'"{name}" is not a text encoding that Python knows: try utf-8, utf-16, latin-1 or cp1252'
        ) from None
    return codec.name


class Column(NamedTuple):
    """A column of a table or a field of JSON objects, or a field within it: doc.text, messages[].content."""

    name: str
    """the whole name, such as doc.text"""
    steps: tuple[str, ...]
    """the column, then the fields within it; "[]" stands for all elements of a list"""

    @property
    def is_nested(self) -> bool:
        """Whether the text is in a field within the column."""
        return len(self.steps) > 1

    def text(self, cell: Any) -> str | None:
        """Return the text in a cell of the column. The texts of a list are joined by line feeds.

        Raises ValueError with the type of the first value that does not fit its step.
        """
        return _text(cell, self.steps[1:])


def _text(value: Any, steps: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    if not steps:
        if not isinstance(value, str):
            within = f" with the fields {', '.join(value)}" if isinstance(value, dict) and value else ""
            raise ValueError(f"{json_type(value)}{within}, not a string")
        return value
    if steps[0] == "[]":
        if not isinstance(value, list):
            raise ValueError(f"{json_type(value)} where [] needs a list")
        texts = [text for text in (_text(element, steps[1:]) for element in value) if text is not None]
        return "\n".join(texts)
    if not isinstance(value, dict):
        raise ValueError(f"{json_type(value)} where .{steps[0]} needs an object")
    return _text(value.get(steps[0]), steps[1:])


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


def choose_column(columns: list[str], origin: object, wanted: str | None, nested: bool = True) -> Column:
    """Return the column to read: `wanted`, else "text", else the only one. ValueError lists the columns.

    Unless `nested` is false, `wanted` may also be a field within a column.
    """
    name = wanted or ("text" if "text" in columns or len(columns) != 1 else columns[0])
    if name in columns:
        return Column(name, (name,))
    steps = tuple(filter(None, re.split(r"\.|(\[\])", name)))
    if nested and steps and steps[0] in columns:
        return Column(name, steps)
    raise ValueError(
        f'{origin} has no column "{name}": choose one of its columns ({", ".join(columns) or "none"}) with '
        "`text_column` or `pairs`"
    )
