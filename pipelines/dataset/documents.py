"""The hash, bytes and tokens of each document of a split, used to pair documents of runs with different tokenizers.

They are in documents.arrow, in the folder of the split. dataset.json and the fingerprint do not depend on this file.
"""

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DOCUMENTS_FILE = "documents.arrow"


class RecordedDocuments(NamedTuple):
    """The documents of a split in its order."""

    hashes: list[bytes]
    """SHA-256 of the bytes of each document"""
    sizes: np.ndarray
    """int64 (D,): bytes of each document"""
    tokens: np.ndarray | None = None
    """int64 (D,): tokens of each document with its separator; None in datasets of version 0.1"""


def document_hashes(text: memoryview, lengths: np.ndarray) -> list[bytes]:
    """Return the SHA-256 of consecutive documents with joined bytes `text` and the given lengths."""
    ends = [0, *np.cumsum(lengths).tolist()]
    return [hashlib.sha256(text[start:end]).digest() for start, end in pairwise(ends)]


def write_documents(folder: Path, documents: RecordedDocuments) -> None:
    """Write the documents of the split in `folder`."""
    numbers = {"bytes": documents.sizes, "tokens": documents.tokens}
    columns = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
    table = pa.table({"sha256": pa.array(documents.hashes, pa.binary(32)), **columns})
    with pa.OSFile(str(folder / DOCUMENTS_FILE), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


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
        names = [name for name in ("bytes", "tokens") if name != "tokens" or name in table.column_names]
        numbers = [np.array(table[name].to_pylist(), np.int64) for name in names]  # to_numpy imports pandas
        found = RecordedDocuments(table["sha256"].to_pylist(), *numbers)
        sound = len(found.sizes) == split["documents"] and int(found.sizes.sum()) == split["bytes"]
        sound = sound and (found.tokens is None or int(found.tokens.sum()) == split["encoded_tokens"])
    except (pa.ArrowInvalid, KeyError, OSError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is damaged: build the dataset again with bytelm build-dataset, or delete this file")
    return found
