"""Encode one range of a corpus into the files that shards are cut from.

`encode_range` is stateless and idempotent, so any process can call it: a loop on one machine, or a task on a cluster.
Its output (`pipelines.dataset.outputs`) has two files for each split of the range:

    SPLIT.ids              the token ids of the split: uint16 or uint32
    SPLIT.documents.arrow  the hash, bytes and tokens of each document
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpora import Dropped
from corpora.ranges import InputRange
from corpora.splits import TRAIN
from pipelines.dataset.arrow import id_dtype, read_ahead, text_of
from pipelines.dataset.document_records import document_hashes, new_documents_file
from pipelines.dataset.encoding import SamplingEncoder, encode_batch, separator_of
from pipelines.dataset.outputs import NewFile, Output, key_of, whole_output
from tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedSplit:
    """The files of one split in a range, and their counts; `bytes` are of text."""

    documents: int
    bytes: int
    tokens: int
    ids: Path
    ids_sha256: str
    documents_file: Path


@dataclass(frozen=True)
class EncodedRange:
    """The files of a range, and the documents left out."""

    output: Output
    splits: dict[str, EncodedSplit]
    dropped: Dropped

    @property
    def bytes(self) -> int:
        """Bytes of text."""
        return sum(split.bytes for split in self.splits.values())


def encode_range(
    input_range: InputRange,
    tokenizer: Tokenizer,
    prefix: Path,
    *,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> EncodedRange:
    """Return a range encoded into files with the common `prefix`. Complete files are reused.

    Args:
        separator: put a separator before every document; ValueError if the tokenizer has none
        sampler: the encoder of training documents; by default the tokenizer
        threads: threads that encode, all cores by default
        progress: called with the bytes of text encoded so far
    """

    def make(new: NewFile) -> dict[str, Any]:
        return _encode(new, input_range, tokenizer, separator, sampler, threads, progress)

    sampling = sampler.described if sampler else None
    output = whole_output(
        prefix, key_of("encode", input_range.fingerprint, tokenizer.fingerprint, separator, sampling), make
    )
    splits = {
        name: EncodedSplit(
            **counts,
            ids=output.file(_ids(name)),
            ids_sha256=output.files[_ids(name)],
            documents_file=output.file(_documents(name)),
        )
        for name, counts in output.facts["splits"].items()
    }
    encoded = EncodedRange(output, splits, Dropped(**output.facts["dropped"]))
    progress(encoded.bytes)
    return encoded


def _encode(
    new: NewFile,
    input_range: InputRange,
    tokenizer: Tokenizer,
    separator: bool,
    sampler: SamplingEncoder | None,
    threads: int | None,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Encode a range into new files, and return the counts of its splits and of the documents left out."""
    separator_id = separator_of(tokenizer) if separator else None
    dropped, done = Dropped(), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(done)

    with ExitStack() as files:
        writers: dict[str, _SplitWriter] = {}
        for split, batch in read_ahead(input_range.routed_batches(dropped)):
            if split not in writers:
                paths = new(_ids(split)), new(_documents(split))
                writers[split] = _SplitWriter(*paths, id_dtype(tokenizer.vocab_size))
                files.callback(writers[split].close)
            writer = writers[split]
            encoder = sampler if sampler and split == TRAIN else tokenizer
            tokens = encode_batch(batch, encoder, separator_id, threads, writer.add, advance)
            writer.record(*text_of(batch.column(0)), tokens)
    return {"splits": {name: writer.counts() for name, writer in writers.items()}, "dropped": asdict(dropped)}


def _ids(split: str) -> str:
    return f"{split}.ids"


def _documents(split: str) -> str:
    return f"{split}.documents.arrow"


class _SplitWriter:
    """Writes the two files of a split."""

    def __init__(self, ids: Path, documents: Path, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._ids = ids.open("wb")
        self._documents = new_documents_file(documents)
        self._counts = np.zeros(3, np.int64)

    def add(self, ids: np.ndarray) -> None:
        """Append tokens to the stream."""
        self._ids.write(ids.astype(self._dtype).data)  # `tofile` ignores that the last bytes do not fit on the disk

    def record(self, text: memoryview, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Record consecutive documents: their joined bytes `text`, and the tokens of each with its separator."""
        self._documents.write([document_hashes(text, lengths), lengths, tokens])
        self._counts += (len(lengths), len(text), tokens.sum())

    def counts(self) -> dict[str, int]:
        """Return the documents, bytes and tokens so far."""
        return dict(zip(("documents", "bytes", "tokens"), self._counts.tolist(), strict=True))

    def close(self) -> None:
        """Close the files."""
        self._ids.close()
        self._documents.close()
