"""`open_corpus`: from what a person typed to documents in Arrow batches, divided into splits."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from corpora.cards import CARD_FOLDER, Card, card_names, load_card
from corpora.documents import Dropped, batch_documents, clean
from corpora.files import Found, find_files, is_glob, without_repeats
from corpora.readers import Files, Reader, Several, StandardLibrary
from corpora.reading import Reading
from corpora.splits import (
    FEW_DOCUMENTS,
    HASH,
    OWN,
    TAIL,
    TRAIN,
    VALIDATION,
    HashRouter,
    Rule,
    TailRouter,
    parse_rule,
)


class Corpus:
    """Documents in a fixed order, each in one split. Every iteration is a fresh pass over the source.

    Attributes:
        name: a short name
        description, licence: from the corpus card, "" where there is none
        split_rule: how the splits were made: "own", "hash:0.05" or "tail:0.1"; `open_corpus` takes it as `split`
        split_names: the splits, "train" first
        dropped: what the pass that began last has left out so far
        skipped_files: number of files in the folders and globs that are not read, by suffix
        synthetic: None, or what `corpora.synthetic.source_from_description` makes the source from
        text_bytes_estimate: about how many bytes of text, for progress; None where that is not cheaply known
        mapped_bytes: size of the largest document that a pass maps into memory, 0 if it maps none
    """

    def __init__(
        self,
        reader: Reader,
        *,
        name: str,
        description: str = "",
        licence: str = "",
        split: str | None = None,
        reading: Reading,
        synthetic: dict[str, Any] | None = None,
        skipped_files: Mapping[str, int] | None = None,
    ):
        self._reader = reader
        self._reading = reading
        self.name = name
        self.description = description
        self.licence = licence
        self.synthetic = synthetic
        self.dropped = Dropped()
        self.skipped_files = dict(skipped_files or {})
        self.text_bytes_estimate = reader.bytes_estimate
        self.mapped_bytes = reader.mapped_bytes
        self._total_bytes: int | None = None
        self._rule, self._cut = self._plan(parse_rule(split) if split else None)
        self.split_rule = str(self._rule)
        names = [TRAIN, VALIDATION, *(reader.own_splits if self._rule == OWN else ())]
        self.split_names = tuple(dict.fromkeys(names))

    @property
    def column_type(self) -> pa.DataType:
        """large_string, or large_binary with `invalid="bytes"`."""
        return pa.large_binary() if self._reading.invalid == "bytes" else pa.large_string()

    @property
    def split_description(self) -> str:
        """The split rule in words."""
        cut = ""
        if self._cut and self._cut.kind == "hash":
            cut = f"{100 * self._cut.fraction:g} % of the documents, by their hash, are for validation"
        elif self._cut:
            cut = f"the last {100 * self._cut.fraction:g} % of the bytes, cut at a line end, are for validation"
        if self._rule != OWN:
            return cut
        own = f"its own splits ({', '.join(self._reader.own_splits)})"
        return f"{own}; {cut} (taken from train)" if cut else own

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """One pass: (split, batch with the single column "text"), in corpus order within each split.

        A batch has at most 8 MiB of text, or a single document.
        """
        self.dropped.reset()
        return batch_documents(self._routed(), self.column_type)

    def batches(self, split: str) -> Iterator[pa.RecordBatch]:
        """The batches of one split."""
        if split not in self.split_names:
            raise ValueError(f'{self.name} has no split "{split}": it has {", ".join(self.split_names)}')
        return (batch for name, batch in self.routed_batches() if name == split)

    def _routed(self) -> Iterator[tuple[str, pa.Array]]:
        router = self._router()
        for chunk in self._reader.chunks():
            documents = clean(chunk, self._reading, self.dropped)
            if self._rule == OWN and (chunk.split != TRAIN or router is None):
                yield chunk.split, documents
            else:
                yield from router.route(documents)

    def _router(self) -> HashRouter | TailRouter | None:
        if self._cut is None:
            return None
        if self._cut.kind == "hash":
            return HashRouter(self._cut.fraction)
        return TailRouter(self._cut.fraction, self._total_bytes)

    def _plan(self, wanted: Rule | None) -> tuple[Rule, Rule | None]:
        """(rule, rule that cuts validation off, if one does). Looks at as few documents as that takes."""
        own = self._reader.own_splits
        if wanted == OWN and TRAIN not in own:
            raise ValueError(
                f"{self.name} has no own splits ({', '.join(own) or 'nothing in it is named train'}): "
                "leave --split out, or give hash:0.05 or tail:0.1"
            )
        if wanted is None and TRAIN in own and len(own) > 1:
            wanted = OWN
        if wanted == OWN and VALIDATION in own:
            self._count(1, only_train=False)
            return OWN, None
        only_train = wanted == OWN
        if wanted is not None and wanted != OWN:
            cut = wanted
            self._count(1, only_train)
        else:
            cut = HASH if self._count(FEW_DOCUMENTS, only_train) >= FEW_DOCUMENTS else TAIL
        if cut.kind == "tail" and self._total_bytes is None:
            self._count(None, only_train)
        return (OWN if wanted == OWN else cut), cut

    def _count(self, enough: int | None, only_train: bool) -> int:
        """Counts documents until there are `enough`; counts all, and their bytes, with None. ValueError for none."""
        if enough is not None and not only_train and self._reader.surely_many(enough):
            return enough
        documents = size = 0
        dropped = Dropped()
        for chunk in self._reader.chunks():
            if only_train and chunk.split != TRAIN:
                continue
            kept = clean(chunk, self._reading, dropped)
            documents += len(kept)
            size += pc.sum(pc.binary_length(kept), min_count=0).as_py()
            if enough is not None and documents >= enough:
                break
        else:
            self._total_bytes = size
            if not only_train:
                self.text_bytes_estimate = size
        if not documents:
            raise ValueError(
                f"{self.name} is empty: no document in it has any text "
                f"({dropped.empty_documents} empty, {dropped.invalid_documents} not UTF-8, "
                f"{dropped.long_documents} too long)"
            )
        return documents


@dataclass(frozen=True, kw_only=True)
class _Opened:
    reader: Reader
    name: str
    card: Card | None = None
    synthetic: dict[str, Any] | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)


def open_corpus(
    specs: str | Sequence[str],
    split: str | None = None,
    invalid: str = "error",
    text_column: str | None = None,
    **options: Any,
) -> Corpus:
    """The corpus that `specs` name: one or several of

    - the name of a built-in card (`stdlib`, ...), or the path of a card of your own (.toml);
    - a file, a folder (with all below it) or a glob: .txt, .jsonl, .parquet, .arrow, and other text by `suffix`. All
      but .parquet and .arrow may be followed by .gz, .xz or .zst. A .txt file is one document; in the others each row
      or line is one;
    - `hub:owner/name`, `hub:owner/name/config`, `hub:owner/name@revision`.

    Files are in order of their relative path; a file that two specs name is read once. A card's name comes before a
    file of the same name; write ./stdlib for the latter.

    Args:
        split: "own", "hash:FRACTION" or "tail:FRACTION". By default the corpus's own splits if it has "train" and at
            least one more; else by hash, 5 % for validation; else, under 20 documents, the last tenth of the
            bytes. Files have own splits if each is in a folder named train, validation (valid, val, dev) or test,
            or has one of these as a word of its name. Own splits without validation have it cut from train.
            Several specs use own splits if all have them. The other rules pool all documents.
        invalid: what to do with a document that is not UTF-8: "error"; "replace" its bad bytes by U+FFFD; "skip" it;
            "bytes": take all documents as bytes (the column is then large_binary). Documents above
            `max_document` are left out with "skip", and an error otherwise.
        text_column: the column of tables, JSONL, CSV and JSON; by default "text", or the only one there is
        options: other fields of `corpora.reading.Reading`, by name:
            max_document: the longest document in bytes, 256,000,000 by default. Reading and decompression stop there.
            suffix: the suffixes of files to read in folders and globs instead of the four above: ".md", or a list.
                A .csv or .tsv file has a document per row, in the column `text_column`; a .json file must be an array
                of texts or objects. Every other file is one document.
            encoding: the encoding of text files, such as "utf-16" or "latin-1"; UTF-8 by default.

    A byte-order mark at the start of a text file is not part of its text, unless `invalid` is "bytes".

    Raises:
        FileNotFoundError: nothing there; the sentence names the nearest cards
        ValueError: empty, no text column, unknown format, not UTF-8, too long (also raised later, during a pass)
    """
    reading = Reading(invalid=invalid, text_column=text_column, **options)
    opened = _open_all(specs, reading)
    cards = [one.card for one in opened if one.card]
    return Corpus(
        _joined(opened),
        name=_joined_name(opened),
        description="; ".join(card.description for card in cards if card.description),
        licence="; ".join(dict.fromkeys(card.licence for card in cards if card.licence)),
        split=split,
        reading=reading,
        synthetic=opened[0].synthetic if len(opened) == 1 else None,
        skipped_files=_skipped(opened),
    )


def open_reader(specs: str | Sequence[str], reading: Reading) -> tuple[Reader, str, dict[str, int]]:
    """Return a reader of one column of the corpus that `specs` name, the corpus's name and its skipped files."""
    opened = _open_all(specs, reading)
    return _joined(opened), _joined_name(opened), _skipped(opened)


def _skipped(opened: Sequence[_Opened]) -> dict[str, int]:
    return dict(sum((Counter(one.skipped) for one in opened), Counter()))


def _joined(opened: Sequence[_Opened]) -> Reader:
    return opened[0].reader if len(opened) == 1 else Several(one.reader for one in opened)


def _joined_name(opened: Sequence[_Opened]) -> str:
    name = "+".join(one.name for one in opened)
    return name if len(name) <= 60 else name[:57] + "..."


def _open_all(specs: str | Sequence[str], reading: Reading) -> list[_Opened]:
    specs = [specs] if isinstance(specs, str) else [str(spec) for spec in specs]
    if not specs:
        raise ValueError("no corpus was given: name a card, a file, a folder, a glob or hub:owner/name")
    opened, paths = [], []
    for spec in specs:
        one = _open_named(spec, reading)
        if one is not None:
            opened.append(one)
            continue
        # All paths make one reader, so that train.txt and valid.txt are two splits of one corpus.
        if not paths:
            opened.append(None)
        paths.append(spec)
    if paths:
        found = [_find(spec, reading) for spec in paths]
        files = without_repeats([file for one in found for file in one.files])
        skipped = sum((one.skipped for one in found), Counter())
        name = "+".join(Path(spec).name or spec for spec in paths)
        opened[opened.index(None)] = _Opened(reader=Files(files, reading), name=name, skipped=skipped)
    return opened


def _open_named(spec: str, reading: Reading) -> _Opened | None:
    """What a card's name, a card's path or a hub name stands for; None for a path."""
    if spec.startswith("hub:"):
        from corpora.hub import Hub, parse_hub_spec

        return _Opened(
            reader=Hub(**parse_hub_spec(spec), text_column=reading.text_column), name=spec.removeprefix("hub:")
        )
    if spec in card_names():
        return _open_card(load_card(CARD_FOLDER / f"{spec}.toml"), reading)
    path = Path(spec).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return _open_card(load_card(path), reading)
    return None


def _open_card(card: Card, reading: Reading) -> _Opened:
    reading = replace(reading, text_column=reading.text_column or card.text_column)
    match card.reader:
        case "stdlib":
            return _Opened(reader=StandardLibrary(), name=card.name, card=card)
        case "files":
            return _Opened(reader=_card_files(card, reading), name=card.name, card=card)
        case "hub":
            from corpora.hub import Hub

            reader = Hub(
                card.repository,
                config=card.config,
                revision=card.revision,
                text_column=reading.text_column,
                splits=card.splits,
                bytes_estimate=card.size.get("bytes"),
            )
            return _Opened(reader=reader, name=card.name, card=card)
    from corpora.synthetic import SyntheticDocuments, source_from_description

    source = source_from_description(card.source)
    reader = SyntheticDocuments(source, card.documents, card.length)
    return _Opened(reader=reader, name=card.name, card=card, synthetic=source.describe())


def _card_files(card: Card, reading: Reading) -> Files:
    """Return the files of a card, whose paths are relative to it."""

    def find(paths: str | Sequence[str]):
        for path in [paths] if isinstance(paths, str) else paths:
            yield from _find(str(card.path.parent / path), reading).files

    files = list(find(card.paths))
    for split, paths in card.splits.items():
        files += [replace(file, split=split) for file in find(paths)]
    return Files(without_repeats(files), reading)


def _find(spec: str, reading: Reading) -> Found:
    try:
        return find_files(spec, reading.suffix)
    except FileNotFoundError:
        if is_glob(spec):
            raise
        near = difflib.get_close_matches(spec, card_names(), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else '"bytelm corpus list" names the built-in ones'
        raise FileNotFoundError(f'there is no corpus card, file or folder "{spec}"; {hint}') from None
