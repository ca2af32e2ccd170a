"""Corpora: documents in Arrow batches, divided into splits."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from corpora.documents import Dropped
from corpora.ranges import InputRange, SplitPlan, count_documents, pack
from corpora.read_options import ReadOptions
from corpora.specs import Opened, Specs, open_specs
from corpora.splits import FEW_DOCUMENTS, HASH, NONE, PREDEFINED, TAIL, TRAIN, VALIDATION, Rule, parse_rule

# Bytes of input in a range: seconds of encoding, and few enough ranges for a corpus of terabytes.
RANGE_BYTES = 256_000_000
# With this many documents, the probability that HASH holds out none is below 10^-9.
MANY_DOCUMENTS = 500


class Corpus:
    """Documents in a fixed order, each in one split. Every iteration is a fresh pass over the source.

    Attributes:
        name: a short name
        description, licence: from the corpus card, "" without one
        split_rule: how the splits were made: "predefined", "hash:0.05", "tail:0.1" or "none"; `split` of `open_corpus`
        split_reason: why the usual rule is not used, "" if it is
        split_names: the splits, "train" first
        dropped: what the newest pass has left out so far
        skipped_files: number of files in the folders and globs that are not read, by suffix
        synthetic: the description of a synthetic source (see `corpora.synthetic.source_from_description`), else None
        text_bytes_estimate: approximate bytes of text, for progress; None if they take long to estimate
        mapped_bytes: size of the largest document that a pass maps into memory, 0 if it maps none
    """

    def __init__(self, opened: Opened, options: ReadOptions, split: str | None = None):
        self._reader = opened.reader
        self._options = options
        self.name = opened.name
        self.description = opened.description
        self.licence = opened.licence
        self.synthetic = opened.synthetic
        self.dropped = Dropped()
        self.skipped_files = dict(opened.skipped_files)
        self.text_bytes_estimate = opened.reader.bytes_estimate
        self.mapped_bytes = opened.reader.mapped_bytes
        self._total_bytes: int | None = None
        self._duplicates: bytes | None = None
        self._wanted = parse_rule(split) if split else None
        self._choose_split()

    def _choose_split(self) -> None:
        """Set the plan of the split and the attributes that describe it."""
        self.split_reason = ""
        self._plan = self._make_plan(self._wanted)
        self.split_rule = str(self._plan.rule)
        made = (TRAIN,) if self._plan.rule == NONE else (TRAIN, VALIDATION)
        names = [*made, *(self._reader.own_splits if self._plan.rule == PREDEFINED else ())]
        self.split_names = tuple(dict.fromkeys(names))

    @property
    def column_type(self) -> pa.DataType:
        """Type of the text column: large_string, or large_binary with `invalid="bytes"`."""
        return pa.large_binary() if self._options.invalid == "bytes" else pa.large_string()

    @property
    def split_description(self) -> str:
        """A description of the split rule."""
        cut, rule = "", self._plan.cut
        if self._plan.rule == NONE:
            return "all documents are for training"
        if rule and rule.kind == "hash":
            cut = f"{100 * rule.fraction:g} % of the documents, by their hash, are for validation"
        elif rule:
            cut = f"the last {100 * rule.fraction:g} % of the bytes are for validation"
        if not self._plan.only_train:
            return cut
        own = f"its own splits ({', '.join(self._reader.own_splits)})"
        return f"{own}; {cut} (taken from train)" if cut else own

    def ranges(self, size: int = RANGE_BYTES) -> list[InputRange]:
        """Return the corpus in ranges of about `size` bytes of input, in corpus order.

        Large .jsonl files are cut at line ends and large .parquet files between row groups. Any other file is in one
        range, and so is a hub dataset. A tail split and a corpus without duplicates are read to count documents.
        """
        ranges, number, before = [], 0, 0
        for parts in pack(self._reader.parts(size), size):
            one = InputRange(parts=parts, options=self._options, plan=self._plan, bytes_before=before)
            if self._duplicates is not None:
                documents = sum(len(array) for _, array in one.documents(Dropped()))
                one = replace(one, duplicates=self._duplicates[number : number + documents])
                number += documents
            ranges.append(one)
            if self._plan.cut and self._plan.cut.kind == "tail":
                arrays = (array for split, array in one.documents(Dropped()) if not self._plan.held_out(split))
                before += sum(pc.sum(pc.binary_length(array), min_count=0).as_py() for array in arrays)
        return ranges

    def documents(self) -> Iterator[tuple[bool, pa.Array]]:
        """Yield all documents in corpus order, before they are split, as large_binary arrays without nulls.

        With each array comes whether the corpus itself holds it out, in an own split other than train.
        """
        self.dropped.reset()
        documents = self._whole().documents(self.dropped)
        return ((self._plan.held_out(split), array) for split, array in documents)

    def without(self, duplicates: bytes, duplicate_bytes: int) -> "Corpus":
        """Return the corpus without duplicates, split as if it had never had them.

        duplicates: for each of `documents` 0 to keep it, or EXACT_DUPLICATE or NEAR_DUPLICATE (`corpora.documents`);
        duplicate_bytes: the size of all duplicates.
        """
        corpus = copy(self)
        corpus.dropped = Dropped()
        corpus._duplicates = duplicates
        if self._total_bytes is not None:
            corpus._total_bytes = self._total_bytes - duplicate_bytes
        if self.text_bytes_estimate is not None:
            corpus.text_bytes_estimate = self.text_bytes_estimate - duplicate_bytes
        corpus._choose_split()
        return corpus

    def _whole(self, plan: SplitPlan | None = None) -> InputRange:
        parts = tuple(self._reader.parts())
        return InputRange(parts=parts, options=self._options, plan=plan or self._plan, duplicates=self._duplicates)

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (split, batch) in one pass, in corpus order within each split.

        A batch has the single column "text", with at most 8 MiB of text or a single document.
        """
        self.dropped.reset()
        return self._whole().routed_batches(self.dropped)

    def batches(self, split: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one split."""
        if split not in self.split_names:
            raise ValueError(f'{self.name} has no split "{split}": it has {", ".join(self.split_names)}')
        return (batch for name, batch in self.routed_batches() if name == split)

    def _make_plan(self, wanted: Rule | None) -> SplitPlan:
        """Return how documents are split. Reads no more of them than needed."""
        own = self._reader.own_splits
        if wanted == PREDEFINED and TRAIN not in own:
            raise ValueError(
                f"{self.name} has no own splits ({', '.join(own) or 'nothing in it is named train'}): "
                "leave `split` out, or give hash:0.05 or tail:0.1"
            )
        if wanted == NONE:
            self._count(1, only_train=False)
            return SplitPlan(rule=NONE, cut=None)
        if wanted is None and TRAIN in own and len(own) > 1:
            wanted = PREDEFINED
        if wanted == PREDEFINED and VALIDATION in own:
            self._count(1, only_train=False)
            return SplitPlan(rule=PREDEFINED, cut=None)
        only_train = wanted == PREDEFINED
        if wanted is not None and wanted != PREDEFINED:
            cut = wanted
            self._count(1, only_train)
        else:
            cut = HASH if self._count(FEW_DOCUMENTS, only_train) >= FEW_DOCUMENTS else TAIL
            if cut == HASH and not self._surely_many(MANY_DOCUMENTS) and not self._holds_out(cut, only_train):
                self.split_reason = f"{HASH} holds out none of the few documents, so the split is {TAIL}"
                cut = TAIL
        if cut.kind == "tail" and self._total_bytes is None:
            self._count(None, only_train)
        return SplitPlan(rule=PREDEFINED if wanted == PREDEFINED else cut, cut=cut, total_bytes=self._total_bytes)

    def check_validation(self) -> None:
        """Raise ValueError if a split by hash holds out no document. Reads up to the first one that it holds out."""
        cut = self._plan.cut
        if cut and cut.kind == "hash" and not self._holds_out(cut, self._plan.only_train):
            raise ValueError(
                f"{self.name} has no text for validation: `split='{cut}'` holds out none of its few documents; give a "
                "larger share, such as hash:0.2, or tail:0.1"
            )

    def _holds_out(self, cut: Rule, only_train: bool) -> bool:
        """Return whether a split by hash holds out a document."""
        plan = SplitPlan(rule=PREDEFINED if only_train else cut, cut=cut)
        return any(split == VALIDATION for split, _ in self._whole(plan).routed(Dropped()))

    def _surely_many(self, documents: int) -> bool:
        """Return whether the corpus is known, without reading it, to have at least `documents` documents."""
        marks = self._duplicates or b""
        return self._reader.surely_many(documents + len(marks) - marks.count(0))

    def _count(self, enough: int | None, only_train: bool) -> int:
        """Count documents, and stop at `enough`. With None count all documents and their bytes.

        Raises ValueError for a corpus without documents.
        """
        if enough is not None and not only_train and self._surely_many(enough):
            return enough
        dropped = Dropped()
        whole = self._whole(SplitPlan(rule=NONE, cut=None))  # any plan: documents are counted before the split
        documents, size = count_documents(whole, dropped, only_train=only_train, enough=enough)
        if enough is None or documents < enough:
            self._total_bytes = size
            if not only_train:
                self.text_bytes_estimate = size
        if not documents:
            raise ValueError(
                f"{self.name} is empty: no document in it has any text "
                f"({dropped.empty_documents} empty, {dropped.invalid_documents} invalid, "
                f"{dropped.long_documents} too long, {len(dropped.damaged_parts)} damaged)"
            )
        return documents


def open_corpus(
    specs: Specs,
    split: str | None = None,
    invalid: str = "error",
    text_column: str | None = None,
    **options: Any,
) -> Corpus:
    """Return the corpus that `specs` name.

    Each of them is

    - the name of a built-in card (`stdlib`, ...), or the path of a card of your own (.toml);
    - a file, a folder (with all folders below it) or a glob: .txt, .jsonl, .parquet, .arrow, and other text by
      `suffix`. Files other than .parquet and .arrow may be compressed (.gz, .xz, .zst). A .txt file is one document;
      in the other formats each row or line is one;
    - the URI of such a file, folder or glob in an object store, `s3://bucket/folder` (`corpora.object_store`);
    - `hub:owner/name`, `hub:owner/name/config`, `hub:owner/name@revision`.

    Files are in order of their relative path. A file that two paths name is read once. A card comes before a file of
    the same name; write ./stdlib for the file.

    Args:
        split: "predefined", "hash:FRACTION", "tail:FRACTION", or "none" for training on everything. Default: the
            corpus's own splits if they are "train" and at least one more. Otherwise 5 % of the documents by their hash,
            or the last tenth of the bytes if there are under 20 documents or this holds out none. Files have own splits
            if each one is in a folder named train, validation (valid, val, dev) or test, or has one of these words in
            its name. If own splits lack validation, it is cut from train. Several specs use own splits if all of them
            have some. The other rules pool all documents.
        invalid: the policy for documents that are not UTF-8: "error"; "replace" invalid bytes by U+FFFD; "skip" the
            document; "bytes": return all documents as bytes, in a large_binary column. "skip" also leaves out documents
            above `max_document`, lines that are not JSON objects or whose text is not a string, and the rest of damaged
            files, with a warning. Under the other policies, all of these are errors.
        text_column: the column of tables, JSONL, CSV and JSON; default: "text", or the only column. Except in CSV, it
            may be a field within a column: "doc.text", or "messages[].content" for the texts of a list, joined by line
            feeds. A column whose name has the dots comes first.
        options: other fields of `corpora.read_options.ReadOptions`, by name:
            max_document: the longest document in bytes, 256,000,000 by default. Reading and decompression stop there.
            suffix: suffixes to read in folders and globs instead of the four above: ".md", or a list. A .csv or .tsv
                file has a document per row, in the column `text_column`. A .json file must be an array of texts or
                objects. Every other file is one document.
            encoding: the encoding of text files, such as "utf-8", "utf-16" or "latin-1". By default each file is UTF-8,
                or has the encoding that is found in it: by its byte-order mark, by the places of NULs, or by a good
                guess from its letters. `Corpus.dropped.encodings` names these files.

    A byte-order mark at the start of a text file is not part of its text, unless `invalid` is "bytes".

    Raises:
        FileNotFoundError: no such corpus; the message names the nearest cards
        ValueError: an argument of the wrong type, an unknown option, empty, no text column, unknown format, not UTF-8,
            too long (also raised later, during a pass)
    """
    read_options = ReadOptions.of(invalid=invalid, text_column=text_column, **options)
    return Corpus(open_specs(specs, read_options), read_options, split)
