"""The dataset builder: documents to blocks of token ids on disk.

Blocks cut the stream of a split (`pipelines.dataset.encoding`) every T tokens; only the tail of the last block is
dropped. The same corpus and tokenizer give byte-identical files, whatever the number of threads and the corpus's batch
sizes. Training documents may have random segmentations (`pipelines.dataset.encoding`). Splits other than
train also record the SHA-256, bytes and tokens of each document (`pipelines.dataset.document_records`).

`pipelines.dataset.shards` can resume, and writes the same blocks to several files. It does not replace `write_blocks`,
because it writes and reads the ids of each range once more: 15 to 20 % more CPU time, and the ids twice on disk.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import Corpus, Dropped
from corpora.splits import TRAIN
from pipelines.dataset.arrow import (
    ArrowFile,
    Progress,
    TextFingerprint,
    describe_split,
    id_dtype,
    read_ahead,
    text_of,
)
from pipelines.dataset.dataset_manifest import write_manifest
from pipelines.dataset.document_records import RecordedDocuments, document_hashes, write_documents
from pipelines.dataset.encoding import BATCH_TOKENS, SamplingEncoder, encode_batch, separator_of
from pipelines.dataset.reader import DATA_FILE, write_info
from pipelines.files import write_json
from tokenizer import Tokenizer


@dataclass(frozen=True)
class SplitSummary:
    """The entry of a split in dataset.json; `bytes` are of text, and `encoded_tokens` include the dropped tail."""

    documents: int
    bytes: int
    encoded_tokens: int
    tokens: int
    blocks: int
    file_bytes: int
    file_sha256: str
    documents_sha256: str


class BlockFile:
    """An Arrow file of blocks, in record batches of BATCH_TOKENS or slightly fewer."""

    def __init__(self, path: Path, context_length: int, dtype: np.dtype) -> None:
        self.tokens = self.blocks = 0
        self._context_length, self._dtype = context_length, dtype
        self._batch_tokens = max(1, BATCH_TOKENS // context_length) * context_length
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0
        value = pa.from_numpy_dtype(dtype)
        self._type = pa.list_(value, context_length)
        self._file = ArrowFile(path, {"input_ids": self._type}, block_features(context_length, dtype))

    def add(self, ids: np.ndarray) -> None:
        """Append tokens."""
        self.tokens += len(ids)
        while len(ids):
            part = ids[: self._batch_tokens - self._pending_tokens].astype(self._dtype)
            self._pending.append(part)
            self._pending_tokens += len(part)
            ids = ids[len(part) :]
            if self._pending_tokens == self._batch_tokens:
                self._write(np.concatenate(self._pending))
                self._pending, self._pending_tokens = [], 0

    def _write(self, tokens: np.ndarray) -> None:
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=self._type)
        self._file.write([column])
        self.blocks += len(column)

    def finish(self) -> tuple[int, str]:
        """Write the last whole blocks, close the file, and return its size and SHA-256."""
        self.end()
        return self._file.finish()

    def end(self) -> None:
        """Write the last whole blocks, and close the file."""
        if self._pending:
            tokens = np.concatenate(self._pending)
            if whole := len(tokens) // self._context_length * self._context_length:
                self._write(tokens[:whole])
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def block_features(context_length: int, dtype: np.dtype) -> dict[str, Any]:
    """Return what `datasets` calls the features of a dataset of blocks."""
    value = str(pa.from_numpy_dtype(dtype))
    return {"input_ids": {"feature": {"dtype": value, "_type": "Value"}, "length": context_length, "_type": "List"}}


class _SplitWriter:
    """Writes a split to one file of blocks."""

    def __init__(self, folder: Path, context_length: int, dtype: np.dtype) -> None:
        self.documents = self.bytes = 0
        self._folder, self._features = folder, block_features(context_length, dtype)
        self._context_length = context_length
        self._fingerprint = TextFingerprint()
        self._hashes: list[bytes] = []
        self._sizes: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []
        folder.mkdir()
        self.file = BlockFile(folder / DATA_FILE, context_length, dtype)

    def record(self, text: memoryview, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Note consecutive documents, with joined bytes `text`, and the tokens of each with its separator."""
        self.documents += len(lengths)
        self.bytes += len(text)
        self._fingerprint.update(text, lengths)
        if self._folder.name != TRAIN:
            self._hashes += document_hashes(text, lengths)
            self._sizes.append(lengths)
            self._tokens.append(tokens)

    def finish(self) -> SplitSummary:
        """Write the last whole blocks and what `record` noted, and close the file."""
        file_bytes, digest = self.file.finish()
        describe_split(self._folder, self._features, {DATA_FILE: digest})
        if self._hashes:
            documents = RecordedDocuments(self._hashes, np.concatenate(self._sizes), np.concatenate(self._tokens))
            write_documents(self._folder, documents)
        return SplitSummary(
            documents=self.documents,
            bytes=self.bytes,
            encoded_tokens=self.file.tokens,
            tokens=self.file.blocks * self._context_length,
            blocks=self.file.blocks,
            file_bytes=file_bytes,
            file_sha256=digest,
            documents_sha256=self._fingerprint.hexdigest(),
        )


def write_blocks(
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    *,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Encode `corpus` into the existing, empty `folder`, and return the content of dataset.json.

    `separator`: whether to put one before every document. `sampler`: encodes the split train. Raises ValueError if the
    tokenizer has no token for the separator, or if a split has less than one block of `context_length` tokens.
    """
    separator_id = separator_of(tokenizer) if separator else None
    dtype = id_dtype(tokenizer.vocab_size)
    writers: dict[str, _SplitWriter] = {}
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(done)

    try:
        for split, batch in read_ahead(corpus.routed_batches()):
            if split not in writers:
                writers[split] = _SplitWriter(folder / split, context_length, dtype)
            writer = writers[split]
            encoder = sampler if sampler and split == TRAIN else tokenizer
            tokens = encode_batch(batch, encoder, separator_id, threads, writer.file.add, advance)
            writer.record(*text_of(batch.column(0)), tokens)
        summaries = {name: writers[name].finish() for name in corpus.split_names if name in writers}
    finally:
        for writer in writers.values():
            writer.file.close()
    check_splits(corpus, context_length, {name: summary.encoded_tokens for name, summary in summaries.items()})
    texts = {name: summary.documents_sha256 for name, summary in summaries.items()}
    splits = {name: vars(summary) for name, summary in summaries.items()}
    return write_description(
        folder, corpus, tokenizer, context_length, separator_id, corpus.dropped, splits, texts, sampler
    )


def write_description(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    separator_id: int | None,
    dropped: Dropped,
    splits: Mapping[str, Mapping[str, Any]],
    texts: Mapping[str, str],
    sampler: SamplingEncoder | None = None,
) -> dict[str, Any]:
    """Write dataset_dict.json, dataset.json and the manifest, after all other files, and return the second.

    `splits`: the entries of the splits. `texts`: the fingerprint of the text of each split. `sampler`: the encoder
    of the split train, if it is not the tokenizer.
    """
    write_json(folder / "dataset_dict.json", {"splits": list(splits)})
    info = {
        "format": 1,
        "context_length": context_length,
        "separator": separator_id,
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size},
        **({"sampling": sampler.described} if sampler else {}),
        "corpus": {
            "name": corpus.name,
            "split_rule": corpus.split_rule,
            "fingerprint": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            "synthetic": corpus.synthetic,
            "dropped": dropped.counts(),
        },
        "splits": splits,
    }
    info = write_info(folder, info)
    write_manifest(folder, info)
    return info


def check_splits(corpus: Corpus, context_length: int, tokens: Mapping[str, int]) -> None:
    """Raise ValueError if a split has less than one block. `tokens`: the length of each split's stream."""
    if not tokens:
        raise ValueError(f"the corpus {corpus.name} has no text")
    for name in ("train", "validation", *tokens):
        if name not in tokens:
            raise ValueError(f"the split {name} of {corpus.name} is empty: for so few documents use `split='tail:0.1'`")
        if tokens[name] < context_length:
            raise ValueError(
                f"the context of {context_length} tokens is longer than the split {name} of {corpus.name}, which has "
                f"{tokens[name]}: use a shorter `context_length` or more text"
            )
