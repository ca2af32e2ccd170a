"""Pairs of texts, a source and its target, from two columns of tables or JSON lines: translations, questions and
answers, anything that turns one text into another."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from corpora.corpus import open_reader
from corpora.documents import Dropped, batch_documents, clean
from corpora.readers import Reader
from corpora.reading import Reading
from corpora.splits import HASH, OWN, TRAIN, VALIDATION, HashRouter, parse_rule

SOURCE, TARGET = "source", "target"
PAIR_SCHEMA = pa.schema([(SOURCE, pa.large_string()), (TARGET, pa.large_string())])


class PairCorpus:
    """Pairs in a fixed order, each in one split. Every iteration is a fresh pass over the source.

    Attributes:
        name: a short name
        columns: the two columns, source and target
        split_rule: "own" or "hash:0.05", by the source's bytes, so that one source is never in two splits; own splits
            without validation have it cut from train in that way
        split_names: the splits, "train" first
        dropped: what the pass that began last has left out so far; a pair with an empty side is an empty document
        text_bytes_estimate: about how many bytes of text, for progress; None where that is not cheaply known
    """

    def __init__(
        self,
        readers: tuple[Reader, Reader],
        name: str,
        columns: tuple[str, str],
        split: str | None,
        reading: Reading,
        skipped_files: dict[str, int],
    ) -> None:
        self._readers, self._reading = readers, reading
        self.name, self.columns = name, columns
        self.dropped = Dropped()
        self.skipped_files = skipped_files
        self.text_bytes_estimate = readers[0].bytes_estimate
        self.mapped_bytes = readers[0].mapped_bytes
        own = readers[0].own_splits
        rule = parse_rule(split) if split else OWN if TRAIN in own and len(own) > 1 else HASH
        if rule.kind == "tail":
            raise ValueError(f'the split "{rule}" cuts a text, and {name} has pairs: use own or hash:0.05')
        if rule == OWN and TRAIN not in own:
            raise ValueError(
                f"{name} has no own splits ({', '.join(own) or 'nothing in it is named train'}): "
                "leave --split out, or give hash:0.05"
            )
        self.split_rule = str(rule)
        self.split_names = tuple(dict.fromkeys((TRAIN, VALIDATION, *(own if rule == OWN else ()))))
        # Own splits without validation have it cut from train.
        self._cut_all = rule != OWN
        cut = rule if self._cut_all else HASH
        self._router = None if rule == OWN and VALIDATION in own else HashRouter(cut.fraction)

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """One pass: (split, batch of `PAIR_SCHEMA`), in corpus order within each split."""
        self.dropped.reset()
        for split, sources, targets in self._aligned():
            kept = pc.and_(pc.greater(pc.binary_length(sources), 0), pc.greater(pc.binary_length(targets), 0))
            self.dropped.empty_documents += len(kept) - pc.sum(kept, min_count=0).as_py()
            pairs = pa.RecordBatch.from_arrays(
                [side.filter(kept).cast(pa.large_string()) for side in (sources, targets)], schema=PAIR_SCHEMA
            )
            if self._router is None or not (self._cut_all or split == TRAIN):
                yield split, pairs
            else:
                yield from self._by_source(pairs)

    def _by_source(self, pairs: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        chosen = self._router.chosen(pairs.column(SOURCE).cast(pa.large_binary()))
        for split, mask in ((TRAIN, ~chosen), (VALIDATION, chosen)):
            if mask.any():
                yield split, pairs.filter(pa.array(mask))

    def _aligned(self) -> Iterator[tuple[str | None, pa.Array, pa.Array]]:
        """(split, sources, targets) of equal lengths, large_binary, nulls as empty: the two columns side by side."""
        sides = [_rows(reader, self._reading) for reader in self._readers]
        waiting = [next(side, None) for side in sides]
        while all(waiting):
            (split, sources), (_, targets) = waiting
            length = min(len(sources), len(targets))
            yield split, sources[:length], targets[:length]
            for i, (_, documents) in enumerate(waiting):
                rest = documents[length:]
                waiting[i] = (waiting[i][0], rest) if len(rest) else next(sides[i], None)
        assert waiting == [None, None], "two columns of one file have different lengths"


class PairTexts:
    """Both sides of every pair as documents of their own, for a vocabulary that they share."""

    def __init__(self, pairs: PairCorpus) -> None:
        self._pairs = pairs
        self.split_rule, self.text_bytes_estimate = pairs.split_rule, pairs.text_bytes_estimate
        self.mapped_bytes, self.skipped_files = pairs.mapped_bytes, pairs.skipped_files
        self.dropped = pairs.dropped

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """One pass: (split, batch with the single column "text")."""
        routed = (
            (split, side.cast(pa.large_binary()))
            for split, batch in self._pairs.routed_batches()
            for side in batch.columns
        )
        return batch_documents(routed, pa.large_string())

    def batches(self, split: str) -> Iterator[pa.RecordBatch]:
        """The batches of one split."""
        return (batch for name, batch in self.routed_batches() if name == split)


def open_pairs(
    specs: str | Sequence[str], columns: tuple[str, str], split: str | None = None, **options: Any
) -> PairCorpus:
    """Return the pairs in two columns of the corpus that `specs` name: JSONL, CSV, JSON, Parquet, Arrow or the hub.

    `specs` and `options` (max_document, suffix, encoding) are those of `open_corpus`.

    Raises ValueError for a missing column and, during a pass, for a value that is not text or not UTF-8.
    """
    if columns[0] == columns[1]:
        raise ValueError(f'source and target are both the column "{columns[0]}": name two, such as --pairs en de')
    reading = [Reading(text_column=column, **options) for column in columns]
    (sources, name, skipped), (targets, *_) = (open_reader(specs, each) for each in reading)
    return PairCorpus((sources, targets), name, columns, split, reading[0], skipped)


def _rows(reader: Reader, reading: Reading) -> Iterator[tuple[str | None, pa.Array]]:
    """(split, documents) of a column, one for every row, those that are missing empty."""
    for chunk in reader.chunks():
        if chunk.first_row is None:
            raise ValueError(f"{chunk.origin} has no columns to make pairs of: give JSON lines or a table")
        clean(chunk, reading, Dropped())
        documents = chunk.documents.cast(pa.large_binary())
        if len(documents):
            yield chunk.split, pc.fill_null(documents, b"")
