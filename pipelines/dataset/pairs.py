"""Datasets of pairs: a source and a target, each a list of token ids of its own length.

On disk a dataset of pairs is like one of blocks: what `datasets.load_from_disk` opens, with the columns `source_ids`
and `target_ids`, and `dataset.json` beside it. The same pairs and tokenizer give byte-identical files.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import PairCorpus
from pipelines.dataset.blocks import TextFingerprint, read_ahead, text_of, write_beside
from pipelines.dataset.reader import DATA_FILE, DatasetFolder, write_info
from pipelines.files import write_json
from tokenizer import Tokenizer

SIDES = ("source", "target")
# Pairs of one Arrow record batch.
BATCH_PAIRS = 1 << 16


@dataclass(frozen=True)
class PairSplitSummary:
    """What one split holds; bytes are of text, and tokens are without the ends that an objective adds."""

    pairs: int
    source_bytes: int
    target_bytes: int
    source_tokens: int
    target_tokens: int
    longest_source: int
    longest_target: int
    file_bytes: int
    file_sha256: str
    source_sha256: str
    target_sha256: str


@dataclass
class _Side:
    """What has been seen of one side of a split, and the ids that wait for a whole batch."""

    ids: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    bytes: int = 0
    tokens: int = 0
    longest: int = 0
    fingerprint: TextFingerprint = field(default_factory=TextFingerprint)

    def add(self, column: pa.Array, tokenizer: Tokenizer, dtype: np.dtype, threads: int | None) -> None:
        text, text_lengths = text_of(column)
        self.fingerprint.update(text, text_lengths)
        self.bytes += len(text)
        encoded = tokenizer.encode_arrow(column, threads=threads)
        offsets = encoded.offsets.to_numpy()
        ids = encoded.values.to_numpy()[offsets[0] : offsets[-1]].astype(dtype)
        lengths = np.diff(offsets)
        self.ids.append(ids)
        self.lengths.append(lengths)
        self.tokens += len(ids)
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def take(self, rows: int) -> pa.Array:
        """The first `rows` lists that wait, which wait no longer."""
        ids, lengths = np.concatenate(self.ids), np.concatenate(self.lengths)
        offsets = np.concatenate(([0], np.cumsum(lengths[:rows]))).astype(np.int32)
        self.ids, self.lengths = [ids[offsets[-1] :]], [lengths[rows:]]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids[: offsets[-1]]))


class _PairWriter:
    """Writes one split as Arrow record batches of a fixed number of pairs."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder, self.dtype = folder, dtype
        self.sides = {name: _Side() for name in SIDES}
        self.pairs = self._waiting = 0
        folder.mkdir()
        value = pa.from_numpy_dtype(dtype)
        feature = {"feature": {"dtype": str(value), "_type": "Value"}, "_type": "List"}
        self._features = {f"{name}_ids": feature for name in SIDES}
        metadata = {"huggingface": json.dumps({"info": {"features": self._features}})}
        self._schema = pa.schema([(name, pa.list_(value)) for name in self._features], metadata=metadata)
        self._file = pa.OSFile(str(folder / DATA_FILE), "wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def add(self, batch: pa.RecordBatch, tokenizer: Tokenizer, threads: int | None) -> None:
        for name, side in self.sides.items():
            side.add(batch.column(name), tokenizer, self.dtype, threads)
        self._waiting += len(batch)
        while self._waiting >= BATCH_PAIRS:
            self._write(BATCH_PAIRS)

    def _write(self, rows: int) -> None:
        columns = [side.take(rows).cast(self._schema.field(0).type) for side in self.sides.values()]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self.pairs += rows
        self._waiting -= rows

    def finish(self) -> PairSplitSummary:
        if self._waiting:
            self._write(self._waiting)
        self.close()
        file_bytes, digest = write_beside(self.folder, self._features)
        numbers = {}
        for name, side in self.sides.items():
            numbers |= {f"{name}_bytes": side.bytes, f"{name}_tokens": side.tokens, f"longest_{name}": side.longest}
            numbers[f"{name}_sha256"] = side.fingerprint.hexdigest()
        return PairSplitSummary(pairs=self.pairs, file_bytes=file_bytes, file_sha256=digest, **numbers)

    def close(self) -> None:
        """Close the file; again is no error."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()


def write_pairs(
    corpus: PairCorpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Encode `corpus` into `folder` (which must exist and be empty) and return what dataset.json says.

    Raises ValueError when the corpus has no pair for training or for validation.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    writers: dict[str, _PairWriter] = {}
    try:
        for split, batch in read_ahead(corpus.routed_batches()):
            if split not in writers:
                writers[split] = _PairWriter(folder / split, dtype)
            writers[split].add(batch, tokenizer, threads)
            progress(sum(side.bytes for writer in writers.values() for side in writer.sides.values()))
        summaries = {name: writers[name].finish() for name in corpus.split_names if name in writers}
    finally:
        for writer in writers.values():
            writer.close()
    for name in dict.fromkeys(("train", "validation", *summaries)):
        if name not in summaries or not summaries[name].pairs:
            raise ValueError(f"the split {name} of {corpus.name} has no pair: give more pairs, or --split hash:0.2")
    write_json(folder / "dataset_dict.json", {"splits": list(summaries)})
    return write_info(folder, {"format": 1, "kind": "pairs", **_facts(corpus, tokenizer, summaries)})


def _facts(corpus: PairCorpus, tokenizer: Tokenizer, summaries: dict[str, PairSplitSummary]) -> dict[str, Any]:
    texts = {name: (summary.source_sha256, summary.target_sha256) for name, summary in summaries.items()}
    return {
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size},
        "corpus": {
            "name": corpus.name,
            "columns": list(corpus.columns),
            "split_rule": corpus.split_rule,
            "fingerprint": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            "dropped": corpus.dropped.counts(),
        },
        "splits": {name: vars(summary) for name, summary in summaries.items()},
    }


class Lists:
    """Lists of token ids, memory-mapped: `lists[i]` is a numpy view of the i-th."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        # Array.to_numpy would import pandas.
        self._offsets = [np.from_dlpack(chunk.offsets) for chunk in column.chunks]
        self._values = [np.from_dlpack(chunk.values) for chunk in column.chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in column.chunks])
        self.lengths = np.concatenate([np.diff(offsets) for offsets in self._offsets])
        """(N,) tokens of each."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[chunk]
        offsets = self._offsets[chunk]
        return self._values[chunk][offsets[row] : offsets[row + 1]]

    def chunks(self) -> list[np.ndarray]:
        """All ids, one array for each record batch."""
        return self._values


@dataclass(frozen=True)
class Pairs:
    """The pairs of one split, in order."""

    sources: Lists
    targets: Lists

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def tokens(self) -> int:
        """Tokens of both sides, without the ends that an objective adds."""
        return int(self.sources.lengths.sum() + self.targets.lengths.sum())


class PairDataset(DatasetFolder[Pairs]):
    """A dataset of pairs."""

    kind = "pairs"
    counted = ()
    counted_of_split = ("pairs", "source_tokens", "target_tokens")

    def _read(self, name: str, table: pa.Table) -> Pairs:
        return Pairs(Lists(table.column("source_ids")), Lists(table.column("target_ids")))
