"""The dataset builder: documents to blocks of token ids on disk.

For every split the stream is `<|endoftext|>` and then the document, for every document in corpus order; blocks cut it
every T tokens, and only the tail of the last block is dropped. The same corpus and tokenizer give byte-identical
files, whatever the number of threads and the sizes of the batches that the corpus yields.
"""

import hashlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import Corpus
from pipelines.dataset.reader import DATA_FILE, write_info
from pipelines.files import write_json
from tokenizer import END_OF_TEXT, Tokenizer

# Tokens of one Arrow record batch: large enough that a batch is one long numpy view, small enough for memory.
BATCH_TOKENS = 1 << 22

# A document longer than a group is encoded a group of pieces at a time.
PIECE_BYTES = 1 << 20
GROUP_BYTES = 1 << 24

# (bytes of text read so far)
Progress = Callable[[int], None]


@dataclass(frozen=True)
class SplitSummary:
    """What one split of a built dataset holds; `bytes` are of text, `encoded_tokens` include the dropped tail."""

    documents: int
    bytes: int
    encoded_tokens: int
    tokens: int
    blocks: int
    file_bytes: int
    file_sha256: str
    documents_sha256: str


class TextFingerprint:
    """SHA-256 of a sequence of documents, the same however they are batched."""

    def __init__(self) -> None:
        self._text, self._lengths = hashlib.sha256(), hashlib.sha256()

    def update(self, text: memoryview, lengths: np.ndarray) -> None:
        self._text.update(text)
        self._lengths.update(lengths.astype("<i8").tobytes())

    def hexdigest(self) -> str:
        return hashlib.sha256(self._text.digest() + self._lengths.digest()).hexdigest()


class _SplitWriter:
    """Cuts one split's stream into blocks and writes them as Arrow record batches of a fixed size."""

    def __init__(self, folder: Path, context_length: int, dtype: np.dtype) -> None:
        self.folder, self.context_length, self.dtype = folder, context_length, dtype
        self.documents = self.bytes = self.encoded_tokens = self.blocks = 0
        self.fingerprint = TextFingerprint()
        self._batch_tokens = max(1, BATCH_TOKENS // context_length) * context_length
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0
        folder.mkdir()
        value = pa.from_numpy_dtype(dtype)
        self._type = pa.list_(value, context_length)
        features = {
            "input_ids": {
                "feature": {"dtype": str(value), "_type": "Value"},
                "length": context_length,
                "_type": "List",
            }
        }
        self._features = features
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        self._schema = pa.schema([pa.field("input_ids", self._type)], metadata=metadata)
        self._file = pa.OSFile(str(folder / DATA_FILE), "wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)

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

    def _write(self, tokens: np.ndarray) -> None:
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=self._type)
        self._writer.write_batch(pa.record_batch([column], schema=self._schema))
        self.blocks += len(column)

    def finish(self) -> SplitSummary:
        """Write the last blocks and the two files that `datasets` wants beside them."""
        if self._pending:
            tokens = np.concatenate(self._pending)
            whole = len(tokens) // self.context_length * self.context_length
            if whole:
                self._write(tokens[:whole])
        self.close()
        file_bytes, digest = write_beside(self.folder, self._features)
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

    def close(self) -> None:
        """Close the file; again is no error."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()


def write_beside(folder: Path, features: dict[str, Any]) -> tuple[int, str]:
    """Write the two files that `datasets` wants beside a split's data file; return the latter's size and SHA-256."""
    path = folder / DATA_FILE
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    state = {
        "_data_files": [{"filename": DATA_FILE}],
        "_fingerprint": digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": folder.name,
    }
    write_json(folder / "dataset_info.json", info)
    write_json(folder / "state.json", state)
    return path.stat().st_size, digest


def _with_separators(ids: np.ndarray, places: np.ndarray, separator_id: int) -> Iterator[np.ndarray]:
    """Yield `ids` with a separator inserted before each of `places` (ascending), in parts, to copy few at a time."""
    for start in range(0, max(1, len(ids)), BATCH_TOKENS):
        stop = start + BATCH_TOKENS
        last = len(places) if stop >= len(ids) else np.searchsorted(places, stop)
        inside = places[np.searchsorted(places, start) : last]
        yield np.insert(ids[start:stop], inside - start, separator_id)


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
    """Encode `corpus` into `folder` (which must exist and be empty) and return what dataset.json says.

    `separator` puts `<|endoftext|>` before every document. Raises ValueError when the tokenizer lacks it, or when a
    split has not one whole block of `context_length` tokens.
    """
    separator_id = None
    if separator:
        if END_OF_TEXT not in tokenizer.special_tokens:
            raise ValueError(
                f"the tokenizer has no special token {END_OF_TEXT} to put before each document: train one that has "
                "it, or build without a boundary (--no-separator)"
            )
        separator_id = tokenizer.special_tokens[END_OF_TEXT]
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    writers: dict[str, _SplitWriter] = {}
    done = 0
    try:
        for split, batch in read_ahead(corpus.routed_batches()):
            if split not in writers:
                writers[split] = _SplitWriter(folder / split, context_length, dtype)
            writer = writers[split]
            text, lengths = text_of(batch.column(0))
            writer.fingerprint.update(text, lengths)
            writer.documents += len(lengths)
            writer.bytes += len(text)
            for pieces, begins in _pieces(batch.column(0), tokenizer):
                for ids, places in _encoded(pieces, begins, tokenizer, threads):
                    if separator_id is None:
                        writer.add(ids)
                    else:
                        for part in _with_separators(ids, places, separator_id):
                            writer.add(part)
                done += len(text_of(pieces)[0])
                progress(done)
        summaries = {name: writers[name].finish() for name in corpus.split_names if name in writers}
    finally:
        for writer in writers.values():
            writer.close()
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


def _pieces(column: pa.Array, tokenizer: Tokenizer) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The documents of a batch, and which of them begin a document (all). A long document comes alone: it is cut
    where that does not change its ids, so that its ids are never all in memory and all threads share them."""
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
    """Yield the ids of what `_pieces` yields, and the places among them where a document begins."""
    text, lengths = text_of(pieces)
    if len(lengths) == 1 and len(text) > GROUP_BYTES:  # nowhere to cut it
        places = np.zeros(np.count_nonzero(begins), np.int64)
        for ids in tokenizer.encode_in_parts(text):
            yield ids, places
            places = places[:0]
        return
    encoded = tokenizer.encode_arrow(pieces, threads=threads)
    offsets = encoded.offsets.to_numpy()
    yield encoded.values.to_numpy()[offsets[0] : offsets[-1]], (offsets[:-1] - offsets[0])[begins]


def text_of(column: pa.Array) -> tuple[memoryview, np.ndarray]:
    """The UTF-8 bytes of all documents of an Arrow text column, joined, and their lengths (N,) int64; no copies."""
    width = np.int64 if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type) else np.int32
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    text = memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]
    return text, np.diff(offsets)


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


def read_ahead(items: Iterable[Any], depth: int = 2) -> Iterator[Any]:
    """`items`, read by a thread that stays `depth` ahead, so that reading and encoding overlap."""
    ready: queue.Queue = queue.Queue(depth)
    stopped = threading.Event()
    end = object()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(end)
        except BaseException as error:  # carried to the consumer, which raises it
            put(error)

    thread = threading.Thread(target=read, name="bytelm-reader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not end:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
