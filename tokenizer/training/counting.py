"""Counts of the distinct pretokens of a corpus, which are all that training needs."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import Block, corpus_blocks, cut, cut_out, cut_within, release
from tokenizer.encoding.python_encoder import FIRST_BYTES
from tokenizer.first_use import begin, is_compiled
from tokenizer.kernels import counts as count_kernel
from tokenizer.kinds.registry import kind_trained_on, resolve_splitter
from tokenizer.splitting.pretokenize import pretokenize
from tokenizer.splitting.splitter import Splitter
from tokenizer.text import text_bytes
from tokenizer.training.count_table import Counted, CountTable
from tokenizer.training.counts_file import SavedCounts, write_counts
from tokenizer.training.forecast import MergeForecast
from tokenizer.training.spilling import (
    RUN_ROWS,
    RunFile,
    at_least,
    batches,
    in_order,
    in_order_by_steps,
    merge_on_disk,
    pieces,
)
from tokenizer.workers import share_out, thread_count

if TYPE_CHECKING:
    import pyarrow as pa

Progress = Callable[[str, int, int | None], None]

LEAST_MEMORY = 16_000_000
LEAST_THREAD_MEMORY = 4_000_000  # with less, a thread would spill all the time; use fewer threads instead


class PretokenCounts:
    """The distinct pretokens of a corpus with 64-bit counts, in no particular order.

    Counts of several corpora or shards add up with `+`, `sum`, or, from files that need not fit in memory, `merge`.
    `save` writes Parquet. `Tokenizer.train_from_counts` trains any number of vocabularies from the same counts.
    """

    def __init__(self, pattern: Splitter, data: np.ndarray, offsets: np.ndarray, counts: np.ndarray):
        self.pattern = pattern
        self.data = data  # uint8: the concatenated pretokens
        self.offsets = offsets  # int64 (n + 1,)
        self.counts = counts  # int64 (n,)
        self.spilled_runs = self.spilled_bytes = 0  # written to disk during counting

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        """Number of occurrences of all pretokens."""
        return int(self.counts.sum())

    @property
    def total_bytes(self) -> int:
        """Size of the counted corpus in bytes; for BERT's words, of the normalized words."""
        return sum(int(np.dot(np.diff(piece.offsets), piece.counts)) for piece in pieces(self._counted))

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield the pretokens with their counts."""
        for data, offsets, counts in batches(self._counted):
            content = data[offsets[0] : offsets[-1]].tobytes()
            places = (offsets - offsets[0]).tolist()
            for i, count in enumerate(counts.tolist()):
                yield content[places[i] : places[i + 1]], count

    def at_least(self, count: int) -> PretokenCounts:
        """Return the pretokens that occur at least `count` times.

        A vocabulary trained on them differs from the corpus's exact vocabulary. The difference between the two
        `total_bytes` is the part of the corpus left out.
        """
        return PretokenCounts(self.pattern, *at_least(self._counted, count))

    @classmethod
    def sum(cls, several: Iterable[PretokenCounts]) -> PretokenCounts:
        """Return the sum of the counts of several corpora. ValueError for different patterns, and for no counts."""
        table, pattern = CountTable(), None
        for counts in several:
            pattern = _common_pattern(pattern, counts.pattern)
            table.add(counts.data, 0, counts.offsets[1:], counts.counts)
        if pattern is None:
            raise ValueError("there are no counts to add up")
        return cls(pattern, *table.export())

    def __add__(self, other: PretokenCounts) -> PretokenCounts:
        if not isinstance(other, PretokenCounts):
            return NotImplemented
        return PretokenCounts.sum((self, other))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PretokenCounts):
            return NotImplemented
        if self.pattern != other.pattern or len(self) != len(other):
            return False
        return bool(self.to_table().equals(other.to_table()))

    __hash__ = None  # type: ignore[assignment]  # unhashable, as `list` is

    @property
    def _counted(self) -> Counted:
        return Counted(self.data, self.offsets, self.counts)

    def to_table(self) -> pa.Table:
        """Return a pyarrow table with columns pretoken (large_binary) and count (int64), sorted by pretoken.

        Raises ValueError for a splitter without a spelling, with which the counts could not be read again.
        """
        import pyarrow as pa

        if self.pattern.spelling is None:
            raise ValueError(f"counts by the splitter {str(self.pattern)[:80]} cannot be saved: it has no name")
        data, offsets, counts = in_order_by_steps(self._counted)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        pretokens = pa.Array.from_buffers(pa.large_binary(), len(counts), buffers)
        return pa.table({"pretoken": pretokens, "count": counts}, metadata={"pattern": self.pattern.spelling})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file with a checksum atomically; equal counts give equal files."""
        write_counts(Path(path), self.to_table())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PretokenCounts:
        """Read a file that `save` wrote. ValueError for any other file."""
        saved = SavedCounts(path)
        table = CountTable()
        for batch in saved.batches():
            table.add(batch.data, int(batch.offsets[0]), batch.offsets[1:], batch.counts)
        return cls(saved.pattern, *table.export())

    @classmethod
    def merge(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        memory: int | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> PretokenCounts:
        """Return the sum of counts in files that `save` wrote, which need not fit in memory.

        memory: limit in bytes. The sum is memory-mapped from temporary files in `spill_folder` (default: the system's
        temporary folder), which disappear with it. progress: called as ("combine", pretokens done, total). ValueError
        for different patterns, no path, or a file that `save` did not write.
        """
        check_budget(memory)
        files, pattern = [SavedCounts(path) for path in paths], None
        for file in files:
            pattern = _common_pattern(pattern, file.pattern)
        if pattern is None:
            raise ValueError("there are no counts to add up")
        total = sum(file.rows for file in files)
        runs = [file.run() for file in files]
        return cls(pattern, *merge_on_disk(runs, spill_folder, memory, _combining(progress, total)))


def _common_pattern(first: Splitter | None, second: Splitter) -> Splitter:
    if first is not None and first != second:
        raise ValueError(
            f"counts made with the patterns {first} and {second} do not add up; count all with the same pattern"
        )
    return second


def count_pretokens(
    corpus: object,
    pattern: str | Splitter = "cl100k",
    threads: int | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
    spill_folder: str | os.PathLike[str] | None = None,
    forecast: MergeForecast | None = None,
    cut_at: Sequence[str] = (),
) -> PretokenCounts:
    """Split a corpus by a pattern and count its distinct pretokens.

    pattern: as in `Tokenizer.train`: "nfc:cl100k" gives pretokens of normalized text, "bert-uncased" and "bert-cased"
    normalized words without white space, "metaspace", "nmt_nfkc" and "nfkc" words that begin with a space.
    corpus: the path of a text file, or an iterable of str and bytes (texts), `Path` objects (files), pyarrow
    string/binary arrays, or record batches with one such column. A list of str that all name existing files is a
    ValueError: pass `Path` objects. A file is one document. No pretoken spans two documents. The corpus is read as a
    stream, so memory depends on the number of distinct pretokens only. The counts do not depend on `threads`, `memory`,
    or the order and batching of documents. progress: called as ("count", bytes done, total bytes or None).

    memory: limit in bytes for the count tables of all threads together (None: no limit). The interpreter, libraries
    and a few megabytes of text per thread come on top. Counts beyond the limit go in sorted runs to an unnamed
    temporary file in `spill_folder` (default: the system's temporary folder). The runs are merged at the end, with
    progress ("combine", pretokens done, total). The result is then memory-mapped from such files, which disappear with
    the process. forecast: raises ValueError as soon as the spilled pretokens show that merging cannot fit in memory.

    cut_at: spellings, such as those of special tokens, that end a document and are not counted. If several begin at one
    place, the longest one counts.

    Each byte that is not UTF-8 is a pretoken; BERT's words leave it out. Raises ValueError for a lone surrogate in a
    str (with its position in the document), nulls and unknown columns, FileNotFoundError for a missing path, and
    OSError, which names the folder, if a run cannot be written.
    """
    pattern = resolve_splitter(pattern)
    blocks, total = corpus_blocks(corpus)
    check_budget(memory)
    threads = thread_count(threads) if memory is None else min(thread_count(threads), memory // LEAST_THREAD_MEMORY)
    spellings = _any_of(cut_at)
    # `cut_within` could end a part inside a spelling with a space.
    divide = cut_within if pattern.splits_at_spaces and not any(map(re.compile(r"\s").search, cut_at)) else cut
    pieces: Iterator[Block] = (piece for block in blocks for piece in divide(block))
    done_bytes = 0

    def done(block: Block) -> None:
        nonlocal done_bytes
        done_bytes += block.size
        release(block)
        if progress is not None:
            progress("count", done_bytes, total)

    def count_with(counter: _Counter) -> Callable[[Block, Callable[[], None]], None]:
        def count_block(block: Block, check: Callable[[], None]) -> None:
            block, chunks = pretokenize(cut_out(block, spellings), pattern)
            start = int(block.offsets[0])
            for ends in chunks:
                check()
                counter.add(block.data, start, ends, None, check)
                start = int(ends[-1])

        return count_block

    first = Counted.empty(0, 0)
    if memory is None and not is_compiled(count_kernel.count):
        if kernels := kind_trained_on(pattern).kernels:
            begin(kernels)  # training usually follows
        first, rest = _count_first(pieces, pattern, spellings, done)
        if rest is None:
            return PretokenCounts(pattern, *first)
        pieces = rest

    with RunFile(spill_folder) if memory is not None else nullcontext() as spilled:
        counters = [_Counter(memory and memory // threads, spilled, forecast) for _ in range(threads)]
        counters[0].add(first.data, 0, first.offsets[1:], first.counts)
        share_out(pieces, [count_with(counter) for counter in counters], done)
        while len(counters) > 1 and not spilled:
            for part in counters.pop().table.parts():
                counters[0].add(part.data, 0, part.offsets[1:], part.counts)
        if not spilled:
            return PretokenCounts(pattern, *counters[0].table.export())
        share_out(counters, [_Counter.spill] * len(counters), lambda counter: None)
        del counters
        step = _combining(progress, spilled.rows)
        counts = PretokenCounts(pattern, *merge_on_disk(spilled.runs(), spill_folder, memory, step))
        counts.spilled_runs, counts.spilled_bytes = len(spilled), spilled.nbytes
        return counts


def _any_of(spellings: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return a regex that matches the longest spelling at a place; None without spellings."""
    longest_first = sorted((text_bytes(spelling) for spelling in spellings), key=len, reverse=True)
    return re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None


def _count_first(
    pieces: Iterator[Block],
    pattern: Splitter,
    spellings: re.Pattern[bytes] | None,
    done: Callable[[Block], None],
) -> tuple[Counted, Iterator[Block] | None]:
    """Count up to FIRST_BYTES in plain Python, which takes less time than compiling the kernels.

    Return the counts, and the remaining pieces or None.
    """
    counter: Counter[bytes] = Counter()
    left = FIRST_BYTES
    for piece in pieces:
        left -= piece.size
        if left < 0:
            return Counted.of(counter), chain([piece], pieces)
        parts = cut_out(piece, spellings)
        for start, end in pairwise(parts.offsets.tolist()):
            counter.update(pattern.pretokens(parts.data[start:end].tobytes()))
        done(piece)
    return Counted.of(counter), None


class _Counter:
    """One thread's table, which spills to disk when full."""

    def __init__(self, limit: int | None, spilled: RunFile | None, forecast: MergeForecast | None):
        self.table = CountTable(limit)
        self._spilled, self._forecast = spilled, forecast
        # Sorting takes about 80 bytes per row, so a run takes a fifth of the limit; growing leaves that much free.
        self._run_rows = RUN_ROWS if limit is None else min(RUN_ROWS, limit // 400)

    def add(
        self,
        data: np.ndarray,
        start: int,
        ends: np.ndarray,
        weights: np.ndarray | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        done = 0
        while (done := self.table.add(data, start, ends, weights, done, check)) < len(ends):
            self.spill(check)

    def spill(self, check: Callable[[], None]) -> None:
        """Write the table to disk as sorted runs and clear it."""
        assert self._spilled is not None, "a table without a limit never fills"
        for part in self.table.parts(self._run_rows):
            check()
            if self._forecast is not None:
                self._forecast.add(part)
            self._spilled.write(batches(in_order(part)), check)
        self.table.clear()


def _combining(progress: Progress | None, total: int) -> Callable[[int], None]:
    return (lambda done: None) if progress is None else (lambda done: progress("combine", done, total))


def check_budget(memory: int | None) -> None:
    """Raise ValueError unless `memory` is None or a number of bytes of at least LEAST_MEMORY."""
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < LEAST_MEMORY):
        raise ValueError(f"memory is in bytes, at least {LEAST_MEMORY:,}, or None, not {memory!r}")
