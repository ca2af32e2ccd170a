"""Corpus cards: TOML files that describe a corpus, its origin and its licence.

The keys of a card:

    description, licence      text; terms of use
    reader                    "stdlib", "files", "hub" or "synthetic"
    paths                     files: files, folders or globs, relative to the card, or URIs
    repository, config, revision    hub: owner/name on the Hugging Face hub, one of its configurations, a commit
    text_column               files and hub: the column with the text, default "text"
    splits                    files: a table of split = paths; the other files of `paths` are for training, unless
                              all of them have a split in their names;
                              hub: a table of split = the hub's name for it
    source                    synthetic: a table for `corpora.synthetic.source_from_description`
    documents, length         synthetic: a table of split = number of documents; symbols in each document
    size                      a table with the approximate numbers of documents and bytes

A card's name is its file name without the suffix. A card of your own is named by its path.
"""

import difflib
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from corpora.input_files import regular_size

CARD_FOLDER = Path(__file__).parent / "cards"

MOST = 1 << 48  # bytes, documents or symbols

_REQUIRED = {
    "stdlib": (),
    "files": (),
    "hub": ("repository",),
    "synthetic": ("source", "documents", "length"),
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """The content of a corpus card."""

    name: str
    path: Path
    reader: str
    description: str = ""
    licence: str = ""
    paths: tuple[str, ...] = ()
    repository: str = ""
    config: str | None = None
    revision: str | None = None
    text_column: str | None = None
    splits: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, int] = field(default_factory=dict)
    length: int = 0
    size: dict[str, int] = field(default_factory=dict)


def _is_count(value: object) -> bool:
    return type(value) is int and abs(value) <= MOST


def _has_more_than_64_bits(value: object) -> bool:
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


def card_names() -> list[str]:
    """Return the names of the built-in cards, sorted."""
    return sorted(path.stem for path in CARD_FOLDER.glob("*.toml"))


def list_cards() -> list[Card]:
    """Return the built-in cards, sorted by name."""
    return [load_card(CARD_FOLDER / f"{name}.toml") for name in card_names()]


def load_card(path: Path) -> Card:
    """Read a card. Raises ValueError for a file that is not TOML, or has unknown, missing or wrong keys."""
    regular_size(path)
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except RecursionError:
        raise ValueError(f"the corpus card {path} is not TOML: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the corpus card {path} is not TOML: {error}") from error
    known = {f.name: f for f in fields(Card) if f.name not in ("name", "path")}
    for key, value in content.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f'; did you mean "{near[0]}"?' if near else f": its keys are {', '.join(known)}"
            raise ValueError(f'the corpus card {path} has the unknown key "{key}"{hint}')
        expected = {
            "paths": list,
            "length": int,
            "splits": dict,
            "source": dict,
            "documents": dict,
            "size": dict,
        }
        if not isinstance(value, expected.get(key, str)):
            kind = expected.get(key, str).__name__
            raise ValueError(f'"{key}" in the corpus card {path} should be a {kind}, not {value!r:.60}')
    reader = content.get("reader")
    if reader not in _REQUIRED:
        raise ValueError(f'"reader" in the corpus card {path} should be one of {", ".join(_REQUIRED)}, not {reader!r}')
    for key in ("documents", "size"):
        if wrong := [value for value in content.get(key, {}).values() if not _is_count(value)]:
            raise ValueError(f'"{key}" in the corpus card {path} should hold whole numbers, not {wrong[0]!r:.60}')
    if not _is_count(content.get("length", 0)):
        raise ValueError(
            f'"length" in the corpus card {path} should be at most {MOST:,}, not {content["length"]!r:.60}'
        )
    if wrong := [value for value in content.get("source", {}).values() if _has_more_than_64_bits(value)]:
        raise ValueError(f'"source" in the corpus card {path} should hold 64-bit numbers, not {wrong[0]!r:.60}')
    named = [*content.get("paths", ()), *content.get("splits", {}).values()]
    texts = [text for value in named for text in (value if isinstance(value, list) else [value])]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ValueError(f'"paths" and "splits" in the corpus card {path} should hold names, not {wrong[0]!r:.60}')
    missing = [key for key in _REQUIRED[reader] if key not in content]
    if reader == "files" and not (content.get("paths") or content.get("splits")):
        missing = ["paths"]
    if missing:
        raise ValueError(f'the corpus card {path} lacks "{missing[0]}", which the reader {reader} needs')
    content["paths"] = tuple(content.get("paths", ()))
    return Card(name=path.stem, path=path, **content)
