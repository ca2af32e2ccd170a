"""Encode one range of a corpus: the files that shards are cut from, and a marker that the files are complete.

`encode_range` is stateless and idempotent, so any process can call it: a loop on one machine, or a task on a cluster.
For the path prefix `out`, folder/NAME, it writes for each split of the range

    NAME.SPLIT.ids              the token ids of the split: uint16 or uint32
    NAME.SPLIT.documents.arrow  the hash, bytes and tokens of each document

and last the marker NAME.json. It has the SHA-256 of the files and the fingerprint of all their inputs.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from corpora import Dropped
from corpora.ranges import InputRange
from corpora.splits import TRAIN
from pipelines.dataset.arrow import file_sha256, id_dtype, read_ahead, text_of
from pipelines.dataset.documents import DocumentsWriter, document_hashes
from pipelines.dataset.encoding import encode_batch, separator_of
from pipelines.dataset.sampling import SamplingEncoder
from pipelines.files import checksummed_json, read_json, whole_file
from pipelines.run.code_fingerprint import code_fingerprint
from tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedSplit:
    """The counts of one split in a range; `bytes` are of text."""

    documents: int
    bytes: int
    tokens: int
    ids_sha256: str
    documents_sha256: str


@dataclass(frozen=True)
class EncodedRange:
    """The content of a marker."""

    fingerprint: str
    """SHA-256 of the inputs of the files: range, tokenizer, separator, sampling and code"""

    splits: dict[str, EncodedSplit]
    dropped: Dropped

    @property
    def bytes(self) -> int:
        """Bytes of text."""
        return sum(split.bytes for split in self.splits.values())


def encode_range(
    input_range: InputRange,
    tokenizer: Tokenizer,
    out: Path,
    *,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> EncodedRange:
    """Encode a range into files whose names begin with `out`, and return their counts.

    Existing files are kept if their marker has the same fingerprint and their checksums match. Each file appears whole
    or not at all, and the marker last.

    Args:
        separator: put a separator before every document; ValueError if the tokenizer has none
        sampler: the encoder of training documents; by default the tokenizer
        threads: threads that encode, all cores by default
        progress: called with the bytes of text encoded so far
    """
    fingerprint = range_fingerprint(input_range, tokenizer, separator, sampler)
    there = read_marker(out)
    if there is not None and there.fingerprint == fingerprint and files_are_sound(out, there):
        progress(there.bytes)
        return there
    separator_id = separator_of(tokenizer) if separator else None
    dtype = id_dtype(tokenizer.vocab_size)
    dropped, done = Dropped(), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(done)

    with ExitStack() as files:
        writers: dict[str, _SplitWriter] = {}
        for split, batch in read_ahead(input_range.routed_batches(dropped)):
            if split not in writers:
                ids, documents = (whole_file(path(out, split)) for path in (ids_path, documents_path))
                writers[split] = _SplitWriter(files.enter_context(ids), files.enter_context(documents), dtype)
                files.callback(writers[split].close)
            writer = writers[split]
            encoder = sampler if sampler and split == TRAIN else tokenizer
            tokens = encode_batch(batch, encoder, separator_id, threads, writer.add, advance)
            writer.record(*text_of(batch.column(0)), tokens)
        splits = {name: writer.finish() for name, writer in writers.items()}
    encoded = EncodedRange(fingerprint, splits, dropped)
    with whole_file(marker_path(out)) as path:
        path.write_text(checksummed_json(asdict(encoded)), encoding="utf-8")
    return encoded


class _SplitWriter:
    """Writes the two files of a split."""

    def __init__(self, ids: Path, documents: Path, dtype: np.dtype) -> None:
        self._ids_path, self._documents_path, self._dtype = ids, documents, dtype
        self._ids = ids.open("wb")
        self._documents = DocumentsWriter(documents)
        self._counts = np.zeros(3, np.int64)

    def add(self, ids: np.ndarray) -> None:
        """Append tokens to the stream."""
        ids.astype(self._dtype).tofile(self._ids)

    def record(self, text: memoryview, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Record consecutive documents: their joined bytes `text`, and the tokens of each with its separator."""
        self._documents.add(document_hashes(text, lengths), lengths, tokens)
        self._counts += (len(lengths), len(text), tokens.sum())

    def finish(self) -> EncodedSplit:
        """Close the files, and return their counts and checksums."""
        self.close()
        documents, size, tokens = self._counts.tolist()
        digests = file_sha256(self._ids_path), file_sha256(self._documents_path)
        return EncodedSplit(documents, size, tokens, *digests)

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._ids.close()
        self._documents.close()


def ids_path(out: Path, split: str) -> Path:
    """Return the file with the ids of a split."""
    return out.with_name(f"{out.name}.{split}.ids")


def documents_path(out: Path, split: str) -> Path:
    """Return the file with the hashes, bytes and tokens of the documents of a split."""
    return out.with_name(f"{out.name}.{split}.documents.arrow")


def marker_path(out: Path) -> Path:
    """Return the file that marks a range as encoded."""
    return out.with_name(f"{out.name}.json")


def range_fingerprint(
    input_range: InputRange, tokenizer: Tokenizer, separator: bool, sampler: SamplingEncoder | None = None
) -> str:
    """Return the SHA-256 of all inputs of the files of an encoded range."""
    sampling = sampler.described if sampler else None
    content = [input_range.fingerprint, tokenizer.fingerprint, separator, sampling, code_fingerprint()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_marker(out: Path) -> EncodedRange | None:
    """Return the content of a marker; None if there is none, or if it is damaged."""
    try:
        content = read_json(marker_path(out), "")
        if checksummed_json(content).encode() != marker_path(out).read_bytes():
            return None
    except (OSError, ValueError):
        return None
    splits = {name: EncodedSplit(**split) for name, split in content["splits"].items()}
    return EncodedRange(content["fingerprint"], splits, Dropped(**content["dropped"]))


def files_are_sound(out: Path, encoded: EncodedRange) -> bool:
    """Return whether all files of a marker exist with the checksums in it."""
    return all(
        path.is_file() and file_sha256(path) == digest
        for name, split in encoded.splits.items()
        for path, digest in (
            (ids_path(out, name), split.ids_sha256),
            (documents_path(out, name), split.documents_sha256),
        )
    )
