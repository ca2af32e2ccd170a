"""The hash, bytes and tokens of each document of a split, used to pair documents of runs with different tokenizers.

They are in documents.arrow, in the folder of the split. dataset.json and the fingerprint do not depend on this file.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.dataset.arrow import ArrowFile

DOCUMENTS_FILE = "documents.arrow"


class RecordedDocuments(NamedTuple):
    """The documents of a split in its order."""

    hashes: list[bytes]
    """SHA-256 of the bytes of each document"""
    sizes: np.ndarray
    """int64 (D,): bytes of each document"""
    tokens: np.ndarray
    """int64 (D,): tokens of each document with its separator"""


def document_hashes(text: memoryview, lengths: np.ndarray) -> list[bytes]:
    """Return the SHA-256 of consecutive documents with joined bytes `text` and the given lengths."""
    ends = [0, *np.cumsum(lengths).tolist()]
    return [hashlib.sha256(text[start:end]).digest() for start, end in pairwise(ends)]


def new_documents_file(path: Path) -> ArrowFile:
    """Return a new file of documents, whose record batches have the fields of `RecordedDocuments`."""
    return ArrowFile(path, {"sha256": pa.binary(32), "bytes": pa.int64(), "tokens": pa.int64()})


def write_documents(folder: Path, documents: RecordedDocuments) -> None:
    """Write the documents of the split in `folder`."""
    file = new_documents_file(folder / DOCUMENTS_FILE)
    try:
        file.write(documents)
    finally:
        file.close()


def joined_documents(paths: Sequence[Path]) -> RecordedDocuments:
    """Return the documents of several files, one file after the other."""
    hashes: list[bytes] = []
    sizes: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for batch in _batches(paths):
        hashes += batch.column("sha256").to_pylist()
        sizes.append(np.from_dlpack(batch.column("bytes")))  # to_numpy imports pandas
        tokens.append(np.from_dlpack(batch.column("tokens")))
    return RecordedDocuments(hashes, np.concatenate(sizes), np.concatenate(tokens))


def hashes_sha256(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of the hashes of all documents in several files."""
    digest = hashlib.sha256()
    for batch in _batches(paths):
        digest.update(b"".join(batch.column("sha256").to_pylist()))
    return digest.hexdigest()


def _batches(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pa.OSFile(str(path), "rb") as file:
            yield from pa.ipc.open_stream(file)


def read_documents(folder: Path, split: dict[str, Any]) -> RecordedDocuments | None:
    """Return the documents of the split in `folder`, None if the dataset does not record them.

    `split` is the entry of the split in dataset.json. Raises ValueError if the file does not fit it.
    """
    path = folder / DOCUMENTS_FILE
    if not path.is_file():
        return None
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_stream(file).read_all()
        numbers = [np.array(table[name].to_pylist(), np.int64) for name in ("bytes", "tokens")]  # to_numpy loads pandas
        documents = RecordedDocuments(table["sha256"].to_pylist(), *numbers)
        sound = len(documents.sizes) == split["documents"] and int(documents.sizes.sum()) == split["bytes"]
        sound = sound and int(documents.tokens.sum()) == split["encoded_tokens"]
    except (pa.ArrowInvalid, KeyError, OSError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is damaged: build the dataset again with bytelm build-dataset, or delete this file")
    return documents
