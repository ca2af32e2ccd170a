"""Datasets on disk, verified and memory-mapped: a stream of tokens for each split of blocks.

`datasets.load_from_disk` opens the folder; `dataset.json` describes it.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from corpora.object_store import AnyPath, ObjectPath
from pipelines.files import file_sha256, read_json, refuse_special, write_json

DATA_FILE = "data-00000-of-00001.arrow"
REMEDY = "build the dataset again with bytelm build-dataset"
_OTHER_KIND = {
    "blocks": "build one with `context_length`, or choose a recipe whose objective is sequence-pairs",
    "pairs": "build one with `pairs`, or choose a recipe with another objective",
}


class TokenStream:
    """The tokens of a split: consecutive blocks of `context_length` tokens.

    `views` are memory-mapped arrays of uint16 or uint32, one per Arrow record batch.
    """

    def __init__(self, views: Sequence[np.ndarray], context_length: int) -> None:
        self._views = list(views)
        self._starts = np.cumsum([0] + [len(view) for view in views])
        self.context_length = context_length
        self.tokens = int(self._starts[-1])
        self.blocks = self.tokens // context_length

    def read(self, start: int, length: int) -> np.ndarray:
        """Return tokens [start, start + length), fewer at the end of the stream; a view if one record batch has all."""
        stop = min(start + length, self.tokens)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            offset = start - int(self._starts[first])
            part = self._views[first][offset : offset + stop - start]
            parts.append(part)
            start += len(part)
            first += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def gather(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return the `length` tokens from each of `starts` (B,), and 0 past the stream's end: (B, length) int64."""
        out = np.zeros((len(starts), length), np.int64)
        for row, start in zip(out, starts.tolist(), strict=True):
            tokens = self.read(start, length)
            row[: len(tokens)] = tokens
        return out

    def chunks(self) -> Sequence[np.ndarray]:
        """Return the stream as consecutive views, one per record batch."""
        return self._views

    @property
    def dtype(self) -> np.dtype:
        return self._views[0].dtype if self._views else np.dtype(np.uint16)


Split = TypeVar("Split")


class DatasetFolder(ABC, Generic[Split]):
    """A verified dataset folder, and the content of each split.

    Raises ValueError if `folder` is not a dataset of this kind, or if the size or SHA-256 of a file differs from
    dataset.json.
    """

    kind: ClassVar[str]
    """Value of the field `kind` in dataset.json"""
    counted: ClassVar[tuple[str, ...]]
    """Fields of dataset.json that must be positive whole numbers"""
    counted_of_split: ClassVar[tuple[str, ...]]
    """Such fields of each split"""

    def __init__(self, folder: str | Path, copy_of: ObjectPath | None = None) -> None:
        """`copy_of`: the dataset in an object store, if `folder` is a verified copy of it."""
        self.folder = Path(folder)
        self.place: AnyPath = copy_of or self.folder
        """The name of the dataset: a folder or a URI"""
        self.info, self.fingerprint = _read_info(self.folder, self.kind, self.counted, self.counted_of_split)
        """SHA-256 that identifies the dataset, with its corpus and tokenizer"""
        self.vocab_size: int = self.info["tokenizer"]["vocab_size"]
        self.tokenizer_fingerprint: str = self.info["tokenizer"]["fingerprint"]
        self.splits = {
            name: self._read(name, _verified_table(self.folder / name, split, verified=copy_of is not None))
            for name, split in self.info["splits"].items()
        }

    def split(self, name: str) -> Split:
        """Return the content of a split; ValueError if there is no such split."""
        if name not in self.splits:
            raise ValueError(f"{self.place} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    @abstractmethod
    def _read(self, name: str, table: pa.Table) -> Split:
        """Return the content of the split `name` from its table."""


class TokenDataset(DatasetFolder[TokenStream]):
    """A dataset of blocks; each split is a stream of tokens."""

    kind = "blocks"
    counted = ("context_length",)
    counted_of_split = ("bytes", "encoded_tokens")

    @property
    def context_length(self) -> int:
        """Tokens of a block."""
        length: int = self.info["context_length"]
        return length

    def bytes_per_token(self, split: str) -> float:
        """Return the mean bytes of text per token of a split."""
        info = self.info["splits"][split]
        return float(info["bytes"] / max(1, info["encoded_tokens"]))

    def _read(self, name: str, table: pa.Table) -> TokenStream:
        width = table.schema.field("input_ids").type.list_size
        if width != self.context_length:
            raise ValueError(
                f"{self.folder / 'dataset.json'} is damaged: the split {name} has blocks of {width} tokens; {REMEDY}"
            )
        # Array.to_numpy would import pandas.
        views = [np.from_dlpack(chunk.flatten()) for chunk in table.column("input_ids").chunks]
        return TokenStream(views, self.context_length)


class DataFile(NamedTuple):
    """An Arrow file of a split, as dataset.json describes it."""

    name: str
    bytes: int
    sha256: str


def data_files(split: dict[str, Any]) -> list[DataFile]:
    """Return the Arrow files of the entry of a split in dataset.json: its shards, or its only file."""
    if "shards" in split:
        return [DataFile(shard["name"], shard["bytes"], shard["sha256"]) for shard in split["shards"]]
    return [DataFile(DATA_FILE, split["file_bytes"], split["file_sha256"])]


def _verified_table(folder: Path, split: dict[str, Any], verified: bool) -> pa.Table:
    """Return the memory-mapped table of a split; ValueError if a file's size or SHA-256 differs from dataset.json.

    `verified`: the SHA-256 of every file has been checked already.
    """
    tables = []
    for name, expected, digest in data_files(split):
        path = folder / name
        if not path.exists():
            raise ValueError(f"{path} is missing: {REMEDY}")
        refuse_special(path)
        size = path.stat().st_size
        if size != expected:
            raise ValueError(f"{path} is truncated or altered: {size} bytes instead of {expected}; {REMEDY}")
        if not verified and file_sha256(path) != digest:
            raise ValueError(f"{path} is altered: its SHA-256 is not the one in dataset.json; {REMEDY}")
        tables.append(pa.ipc.open_stream(pa.memory_map(str(path))).read_all())
    return pa.concat_tables(tables)


def write_info(folder: Path, info: dict[str, Any]) -> dict[str, Any]:
    """Write dataset.json, with its fingerprint as the last field, and return the content."""
    info = {**info, "fingerprint": info_fingerprint(info)}
    write_json(folder / "dataset.json", info)
    return info


def info_fingerprint(info: dict[str, Any]) -> str:
    """Return the SHA-256 of dataset.json without its field `fingerprint`."""
    content = {name: value for name, value in info.items() if name != "fingerprint"}
    return hashlib.sha256((json.dumps(content, indent=2) + "\n").encode()).hexdigest()


def _checked_fingerprint(path: Path, info: dict[str, Any]) -> str:
    """Return the fingerprint of a dataset; ValueError if dataset.json was altered after it was written."""
    fingerprint = info_fingerprint(info)
    if info.get("fingerprint") != fingerprint:
        raise ValueError(f"{path} is damaged (its fingerprint does not match its content): {REMEDY}")
    return fingerprint


def _read_info(
    folder: Path, kind: str, counted: tuple[str, ...], of_split: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    """Return the content of dataset.json and the dataset's fingerprint.

    Raises ValueError for another kind, and if a field in `counted`, or in `of_split` of a split, is not a positive
    whole number.
    """
    if not (folder / "dataset.json").exists():
        problem = "it has no dataset.json" if folder.is_dir() else "there is no such folder"
        raise ValueError(f"{folder} is not a dataset: {problem} (bytelm build-dataset makes one)")
    info = read_json(folder / "dataset.json", REMEDY)
    fingerprint = _checked_fingerprint(folder / "dataset.json", info)
    there = info.get("kind", "blocks")
    if there != kind:
        raise ValueError(f"{folder} holds {there}, and this needs {kind}: {_OTHER_KIND[kind]}")
    try:
        numbers = [info["tokenizer"]["vocab_size"], *(info[field] for field in counted)]
        texts = [info["tokenizer"]["fingerprint"], info["corpus"]["name"], info["corpus"]["split_rule"]]
        names: list[Any] = []  # of folders and files, never outside the dataset
        for name, split in info["splits"].items():
            files = data_files(split)
            names += [name, *(file.name for file in files)]
            numbers += [len(files), *(file.bytes for file in files), *(split[field] for field in of_split)]
            texts += [file.sha256 for file in files]
        sound = all(type(number) is int and 0 < number < 1 << 63 for number in numbers)
        sound = sound and all(isinstance(text, str) for text in (*texts, *names))
        sound = sound and all(Path(name).name == name for name in names)
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{folder / 'dataset.json'} is damaged: {REMEDY}")
    return info, fingerprint
