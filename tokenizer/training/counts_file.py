"""The file of saved pretoken counts: Parquet with the columns pretoken and count, sorted by pretoken.

The footer has a checksum under the key `sha256`: the SHA-256 of the file with zeros in place of the checksum's 64
hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokenizer.document_blocks import arrow_block
from tokenizer.formats.strict_json import regular_size
from tokenizer.formats.whole_files import whole_file
from tokenizer.kinds.registry import resolve_splitter
from tokenizer.training.count_table import Counted
from tokenizer.training.spilling import BATCH_ROWS, Run, ascends

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 65536  # rows that are read at once
CHECKSUM, ZEROS = "sha256", b"0" * 64
_BLOCK = 1 << 20


def write_counts(path: Path, table: pa.Table) -> None:
    """Write a table of pretokens and counts, with the pattern in its metadata."""
    import pyarrow.parquet as pq

    with whole_file(path) as partial:
        with pq.ParquetWriter(partial, table.schema, compression="zstd", use_dictionary=False) as writer:
            for first in range(0, len(table), ROW_GROUP):
                writer.write_table(table.slice(first, ROW_GROUP))
            writer.add_key_value_metadata({CHECKSUM: ZEROS.decode()})
        with partial.open("rb+") as file:
            place = _place(file, ZEROS)
            checksum = _checksum(file, place)
            file.seek(place)
            file.write(checksum)


class SavedCounts:
    """Reader of a file that `write_counts` wrote. ValueError for any other file, and for a damaged one."""

    def __init__(self, path: str | os.PathLike[str]):
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        self._errors = (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, OSError)
        try:
            regular_size(Path(path))
        except ValueError as error:
            raise self._damage_error(error) from None
        try:
            with pq.ParquetFile(path) as file:
                self.rows = file.metadata.num_rows
                checksum = (file.metadata.metadata or {}).get(CHECKSUM.encode())
                pattern = (file.schema_arrow.metadata or {})[b"pattern"]
            if checksum is not None and not self._is_sound(checksum):
                raise self._damage_error(
                    "its checksum does not match; restore it from a copy, or count the corpus again"
                )
            self.pattern = resolve_splitter(pattern.decode())
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise self._damage_error(error) from None
        if checksum is None:
            raise ValueError(f"{path} has no checksum: count the corpus again")

    def _is_sound(self, checksum: bytes) -> bool:
        with Path(self._path).open("rb") as file:
            place = _place(file, checksum)
            return len(checksum) == len(ZEROS) and place >= 0 and _checksum(file, place) == checksum

    def batches(self) -> Run:
        """Yield the pretokens in the order of the file. ValueError if the file is damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self._path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["pretoken", "count"]):
                    counts = batch["count"].cast(pa.int64())
                    if batch["pretoken"].null_count or counts.null_count:
                        raise self._damage_error("it has rows without a value")
                    counts = counts.to_numpy()
                    if len(counts) and counts.min() < 1:
                        raise self._damage_error("it has counts below 1")
                    block = arrow_block(batch["pretoken"].cast(pa.large_binary()))
                    yield Counted(block.data, block.offsets, counts)
        except self._errors as error:
            raise self._damage_error(error) from None

    def run(self) -> Run:
        """As `batches`; ValueError also if the pretokens do not ascend."""
        last = None
        for batch in self.batches():
            first = batch.pretoken(0)
            if (last is not None and first <= last) or not ascends(batch):
                raise self._damage_error("its pretokens are not in order; load it and save it again")
            last = batch.pretoken(len(batch.counts) - 1)
            yield batch

    def _damage_error(self, why: object) -> ValueError:
        reason = str(why).splitlines()[0]
        return ValueError(f"{self._path} does not hold pretoken counts, or is damaged: {reason}")


def _place(file: BinaryIO, checksum: bytes) -> int:
    """Return where in a Parquet file its footer has the checksum; -1 if it has none."""
    end = file.seek(-8, os.SEEK_END)  # the length of the footer, and the letters PAR1
    start = max(0, end - int.from_bytes(file.read(4), "little"))
    file.seek(start)
    place = file.read(end - start).rfind(checksum)
    return place if place < 0 else start + place


def _checksum(file: BinaryIO, place: int) -> bytes:
    """Return the checksum of a file with 64 zeros at `place`, in hexadecimal digits."""
    digest, left = hashlib.sha256(), place
    file.seek(0)
    while left and (block := file.read(min(left, _BLOCK))):
        digest.update(block)
        left -= len(block)
    digest.update(ZEROS)
    file.seek(place + len(ZEROS))
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest().encode()
