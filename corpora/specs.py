"""Specs of a corpus on the command line (names of cards, paths, hub names), and their readers."""

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from corpora.cards import CARD_FOLDER, Card, card_names, load_card
from corpora.input_files import Found, InputFile, divided, find_files, is_glob, without_repeats
from corpora.object_store import as_path, is_uri
from corpora.read_options import ReadOptions
from corpora.readers import Files, Reader, Several, StandardLibrary
from corpora.splits import TRAIN

Specs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A reader, and facts about its documents (see `corpora.Corpus`)."""

    reader: Reader
    name: str
    description: str = ""
    licence: str = ""
    synthetic: dict[str, Any] | None = None
    skipped_files: Mapping[str, int] = field(default_factory=dict)


def open_specs(specs: Specs, options: ReadOptions) -> Opened:
    """Return the documents that `specs` name (see `corpora.open_corpus`), one spec after the other."""
    given = [specs] if isinstance(specs, str | os.PathLike) or not isinstance(specs, Sequence) else specs
    for spec in given:
        if not isinstance(spec, str | os.PathLike):
            raise ValueError(f"a corpus is a name or a path, or a list of them, not {spec!r}")
    names = [*dict.fromkeys(str(spec) for spec in given)]  # a corpus that is named twice is read once
    if not names:
        raise ValueError(
            "no corpus was given: name a card, a file, a folder, a glob, s3://bucket/folder or hub:owner/name"
        )
    named = [_open_named(spec, options) for spec in names]
    opened = [one for one in named if one is not None]
    if paths := [spec for spec, one in zip(names, named, strict=True) if one is None]:
        # All paths make one reader, so that train.txt and valid.txt are two splits of one corpus.
        opened.insert(named.index(None), _open_paths(paths, options))
    joined = opened[0] if len(opened) == 1 else _join(opened)
    return replace(joined, name=joined.name if len(joined.name) <= 60 else joined.name[:57] + "...")


def _join(opened: Sequence[Opened]) -> Opened:
    return Opened(
        reader=Several(one.reader for one in opened),
        name="+".join(one.name for one in opened),
        description="; ".join(one.description for one in opened if one.description),
        licence="; ".join(dict.fromkeys(one.licence for one in opened if one.licence)),
        skipped_files=sum((Counter(one.skipped_files) for one in opened), Counter()),
    )


def _open_paths(paths: Sequence[str], options: ReadOptions) -> Opened:
    found = [_find(path, options) for path in paths]
    files = divided(without_repeats([file for one in found for file in one.files]))
    name = "+".join(as_path(path).name or path for path in paths)
    skipped = sum((one.skipped for one in found), Counter[str]())
    return Opened(reader=Files(files, options), name=name, skipped_files=skipped)


def _open_named(spec: str, options: ReadOptions) -> Opened | None:
    """Return the corpus of a card's name, a card's path or a hub name; None for any other path."""
    if spec.startswith("hub:"):
        from corpora.hub import Hub, parse_hub_spec

        reader = Hub(parse_hub_spec(spec), text_column=options.text_column)
        return Opened(reader=reader, name=spec.removeprefix("hub:"))
    if spec in card_names():
        return _open_card(load_card(CARD_FOLDER / f"{spec}.toml"), options)
    path = Path(spec).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return _open_card(load_card(path), options)
    return None


def _open_card(card: Card, options: ReadOptions) -> Opened:
    options = replace(options, text_column=options.text_column or card.text_column)
    opened = partial(Opened, name=card.name, description=card.description, licence=card.licence)
    match card.reader:
        case "stdlib":
            return opened(reader=StandardLibrary())
        case "files":
            files, skipped = _card_files(card, options)
            return opened(reader=Files(files, options), skipped_files=skipped)
        case "hub":
            from corpora.hub import Hub, HubName

            name = HubName(card.repository, card.config, card.revision)
            size = card.size.get("bytes")
            return opened(reader=Hub(name, text_column=options.text_column, splits=card.splits, bytes_estimate=size))
    from corpora.synthetic import SyntheticDocuments, source_from_description

    source = source_from_description(card.source)
    reader = SyntheticDocuments(source, card.documents, card.length)
    return opened(reader=reader, synthetic=source.describe())


def _card_files(card: Card, options: ReadOptions) -> tuple[list[InputFile], Counter[str]]:
    """Return the files of a card, whose paths are relative to it, and the number of skipped files by suffix.

    If the card has splits, its other files are for training, unless all of them have a split in their names.
    """
    skipped: Counter[str] = Counter()

    def find(paths: str | Sequence[str]) -> Iterator[InputFile]:
        for path in [paths] if isinstance(paths, str) else paths:
            found = _find(path if is_uri(path) else str(card.path.parent / path), options)
            skipped.update(found.skipped)
            yield from found.files

    files = divided(list(find(card.paths)))
    named = [replace(file, split=split) for split, paths in card.splits.items() for file in find(paths)]
    if named and not all(file.split for file in files):
        files = [replace(file, split=TRAIN) for file in files]
    return without_repeats([*named, *files]), skipped


def _find(spec: str, options: ReadOptions) -> Found:
    try:
        return find_files(spec, options.suffix)
    except FileNotFoundError:
        if is_glob(spec):
            raise
        begun = [name for name in card_names() if len(spec) > 2 and name.startswith(spec)]
        near = begun or difflib.get_close_matches(spec, card_names(), 1)
        hint = f"did you mean {' or '.join(near)}?" if near else '"bytelm corpus list" names the built-in ones'
        raise FileNotFoundError(f'there is no corpus card, file or folder "{spec}"; {hint}') from None
