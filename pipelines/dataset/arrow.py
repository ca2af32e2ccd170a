"""What datasets of blocks and of pairs share: text columns, fingerprints, and the files of a split."""

import hashlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.files import file_sha256, write_json

T = TypeVar("T")
Progress = Callable[[int], None]
"""Called with the bytes of text read so far"""


class TextFingerprint:
    """SHA-256 of a sequence of documents, whatever the batches they come in."""

    def __init__(self) -> None:
        self._text, self._lengths = hashlib.sha256(), hashlib.sha256()

    def update(self, text: memoryview, lengths: np.ndarray) -> None:
        self._text.update(text)
        self._lengths.update(lengths.astype("<i8").tobytes())

    def hexdigest(self) -> str:
        return hashlib.sha256(self._text.digest() + self._lengths.digest()).hexdigest()


class ArrowFile:
    """A new Arrow file. `features` describe its columns to `datasets`, if it opens the file."""

    def __init__(self, path: Path, columns: dict[str, pa.DataType], features: dict[str, Any] | None = None) -> None:
        self._path = path
        metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
        self._schema = pa.schema(list(columns.items()), metadata=metadata)
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def write(self, columns: Sequence[Any]) -> None:
        """Write a record batch."""
        self._writer.write_batch(pa.record_batch([*columns], schema=self._schema))

    def finish(self) -> tuple[int, str]:
        """Close the file, and return its size and SHA-256."""
        self.close()
        return self._path.stat().st_size, file_sha256(self._path)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()


def describe_split(folder: Path, features: dict[str, Any], files: Mapping[str, str]) -> None:
    """Write the two files that `datasets` needs in the folder of a split. `files`: SHA-256 of Arrow files by name."""
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    digest = next(iter(files.values()))
    if len(files) > 1:
        digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": folder.name,
    }
    write_json(folder / "dataset_info.json", info)
    write_json(folder / "state.json", state)


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of token ids on disk."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def text_of(column: pa.Array) -> tuple[memoryview, np.ndarray]:
    """Return the joined UTF-8 bytes of an Arrow text column, without a copy, and the documents' lengths (N,) int64."""
    width = np.int64 if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type) else np.int32
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    text = memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]
    return text, np.diff(offsets)


def read_ahead(items: Iterable[T], depth: int = 2) -> Iterator[T]:
    """Yield `items`, which a thread reads up to `depth` ahead, so that reading and encoding overlap."""
    ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)  # None ends the items
    stopped = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> bool:
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
                if not put((item,)):
                    return
            put(None)
        except BaseException as error:  # raised by the consumer
            put(error)

    thread = threading.Thread(target=read, name="bytelm-reader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()
        thread.join()
