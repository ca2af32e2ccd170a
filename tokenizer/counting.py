"""Counting pretokens: how often each distinct one occurs in a corpus, all that training needs to know of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tokenizer.documents import Block, arrow_block, as_readonly, corpus_blocks, cut, cut_within
from tokenizer.patterns import Pattern, resolve_pattern
from tokenizer.pretokenize import CHUNK, pretoken_ends
from tokenizer.workers import share_out, thread_count

Progress = Callable[[str, int, int | None], None]


class PretokenCounts:
    """The distinct pretokens of a corpus and how often each occurs, in 64-bit counts.

    A thing of its own: counts of several corpora (or of shards, made on several machines) add up with `+`,
    are saved as Parquet, and any number of vocabularies is trained from them with `Tokenizer.train_from_counts`.
    The order of the pretokens carries no meaning.
    """

    def __init__(self, pattern: Pattern, data: np.ndarray, offsets: np.ndarray, counts: np.ndarray):
        self.pattern = pattern
        self.data = data  # uint8: the pretokens one after another
        self.offsets = offsets  # int64 (n + 1,)
        self.counts = counts  # int64 (n,)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        """Occurrences of all pretokens together."""
        return int(self.counts.sum())

    @property
    def total_bytes(self) -> int:
        """Bytes of the corpus that was counted."""
        return int((np.diff(self.offsets) * self.counts).sum())

    def items(self) -> Iterator[tuple[bytes, int]]:
        """The pretokens with their counts."""
        data = self.data.tobytes()
        offsets = self.offsets.tolist()
        for i, count in enumerate(self.counts.tolist()):
            yield data[offsets[i] : offsets[i + 1]], count

    def __add__(self, other: PretokenCounts) -> PretokenCounts:
        if not isinstance(other, PretokenCounts):
            return NotImplemented
        if self.pattern.regex != other.pattern.regex:
            raise ValueError(
                f"counts made with the patterns {self.pattern} and {other.pattern} do not add up; "
                "count both with the same pattern"
            )
        table = CountTable()
        for counts in (self, other):
            table.add(as_readonly(counts.data), 0, counts.offsets[1:], counts.counts)
        return table.export(self.pattern)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PretokenCounts):
            return NotImplemented
        return self.pattern.regex == other.pattern.regex and dict(self.items()) == dict(other.items())

    __hash__ = None

    def to_table(self):
        """A pyarrow table with columns pretoken (large_binary) and count (int64), sorted by pretoken."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        pretokens = pa.Array.from_buffers(pa.large_binary(), len(self), buffers)
        table = pa.table({"pretoken": pretokens, "count": pa.array(self.counts)})
        return table.sort_by("pretoken").replace_schema_metadata({"pattern": self.pattern.regex})

    def save(self, path: str | os.PathLike) -> None:
        """Write a Parquet file; the same counts give the same file. It appears whole or not at all."""
        import pyarrow.parquet as pq

        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            pq.write_table(self.to_table(), partial, compression="zstd")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike) -> PretokenCounts:
        """Read what `save` wrote. ValueError where the file is not such a table."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            saved = pq.read_table(path)
            pattern = (saved.schema.metadata or {})[b"pattern"].decode()
            pretokens = saved["pretoken"].cast(pa.large_binary())
            counts = saved["count"].cast(pa.int64()).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            reason = str(error).splitlines()[0]
            raise ValueError(f"{path} does not hold pretoken counts, or is damaged: {reason}") from None
        table = CountTable()
        done = 0
        for chunk in pretokens.iterchunks():
            block = arrow_block(chunk)
            weights = counts[done : done + len(chunk)].astype(np.int64)
            table.add(block.data, int(block.offsets[0]), block.offsets[1:], weights)
            done += len(chunk)
        return table.export(resolve_pattern(pattern))


class CountTable:
    """One thread's hash table; see `count_kernel` for its layout."""

    def __init__(self):
        self.short = np.zeros((1 << 14, 4), dtype=np.uint64)
        self.long_slots = np.zeros(1 << 12, dtype=np.uint64)
        self.long_entries = np.zeros((1 << 11, 3), dtype=np.int64)
        self.arena = np.zeros(1 << 16, dtype=np.uint8)
        self.state = np.zeros(3, dtype=np.int64)

    def add(self, data: np.ndarray, start: int, ends: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count pretokens that follow one another from data[start] on, `weights` times each (default once)."""
        from tokenizer import count_kernel as kernel

        if weights is None:
            weights = np.empty(0, dtype=np.int64)
        first, last = 0, len(ends)
        while first < last:
            stop = min(first + CHUNK * 16, last)
            before = int(ends[first - 1]) if first else start
            first = kernel.count(
                data,
                before,
                ends,
                first,
                stop,
                weights,
                self.short,
                self.long_slots,
                self.long_entries,
                self.arena,
                self.state,
            )
            if first < stop:
                length = int(ends[first]) - (int(ends[first - 1]) if first else start)
                self._grow(kernel, length)

    def _grow(self, kernel, length: int) -> None:
        """Make room for a pretoken of `length` bytes that found none."""
        if length < 16:
            larger = np.zeros((4 * len(self.short), 4), dtype=np.uint64)
            kernel.move_short(self.short, larger)
            self.short = larger
            return
        entries = int(self.state[kernel.LONG_ENTRIES])
        if entries >= len(self.long_entries):
            more = np.zeros((2 * len(self.long_entries), 3), dtype=np.int64)
            more[:entries] = self.long_entries
            self.long_entries = more
            slots = np.zeros(2 * len(self.long_slots), dtype=np.uint64)
            kernel.move_long(self.long_slots, self.long_entries, self.arena, slots)
            self.long_slots = slots
        used = int(self.state[kernel.ARENA_USED])
        if used + length > len(self.arena):
            arena = np.zeros(2 * len(self.arena) + length, dtype=np.uint8)
            arena[:used] = self.arena[:used]
            self.arena = arena

    def __len__(self) -> int:
        return int(self.state[0] + self.state[1])

    def export(self, pattern: Pattern) -> PretokenCounts:
        from tokenizer import count_kernel as kernel

        size = int(kernel.short_bytes(self.short) + self.state[kernel.ARENA_USED])
        data = np.empty(size, dtype=np.uint8)
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        counts = np.empty(len(self), dtype=np.int64)
        kernel.export(self.short, self.long_entries, self.arena, self.state, data, offsets, counts)
        return PretokenCounts(pattern, data, offsets, counts)


def count_pretokens(
    corpus,
    pattern: str | Pattern = "cl100k",
    threads: int | None = None,
    progress: Progress | None = None,
) -> PretokenCounts:
    """Split a corpus by a pattern and count its distinct pretokens.

    corpus: a path to a text file, several paths, or an iterable of str, bytes, pyarrow string/binary arrays,
    or record batches with one such column. A file is one document; documents never join. It is read as a stream:
    memory is bounded by the distinct pretokens. The counts do not depend on `threads`, the order of the
    documents, or how they are batched. progress: called as ("count", bytes done, bytes in all or None).

    Bytes that are not UTF-8 are a pretoken each. Raises ValueError for a lone surrogate in a str (with the document's
    position), nulls and unknown columns, FileNotFoundError for a path that does not exist.
    """
    pattern = resolve_pattern(pattern)
    blocks, total = corpus_blocks(corpus)
    divide = cut_within if pattern.automaton is not None else cut
    tables = [CountTable() for _ in range(thread_count(threads))]
    done_bytes = 0

    def counter(table: CountTable):
        def count_block(block: Block, check: Callable[[], None]) -> None:
            start = int(block.offsets[0])
            for ends in pretoken_ends(block, pattern):
                check()
                table.add(block.data, start, ends)
                start = int(ends[-1])

        return count_block

    def done(block: Block) -> None:
        nonlocal done_bytes
        done_bytes += block.size
        if progress is not None:
            progress("count", done_bytes, total)

    pieces = (piece for block in blocks for piece in divide(block))
    share_out(pieces, [counter(table) for table in tables], done)
    first, *others = (table for table in tables if len(table) or table is tables[0])
    for other in others:
        counts = other.export(pattern)
        first.add(as_readonly(counts.data), 0, counts.offsets[1:], counts.counts)
    return first.export(pattern)
