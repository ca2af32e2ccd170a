"""The dataset builder: documents to blocks of token ids on disk.

The stream of a split is a separator and a document, for every document in corpus order. The separator is
`<|endoftext|>`. If a published tokenizer lacks it, the separator is the token that transformers puts after a text, such
as BERT's [SEP]. Blocks cut the stream every T tokens; only the tail of the last block is dropped. The same corpus and
tokenizer give byte-identical files, whatever the number of threads and the corpus's batch sizes. Splits other than
train also record the SHA-256, bytes and tokens of each document (`pipelines.dataset.documents`).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import Corpus
from corpora.splits import TRAIN
from pipelines.dataset.arrow import Progress, SplitFile, TextFingerprint, id_dtype, read_ahead, text_of
from pipelines.dataset.documents import RecordedDocuments, write_documents
from pipelines.dataset.reader import write_info
from pipelines.files import write_json
from tokenizer import END_OF_TEXT, Tokenizer

# Tokens of an Arrow record batch: each is one numpy view, and must fit in memory.
BATCH_TOKENS = 1 << 22

# A document longer than a group is encoded one group of pieces at a time.
PIECE_BYTES = 1 << 20
GROUP_BYTES = 1 << 24


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


class _SplitWriter:
    """Cuts the stream of a split into blocks and writes them in record batches of BATCH_TOKENS or slightly fewer."""

    def __init__(self, folder: Path, context_length: int, dtype: np.dtype) -> None:
        self.context_length, self.dtype = context_length, dtype
        self.documents = self.bytes = self.encoded_tokens = self.blocks = 0
        self.fingerprint = TextFingerprint()
        self._batch_tokens = max(1, BATCH_TOKENS // context_length) * context_length
        self._folder = folder
        self._hashes: list[bytes] = []
        self._sizes: list[np.ndarray] = []
        self._starts: list[np.ndarray] = []
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0
        value = pa.from_numpy_dtype(dtype)
        self._type = pa.list_(value, context_length)
        feature = {"feature": {"dtype": str(value), "_type": "Value"}, "length": context_length, "_type": "List"}
        self.file = SplitFile(folder, {"input_ids": self._type}, {"input_ids": feature})

    def add(self, ids: np.ndarray) -> None:
        """Append tokens to the stream."""
        self.encoded_tokens += len(ids)
        while len(ids):
            part = ids[: self._batch_tokens - self._pending_tokens].astype(self.dtype)
            self._pending.append(part)
            self._pending_tokens += len(part)
            ids = ids[len(part) :]
            if self._pending_tokens == self._batch_tokens:
                self._write(np.concatenate(self._pending))
                self._pending, self._pending_tokens = [], 0

    def record(self, text: memoryview, lengths: np.ndarray) -> None:
        """Note the hash and size of consecutive documents with joined bytes `text`."""
        ends = np.cumsum(lengths).tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            self._hashes.append(hashlib.sha256(text[start:end]).digest())
        self._sizes.append(lengths)

    def record_starts(self, starts: np.ndarray) -> None:
        """Record the `starts` of documents, as indices of the tokens that are added next."""
        self._starts.append(self.encoded_tokens + starts)

    def _write(self, tokens: np.ndarray) -> None:
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=self._type)
        self.file.write([column])
        self.blocks += len(column)

    def finish(self) -> SplitSummary:
        """Write the last whole blocks and what `record` noted, and close the file."""
        if self._pending:
            tokens = np.concatenate(self._pending)
            if whole := len(tokens) // self.context_length * self.context_length:
                self._write(tokens[:whole])
        file_bytes, digest = self.file.finish()
        if self._hashes:
            tokens = np.diff(np.concatenate(self._starts), append=self.encoded_tokens)
            write_documents(self._folder, RecordedDocuments(self._hashes, np.concatenate(self._sizes), tokens))
        return SplitSummary(
            documents=self.documents,
            bytes=self.bytes,
            encoded_tokens=self.encoded_tokens,
            tokens=self.blocks * self.context_length,
            blocks=self.blocks,
            file_bytes=file_bytes,
            file_sha256=digest,
            documents_sha256=self.fingerprint.hexdigest(),
        )


def write_blocks(
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    *,
    separator: bool = True,
    threads: int | None = None,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Encode `corpus` into the existing, empty `folder`, and return the content of dataset.json.

    `separator`: whether to put one before every document. Raises ValueError if the tokenizer has no token for it, or if
    a split has less than one block of `context_length` tokens.
    """
    separator_id = _separator_id(tokenizer) if separator else None
    dtype = id_dtype(tokenizer.vocab_size)
    writers: dict[str, _SplitWriter] = {}
    done = 0
    try:
        for split, batch in read_ahead(corpus.routed_batches()):
            if split not in writers:
                writers[split] = _SplitWriter(folder / split, context_length, dtype)
            writer = writers[split]
            text, lengths = text_of(batch.column(0))
            writer.fingerprint.update(text, lengths)
            if split != TRAIN:
                writer.record(text, lengths)
            writer.documents += len(lengths)
            writer.bytes += len(text)
            for pieces, begins in _pieces(batch.column(0), tokenizer):
                for ids, starts in _encoded(pieces, begins, tokenizer, threads):
                    writer.record_starts(starts + np.arange(len(starts)) * (separator_id is not None))
                    for part in _with_separators(ids, starts, separator_id):
                        writer.add(part)
                done += len(text_of(pieces)[0])
                progress(done)
        summaries = {name: writers[name].finish() for name in corpus.split_names if name in writers}
    finally:
        for writer in writers.values():
            writer.file.close()
    _refuse_short_splits(summaries, corpus, context_length)
    write_json(folder / "dataset_dict.json", {"splits": list(summaries)})
    info = {
        "format": 1,
        "context_length": context_length,
        "separator": separator_id,
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size},
        "corpus": {
            "name": corpus.name,
            "split_rule": corpus.split_rule,
            "fingerprint": hashlib.sha256(
                json.dumps({name: s.documents_sha256 for name, s in summaries.items()}).encode()
            ).hexdigest(),
            "synthetic": corpus.synthetic,
            "dropped": corpus.dropped.counts(),
        },
        "splits": {name: vars(summary) for name, summary in summaries.items()},
    }
    return write_info(folder, info)


def _separator_id(tokenizer: Tokenizer) -> int:
    _, after = tokenizer.ids_around_text
    if END_OF_TEXT in tokenizer.special_tokens:
        return tokenizer.special_tokens[END_OF_TEXT]
    if not after:
        raise ValueError(
            f"the tokenizer has no special token {END_OF_TEXT} to put before each document: train one that has it, or "
            "build without separators (--no-separator)"
        )
    return after[-1]


def _pieces(column: pa.Array, tokenizer: Tokenizer) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yield the documents of a batch, and a mask of those that begin a document: all, unless a long one is cut.

    A long document is alone in its batch. It is cut where that does not change its ids. So its ids are never all in
    memory, and all threads encode it.
    """
    text, lengths = text_of(column)
    if len(lengths) != 1 or len(text) <= GROUP_BYTES:
        yield column, np.ones(len(lengths), bool)
        return
    data = pa.py_buffer(text)
    offsets = np.array([0, *tokenizer.cuts(text, PIECE_BYTES), len(text)], np.int64)
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + GROUP_BYTES, side="right")) - 1)
        ends = np.ascontiguousarray(offsets[first : last + 1])
        begins = np.zeros(len(ends) - 1, bool)
        begins[0] = first == 0
        yield pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(begins), [None, pa.py_buffer(ends), data]), begins
        first = last


def _encoded(
    pieces: pa.Array, begins: np.ndarray, tokenizer: Tokenizer, threads: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of what `_pieces` yields, and the indices among them at which documents start."""
    text, lengths = text_of(pieces)
    if len(lengths) == 1 and len(text) > GROUP_BYTES:  # it cannot be cut
        starts = np.zeros(np.count_nonzero(begins), np.int64)
        for ids in tokenizer.encode_in_parts(text):
            yield ids, starts
            starts = starts[:0]
        return
    encoded = tokenizer.encode_arrow(pieces, threads=threads)
    offsets = encoded.offsets.to_numpy()
    yield encoded.values.to_numpy()[offsets[0] : offsets[-1]], (offsets[:-1] - offsets[0])[begins]


def _with_separators(ids: np.ndarray, starts: np.ndarray, separator_id: int | None) -> Iterator[np.ndarray]:
    """Yield `ids` with a separator, if any, inserted before each of the indices `starts`, which ascend.

    Parts of BATCH_TOKENS keep the copies small.
    """
    if separator_id is None:
        yield ids
        return
    for first in range(0, max(1, len(ids)), BATCH_TOKENS):
        stop = first + BATCH_TOKENS
        last = len(starts) if stop >= len(ids) else np.searchsorted(starts, stop)
        inside = starts[np.searchsorted(starts, first) : last]
        yield np.insert(ids[first:stop], inside - first, separator_id)


def _refuse_short_splits(summaries: dict[str, SplitSummary], corpus: Corpus, context_length: int) -> None:
    if not summaries:
        raise ValueError(f"the corpus {corpus.name} has no text")
    for name in ("train", "validation", *summaries):
        if name not in summaries:
            raise ValueError(f"the split {name} of {corpus.name} is empty: for so few documents use --split tail:0.1")
        if not summaries[name].blocks:
            raise ValueError(
                f"the context of {context_length} tokens is longer than the split {name} of {corpus.name}, which has "
                f"{summaries[name].encoded_tokens}: use a shorter --context-length or more text"
            )
