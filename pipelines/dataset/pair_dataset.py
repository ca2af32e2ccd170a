"""Datasets of pairs: sources and targets, each a list of token ids.

On disk they are like datasets of blocks: `datasets.load_from_disk` opens them, with the columns `source_ids` and
`target_ids`, and `dataset.json` describes them. The same pairs and tokenizer give byte-identical files.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import PairCorpus
from corpora.splits import TRAIN
from pipelines.dataset.arrow import ArrowFile, Progress, TextFingerprint, describe_split, id_dtype, read_ahead, text_of
from pipelines.dataset.dataset_manifest import write_manifest
from pipelines.dataset.encoding import SamplingEncoder
from pipelines.dataset.reader import DATA_FILE, DatasetFolder, write_info
from pipelines.files import write_json
from tokenizer import Tokenizer

# Pairs of an Arrow record batch.
BATCH_PAIRS = 1 << 16


@dataclass(frozen=True)
class PairSplitSummary:
    """The entry of a split in dataset.json; bytes are of text, and tokens exclude the end tokens of an objective."""

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
    """Totals of one side of a split, and its ids that wait for a full record batch."""

    ids: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    bytes: int = 0
    tokens: int = 0
    longest: int = 0
    fingerprint: TextFingerprint = field(default_factory=TextFingerprint)

    def add(self, column: pa.Array, encoder: Tokenizer | SamplingEncoder, dtype: np.dtype, threads: int | None) -> None:
        text, text_lengths = text_of(column)
        self.fingerprint.update(text, text_lengths)
        self.bytes += len(text)
        encoded = encoder.encode_arrow(column, threads=threads)
        offsets = encoded.offsets.to_numpy()
        ids = encoded.values.to_numpy()[offsets[0] : offsets[-1]].astype(dtype)
        lengths = np.diff(offsets)
        self.ids.append(ids)
        self.lengths.append(lengths)
        self.tokens += len(ids)
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def take(self, rows: int) -> pa.Array:
        """Remove the first `rows` waiting lists, and return them."""
        ids, lengths = np.concatenate(self.ids), np.concatenate(self.lengths)
        offsets = np.concatenate(([0], np.cumsum(lengths[:rows]))).astype(np.int32)
        self.ids, self.lengths = [ids[offsets[-1] :]], [lengths[rows:]]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids[: offsets[-1]]))


class _PairWriter:
    """Writes the pairs of a split in record batches of BATCH_PAIRS."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._dtype, self._folder = dtype, folder
        self.source, self.target = _Side(), _Side()
        self.pairs = self._waiting = 0
        value = pa.from_numpy_dtype(dtype)
        self._type = pa.list_(value)
        feature = {"feature": {"dtype": str(value), "_type": "Value"}, "_type": "List"}
        names = ("source_ids", "target_ids")
        self._features = dict.fromkeys(names, feature)
        folder.mkdir()
        self.file = ArrowFile(folder / DATA_FILE, dict.fromkeys(names, self._type), self._features)

    def add(self, batch: pa.RecordBatch, encoder: Tokenizer | SamplingEncoder, threads: int | None) -> None:
        self.source.add(batch.column("source"), encoder, self._dtype, threads)
        self.target.add(batch.column("target"), encoder, self._dtype, threads)
        self._waiting += len(batch)
        while self._waiting >= BATCH_PAIRS:
            self._write(BATCH_PAIRS)

    def _write(self, rows: int) -> None:
        self.file.write([side.take(rows).cast(self._type) for side in (self.source, self.target)])
        self.pairs += rows
        self._waiting -= rows

    def finish(self) -> PairSplitSummary:
        """Write the last pairs, and close the file."""
        if self._waiting:
            self._write(self._waiting)
        file_bytes, digest = self.file.finish()
        describe_split(self._folder, self._features, {DATA_FILE: digest})
        return PairSplitSummary(
            pairs=self.pairs,
            source_bytes=self.source.bytes,
            target_bytes=self.target.bytes,
            source_tokens=self.source.tokens,
            target_tokens=self.target.tokens,
            longest_source=self.source.longest,
            longest_target=self.target.longest,
            file_bytes=file_bytes,
            file_sha256=digest,
            source_sha256=self.source.fingerprint.hexdigest(),
            target_sha256=self.target.fingerprint.hexdigest(),
        )


def write_pairs(
    corpus: PairCorpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Encode `corpus` into the existing, empty `folder`, and return the content of dataset.json.

    `sampler`: encodes the split train. Raises ValueError if a split has no pairs.
    """
    dtype = id_dtype(tokenizer.vocab_size)
    writers: dict[str, _PairWriter] = {}
    try:
        for split, batch in read_ahead(corpus.routed_batches()):
            if split not in writers:
                writers[split] = _PairWriter(folder / split, dtype)
            writers[split].add(batch, sampler if sampler and split == TRAIN else tokenizer, threads)
            progress(sum(writer.source.bytes + writer.target.bytes for writer in writers.values()))
        summaries = {name: writers[name].finish() for name in corpus.split_names if name in writers}
    finally:
        for writer in writers.values():
            writer.file.close()
    for name in dict.fromkeys(("train", "validation", *summaries)):
        if name not in summaries or not summaries[name].pairs:
            raise ValueError(f"the split {name} of {corpus.name} has no pair: give more pairs, or `split='hash:0.2'`")
    write_json(folder / "dataset_dict.json", {"splits": list(summaries)})
    texts = {name: (summary.source_sha256, summary.target_sha256) for name, summary in summaries.items()}
    info = {
        "format": 1,
        "kind": "pairs",
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size},
        **({"sampling": sampler.described} if sampler else {}),
        "corpus": {
            "name": corpus.name,
            "columns": list(corpus.columns),
            "split_rule": corpus.split_rule,
            "fingerprint": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            "dropped": corpus.dropped.counts(),
        },
        "splits": {name: vars(summary) for name, summary in summaries.items()},
    }
    info = write_info(folder, info)
    write_manifest(folder, info)
    return info


class Lists:
    """Memory-mapped lists of token ids; `lists[i]` is a numpy view of list i."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        # Array.to_numpy would import pandas.
        self._offsets = [np.from_dlpack(chunk.offsets) for chunk in column.chunks]
        self._values = [np.from_dlpack(chunk.values) for chunk in column.chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in column.chunks])
        self.lengths = np.concatenate([np.diff(offsets) for offsets in self._offsets])
        """Tokens of each list, (N,)"""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[chunk]
        offsets = self._offsets[chunk]
        return self._values[chunk][offsets[row] : offsets[row + 1]]

    def chunks(self) -> list[np.ndarray]:
        """Return all ids, one array per record batch."""
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
        """Tokens of both sides, without the end tokens of an objective."""
        return int(self.sources.lengths.sum() + self.targets.lengths.sum())


class PairDataset(DatasetFolder[Pairs]):
    """A dataset of pairs."""

    kind = "pairs"
    counted = ()
    counted_of_split = ("pairs", "source_tokens", "target_tokens")

    def _read(self, name: str, table: pa.Table) -> Pairs:
        return Pairs(Lists(table.column("source_ids")), Lists(table.column("target_ids")))
