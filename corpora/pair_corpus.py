"""Pairs of texts, a source and its target, from two columns: translations, or questions and answers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from corpora.documents import Dropped, batch_documents, clean, join
from corpora.read_options import ReadOptions
from corpora.readers import Reader
from corpora.specs import Specs, open_specs
from corpora.splits import HASH, NONE, PREDEFINED, TRAIN, VALIDATION, HashRouter, parse_rule

SOURCE, TARGET = "source", "target"
PAIR_SCHEMA = pa.schema([(SOURCE, pa.large_string()), (TARGET, pa.large_string())])


class PairCorpus:
    """Pairs in a fixed order, each in one split. Every iteration is a fresh pass over the source.

    Attributes:
        name: a short name
        columns: the two columns, source and target
        split_rule: "predefined", "hash:0.05" or "none". The hash is of the source's bytes, so no source is in two
            splits. Predefined splits without validation have it cut from train by hash.
        split_names: the splits, "train" first
        dropped: what the newest pass has left out so far; a pair with an empty side is an empty document
        skipped_files: number of files in the folders and globs that are not read, by suffix
        text_bytes_estimate: approximate bytes of text, for progress; None if they take long to estimate
        mapped_bytes: size of the largest document that a pass maps into memory, 0 if it maps none
    """

    def __init__(
        self,
        readers: tuple[Reader, Reader],
        name: str,
        columns: tuple[str, str],
        split: str | None,
        options: ReadOptions,
        skipped_files: dict[str, int],
    ) -> None:
        self._readers, self._options = readers, options
        self.name, self.columns = name, columns
        self.dropped = Dropped()
        self.skipped_files = skipped_files
        self.text_bytes_estimate = readers[0].bytes_estimate
        self.mapped_bytes = readers[0].mapped_bytes
        own = readers[0].own_splits
        rule = parse_rule(split) if split else PREDEFINED if TRAIN in own and len(own) > 1 else HASH
        if rule.kind == "tail":
            raise ValueError(f'the split "{rule}" cuts a text, but {name} has pairs: use predefined or hash:0.05')
        if rule == PREDEFINED and TRAIN not in own:
            raise ValueError(
                f"{name} has no own splits ({', '.join(own) or 'nothing in it is named train'}): "
                "leave `split` out, or give hash:0.05"
            )
        self.split_rule = str(rule)
        made = (TRAIN,) if rule == NONE else (TRAIN, VALIDATION)
        self.split_names = tuple(dict.fromkeys((*made, *(own if rule == PREDEFINED else ()))))
        # Own splits without validation have it cut from train.
        self._cut_all = rule != PREDEFINED
        cut = rule if self._cut_all else HASH
        self._router = None if rule == PREDEFINED and VALIDATION in own else HashRouter(cut.fraction)

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (split, batch of `PAIR_SCHEMA`) in one pass, in corpus order within each split."""
        self.dropped.reset()
        for split, sources, targets in self._align():
            kept = pc.and_(pc.greater(pc.binary_length(sources), 0), pc.greater(pc.binary_length(targets), 0))
            self.dropped.empty_documents += len(kept) - pc.sum(kept, min_count=0).as_py()
            pairs = pa.RecordBatch.from_arrays(
                [side.filter(kept).cast(pa.large_string()) for side in (sources, targets)], schema=PAIR_SCHEMA
            )
            if self._router is None or not (self._cut_all or split == TRAIN):
                assert split is not None, "a chunk of a corpus with own splits names no split"
                yield split, pairs
                continue
            chosen = self._router.validation_mask(pairs.column(SOURCE).cast(pa.large_binary()))
            for side, mask in ((TRAIN, ~chosen), (VALIDATION, chosen)):
                if mask.any():
                    yield side, pairs.filter(pa.array(mask))

    def _align(self) -> Iterator[tuple[str | None, pa.Array, pa.Array]]:
        """Yield (split, sources, targets): as many sources as targets, large_binary, nulls as empty texts."""
        sources, targets = (_column(reader, self._options, self.dropped) for reader in self._readers)
        source, target = next(sources, None), next(targets, None)
        while source is not None and target is not None:
            length = min(len(source.texts), len(target.texts))
            yield source.split, source.texts[:length], target.texts[:length]
            source, target = source.after(length) or next(sources, None), target.after(length) or next(targets, None)
        assert source is target is None, "two columns of one file have different lengths"


class PairTexts:
    """Both sides of every pair as separate documents, for training a shared vocabulary."""

    def __init__(self, pairs: PairCorpus) -> None:
        self._pairs = pairs
        self.split_rule, self.text_bytes_estimate = pairs.split_rule, pairs.text_bytes_estimate
        self.mapped_bytes, self.skipped_files = pairs.mapped_bytes, pairs.skipped_files
        self.dropped = pairs.dropped

    def routed_batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (split, batch with the single column "text") in one pass."""
        routed = (
            (split, side.cast(pa.large_binary()))
            for split, batch in self._pairs.routed_batches()
            for side in batch.columns
        )
        return batch_documents(routed, pa.large_string())

    def batches(self, split: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one split."""
        return (batch for name, batch in self.routed_batches() if name == split)


def open_pairs(specs: Specs, columns: tuple[str, str], split: str | None = None, **options: Any) -> PairCorpus:
    """Return the pairs in two columns of the corpus that `specs` name: JSONL, CSV, JSON, Parquet, Arrow or the hub.

    `open_corpus` explains `specs` and `options` (max_document, suffix, encoding).

    Raises ValueError for a wrong argument or a missing column. A pass raises ValueError for a value that is not text or
    not UTF-8.
    """
    if columns[0] == columns[1]:
        raise ValueError(f'source and target are both the column "{columns[0]}": name two')
    source_options, target_options = (ReadOptions.of(text_column=column, **options) for column in columns)
    sources, targets = open_specs(specs, source_options), open_specs(specs, target_options)
    readers = sources.reader, targets.reader
    return PairCorpus(readers, sources.name, columns, split, source_options, dict(sources.skipped_files))


class _Rows(NamedTuple):
    """Consecutive rows of a column: their split, and a text for each row."""

    split: str | None
    texts: pa.Array

    def after(self, count: int) -> "_Rows | None":
        """Return the rows after the first `count`; None without any."""
        return self._replace(texts=self.texts[count:]) if count < len(self.texts) else None


def _column(reader: Reader, options: ReadOptions, dropped: Dropped) -> Iterator[_Rows]:
    """Yield the rows of a column. A missing text is empty. Encodings that were found are recorded in `dropped`."""
    for chunk in join(chunk for part in reader.parts() for chunk in part.chunks()):
        if chunk.rows is None:
            raise ValueError(f"{chunk.origin} has no columns to make pairs of: give JSON lines or a table")
        if chunk.bad is not None:  # leaving one text out would shift all later pairs
            raise chunk.bad
        clean(chunk, options, seen := Dropped())
        dropped.encodings |= seen.encodings
        documents = chunk.documents.cast(pa.large_binary())
        if len(documents):
            yield _Rows(chunk.split, pc.fill_null(documents, b""))
