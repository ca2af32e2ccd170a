"""Files of sentences whose words have tags, one word a line: CoNLL and CoNLL-U."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from corpora.formats.text_files import found_encoding, text_pieces, whole_lines
from corpora.input_files import own_suffix, regular_size
from corpora.read_options import MAX_DOCUMENT, ReadOptions
from corpora.rows import Row
from corpora.warn import warn

UNIVERSAL = ".conllu"
SUFFIXES = (".conll", UNIVERSAL, ".bio", ".iob", ".iob2", ".txt")
UNIVERSAL_COLUMNS = ("id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Names that the ten columns of CoNLL-U have in rows"""
_COLUMNS = {
    1: ("tokens",),
    2: ("tokens", "tags"),
    3: ("tokens", "pos_tags", "tags"),
    4: ("tokens", "pos_tags", "chunk_tags", "tags"),
}
_DOCUMENT = "-DOCSTART-"


def is_tagged_file(path: Path) -> bool:
    """Return whether the name of a file, also compressed, ends like that of a file of tagged words."""
    return not path.is_dir() and own_suffix(path) in SUFFIXES


def read_tagged(path: Path) -> Iterator[Row]:
    """Yield a row for each sentence, whose fields are lists with an entry for each word; blank lines end sentences.

    The first column is `tokens` and the last `tags`, between them `pos_tags` and `chunk_tags` of CoNLL-2003, or
    `column2` and so on. CoNLL-U has the fields UNIVERSAL_COLUMNS; its contractions and empty nodes are no words.
    Raises ValueError with file and line for a line with another number of columns.
    """
    regular_size(path)
    encoding = found_encoding(path)
    if encoding:
        warn(f"{path} is not UTF-8 but read as {encoding}")
    universal = own_suffix(path) == UNIVERSAL
    too_long = ValueError(f"{path} has a line of more than {MAX_DOCUMENT:,} bytes: shorten or remove it")
    pieces = text_pieces(path, ReadOptions(encoding=encoding))
    lines: list[str] = []
    words: list[list[str]] = []
    names: Sequence[str] = UNIVERSAL_COLUMNS if universal else ()
    first = 0
    for number, data in enumerate(chain(whole_lines(pieces, MAX_DOCUMENT, too_long), [b""]), 1):
        try:
            line = data.decode().removesuffix("\r")
        except UnicodeDecodeError:
            raise ValueError(f"line {number} of {path} is not UTF-8: convert the file to UTF-8") from None
        if not line.strip():
            if words:
                yield _row(f"line {first} of {path}", names, words, lines)
                lines, words, first = [], [], 0
            continue
        lines.append(line)
        if is_word(line, universal):
            cells = _cells(line)
            names = names or _names(len(cells))
            if len(cells) != len(names):
                raise ValueError(
                    f"columns in line {number} of {path}: {len(cells)}, not {len(names)}; give one word a line, and "
                    "all lines equally many columns"
                )
            first = first or number
            words.append(cells)


def is_word(line: str, universal: bool) -> bool:
    """Return whether a line has a word: it is no comment, range or empty node of CoNLL-U, nor begins a document."""
    if universal:
        return not line.startswith("#") and line.split("\t")[0].isdecimal()
    return not line.startswith(_DOCUMENT)


def with_tags(row: Row, tags: Sequence[str], column: str) -> str:
    """Return the lines of a sentence with other tags: in a `column` of CoNLL-U, otherwise in a new last column."""
    universal = "upos" in row.fields
    remaining = iter(tags)
    lines = []
    for line in row.lines:
        word = is_word(line, universal)
        if universal and word:
            cells = _cells(line)
            cells[UNIVERSAL_COLUMNS.index(column)] = next(remaining)
            lines.append("\t".join(cells))
        elif universal:
            lines.append(line)
        else:
            lines.append(line + ("\t" if "\t" in line else " ") + (next(remaining) if word else "O"))
    return "\n".join([*lines, "", ""])


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _names(columns: int) -> tuple[str, ...]:
    between = (f"column{number}" for number in range(2, columns))
    return _COLUMNS.get(columns, ("tokens", *between, "tags"))


def _row(place: str, names: Sequence[str], words: list[list[str]], lines: list[str]) -> Row:
    columns = zip(*words, strict=True)
    return Row(place, {name: list(column) for name, column in zip(names, columns, strict=True)}, tuple(lines))
