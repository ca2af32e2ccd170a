"""Vectors of the documents of a corpus, and their .parquet or .npy file. Imports no torch."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tokenizer.formats.whole_files import whole_file

if TYPE_CHECKING:
    from corpora import Corpus
    from pipelines.cli.arguments import TextPooling
    from pipelines.run.loaded_run import LoadedRun

ROWS = 4096  # documents in memory at once, and in a row group
START = 100  # characters

Vectors = tuple[pa.Array, np.ndarray]
"""The first characters of N documents, and their vectors (N, width) float32"""


class CorpusVectors:
    """Makes the vectors of documents, and counts the documents."""

    def __init__(self, run: "LoadedRun", layer: int, pooling: "TextPooling") -> None:
        self._run, self._layer, self._pooling = run, layer, pooling
        self.documents = self.cut = 0
        """Number of documents so far, and of those longer than the context"""

    def of(self, corpus: "Corpus", progress: Callable[[int], None]) -> Iterator[Vectors]:
        """Yield the vectors of all documents in corpus order. `progress` is called with the bytes of text so far."""
        size = 0
        for _, batch in corpus.routed_batches():
            for first in range(0, len(batch), ROWS):
                part = batch.column(0).slice(first, ROWS)
                rows, cut = self._run.cut_rows(self._ids(part))
                self.documents, self.cut = self.documents + len(rows), self.cut + cut
                yield _starts(part), self._run.vectors(rows, self._layer, self._pooling)
                size += pc.sum(pc.binary_length(part)).as_py()
                progress(size)

    def _ids(self, documents: pa.Array) -> list[list[int]]:
        """Return the ids of each document, cut to one more than the context length."""
        lists = self._run.tokenizer.encode_arrow(documents)
        most, ids, offsets = self._run.config.model.context_length + 1, lists.values.to_numpy(), lists.offsets
        return [ids[start : min(end, start + most)].tolist() for start, end in pairwise(offsets.to_numpy().tolist())]


def write_vectors(path: Path, parts: Iterable[Vectors], width: int, facts: Mapping[str, Any]) -> None:
    """Write vectors to a .parquet or .npy file, whole or not at all. Parquet metadata `bytelm` holds `facts`."""
    with whole_file(path) as partial:
        if path.suffix == ".npy":
            _write_npy(partial, parts, width)
        else:
            _write_parquet(partial, parts, width, facts)


def _write_npy(path: Path, parts: Iterable[Vectors], width: int) -> None:
    """Write float32 (N, width). The header has room for any N, and is rewritten when N is known."""
    count = 0

    def write_header() -> int:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(file, shape)
        return file.tell()

    with path.open("wb") as file:
        end = write_header()
        for _, vectors in parts:
            file.write(vectors.astype("<f4").tobytes())
            count += len(vectors)
        file.seek(0)
        assert write_header() == end, "the header of .npy changed its size"


def _write_parquet(path: Path, parts: Iterable[Vectors], width: int, facts: Mapping[str, Any]) -> None:
    columns = {"document": pa.int64(), "start": pa.string(), "embedding": pa.list_(pa.float32(), width)}
    schema = pa.schema(columns, {"bytelm": json.dumps(facts)})
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for starts, vectors in parts:
            # pa.array would import pandas.
            values = pa.FloatArray.from_buffers(pa.float32(), vectors.size, [None, pa.py_buffer(vectors.tobytes())])
            numbers = pa.py_buffer(np.arange(count, count + len(starts)).tobytes())
            places = pa.Int64Array.from_buffers(pa.int64(), len(starts), [None, numbers])
            embeddings = pa.FixedSizeListArray.from_arrays(values, width)
            writer.write_table(pa.Table.from_arrays([places, starts, embeddings], schema=schema))
            count += len(starts)


def _starts(documents: pa.Array) -> pa.Array:
    """Return the first START characters of each document. Invalid UTF-8 becomes U+FFFD."""
    if pa.types.is_large_binary(documents.type):
        starts = [text[: 4 * START].decode(errors="replace")[:START] for text in documents.to_pylist()]
        return pa.array(starts, pa.string())
    return pc.utf8_slice_codeunits(documents, 0, START).cast(pa.string())
