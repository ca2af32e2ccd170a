"""Counts that do not fit in memory: sorted runs in a temporary file, merged as a stream.

A run is a sequence of batches whose pretokens strictly ascend by their bytes. Merging takes the pretokens up to a
common bound from every run, sorts them and adds up equal ones. It holds one batch of each run at a time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from tokenizer.document_blocks import as_readonly
from tokenizer.training.count_table import Counted

RUN_ROWS = 1 << 20  # sorted at once: about 0.3 s, between which Ctrl-C is handled
RUN_BYTES = 1 << 26
BATCH_ROWS = 8192
BATCH_BYTES = 1 << 18
WINDOW_ROWS = 1 << 18  # sorted at once when runs are merged: about the size of the CPU caches
MOST_RUNS = 128  # merged at once; each may be an open file
RUN_MEMORY = 2 << 20  # most bytes per run during merging, unless a single pretoken is larger

_MADV_PAGEOUT = 21  # of Linux; not in the module mmap

Run = Iterator[Counted]


def in_order(counted: Counted) -> Counted:
    """Return the pretokens sorted by their bytes, with equal ones added up."""
    from tokenizer.kernels import spill as kernel

    if ascends(counted):
        return counted
    data, offsets, counts = map(as_readonly, counted)
    words = np.empty(len(counts), dtype=np.uint64)
    kernel.first_words(data, offsets, words)
    order = np.argsort(words)
    kernel.order_ties(data, offsets, words, order)
    return _gather(counted, order)


def in_order_by_steps(counted: Counted) -> Counted:
    """As `in_order`, in steps between which Ctrl-C is handled."""
    if len(counted.counts) <= RUN_ROWS or ascends(counted):
        return in_order(counted)
    return join(list(merge([batches(in_order(piece)) for piece in pieces(counted)])))


def at_least(counted: Counted, count: int) -> Counted:
    """Return the pretokens that occur at least `count` times."""
    return join([_gather(piece, np.flatnonzero(piece.counts >= count)) for piece in pieces(counted)])


def _gather(counted: Counted, order: np.ndarray) -> Counted:
    """Return the pretokens in `order`, with equal neighbours added up."""
    from tokenizer.kernels import spill as kernel

    data, offsets, counts = map(as_readonly, counted)
    out = Counted.empty(len(order), int(offsets[-1] - offsets[0]))
    n = kernel.gather(data, offsets, counts, order, *out)
    return Counted(out.data[: out.offsets[n]], out.offsets[: n + 1], out.counts[:n])


def ascends(counted: Counted) -> bool:
    """Return whether each pretoken sorts after the one before it."""
    from tokenizer.kernels import spill as kernel

    data, offsets, counts = map(as_readonly, counted)
    return all(
        kernel.ascending(data, offsets, first, min(first + RUN_ROWS, len(counts)))
        for first in range(0, len(counts), RUN_ROWS)
    )


def join(parts: list[Counted]) -> Counted:
    """Return the concatenation of parts."""
    spans = [(int(part.offsets[0]), int(part.offsets[-1])) for part in parts]
    whole = Counted.empty(sum(len(part.counts) for part in parts), sum(end - start for start, end in spans))
    rows = at = 0
    for part, (start, end) in zip(parts, spans, strict=True):
        n = len(part.counts)
        whole.data[at : at + end - start] = part.data[start:end]
        whole.offsets[rows + 1 : rows + n + 1] = part.offsets[1:] + (at - start)
        whole.counts[rows : rows + n] = part.counts
        rows, at = rows + n, at + end - start
    return whole


def _cut(counted: Counted, rows: int, size: int) -> Iterator[Counted]:
    """Yield views of consecutive pretokens: at most `rows` and `size` bytes, or one larger pretoken."""
    data, offsets, counts = counted
    first = 0
    while first < len(counts):
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        last = max(first + 1, min(last, first + rows, len(counts)))
        yield Counted(data, offsets[first : last + 1], counts[first:last])
        first = last


def pieces(counted: Counted) -> Iterator[Counted]:
    """Yield views of bounded size. Counts that are mapped from files leave memory after each view."""
    for piece in _cut(counted, RUN_ROWS, RUN_BYTES):
        yield piece
        _page_out(counted)


def batches(counted: Counted) -> Run:
    """Return counts that are already sorted as a run."""
    return _cut(counted, BATCH_ROWS, BATCH_BYTES)


class _Head:
    """Current batch and row of a run during merging."""

    def __init__(self, batch: Counted, run: Run):
        self.run = run
        self.take(batch)

    def take(self, batch: Counted) -> None:
        self.batch, self.row = batch, 0

    def up_to(self, bound: np.ndarray) -> Counted:
        """Consume and return the next pretokens up to and including `bound`."""
        from tokenizer.kernels import spill as kernel

        data, offsets, counts = map(as_readonly, self.batch)
        first, self.row = self.row, int(kernel.up_to(data, offsets, self.row, len(counts), bound))
        return Counted(data, offsets[first : self.row + 1], counts[first : self.row])


def merge(runs: Iterable[Run]) -> Run:
    """Merge several sorted runs into one, adding up equal pretokens."""
    heads = [_Head(batch, run) for run in runs for batch in [next(run, None)] if batch is not None]
    while heads:
        step = max(1, WINDOW_ROWS // len(heads))
        ends = (head.batch.pretoken(min(head.row + step, len(head.batch.counts)) - 1) for head in heads)
        bound = np.frombuffer(min(ends), dtype=np.uint8)
        pieces = [piece for head in heads if len((piece := head.up_to(bound)).counts)]
        yield in_order(join(pieces))
        for head in heads:
            if head.row == len(head.batch.counts) and (batch := next(head.run, None)) is not None:
                head.take(batch)
        heads = [head for head in heads if head.row < len(head.batch.counts)]


class _NamelessFile:
    """Temporary file without a name, which disappears however the process ends. An OSError names the folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        with self._naming():
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `close` closes it
        self.size = 0

    def write(self, content: bytes | memoryview) -> None:
        with self._naming():
            self._file.write(content)
        self.size += memoryview(content).nbytes

    def read(self, place: int, size: int) -> bytes:
        with self._naming():
            self._file.seek(place)
            return self._file.read(size)

    def map(self, dtype: type[np.generic]) -> np.ndarray:
        """Return the content as an array that outlives the file. Writable, as kernels expect; writes stay in memory."""
        if not self.size:
            return np.empty(0, dtype)
        with self._naming():
            self._file.flush()
            return np.asarray(np.memmap(self._file, dtype=dtype, mode="c"))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # unwritten data of a full disk is not needed
            self._file.close()

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror or error} while counts were spilled to disk; choose another spill folder"
            raise OSError(error.errno, reason, str(self._folder)) from None


class RunFile:
    """Sorted runs in a temporary file in `folder` (default: the system's temporary folder). Writing is thread-safe."""

    def __init__(self, folder: str | os.PathLike[str] | None = None):
        import pyarrow as pa

        self._codec = pa.Codec("lz4_raw")
        self._lock = threading.Lock()
        self._runs: list[list[tuple[int, list[tuple[int, int]]]]] = []  # batches: place, packed and unpacked sizes
        self._file = _NamelessFile(_spill_folder(folder))
        self.rows = 0

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def nbytes(self) -> int:
        return self._file.size

    def write(self, run: Run, check: Callable[[], None] = lambda: None) -> None:
        """Append a run."""
        places = []
        for data, offsets, counts in run:
            check()
            buffers = (np.diff(offsets), np.ascontiguousarray(counts), data[offsets[0] : offsets[-1]])
            packed = [self._codec.compress(buffer, asbytes=True) for buffer in buffers]
            sizes = [(len(part), buffer.nbytes) for part, buffer in zip(packed, buffers, strict=True)]
            with self._lock:
                places.append((self._file.size, sizes))
                self._file.write(b"".join(packed))
                self.rows += len(counts)
        with self._lock:
            self._runs.append(places)

    def runs(self) -> list[Run]:
        """Return the runs written so far. Each can be read once, while no thread writes."""
        return [self._read(places) for places in self._runs]

    def _read(self, places: list[tuple[int, list[tuple[int, int]]]]) -> Run:
        for place, sizes in places:
            buffers = []
            for packed, size in sizes:
                content = self._file.read(place, packed)
                buffers.append(self._codec.decompress(content, decompressed_size=size, asbytes=True))
                place += packed
            lengths = np.frombuffer(buffers[0], dtype=np.int64)
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            yield Counted(np.frombuffer(buffers[2], dtype=np.uint8), offsets, np.frombuffer(buffers[1], dtype=np.int64))


def merge_on_disk(
    runs: list[Run],
    folder: str | os.PathLike[str] | None = None,
    memory: int | None = None,
    step: Callable[[int], None] = lambda done: None,
) -> Counted:
    """Merge any number of runs into arrays that are mapped from temporary files and need not stay in memory.

    memory: limit for merging in bytes. step: called with the number of pretokens read so far from all runs.
    """
    most = MOST_RUNS if memory is None else max(2, min(MOST_RUNS, memory // RUN_MEMORY))
    done = 0

    def counting(run: Run) -> Run:
        nonlocal done
        for batch in run:
            yield batch
            done += len(batch.counts)
            step(done)

    runs = [counting(run) for run in runs]
    with contextlib.ExitStack() as files:
        while len(runs) > most:
            taken = min(most, len(runs) - most + 1)
            file = files.enter_context(RunFile(folder))
            file.write(chain.from_iterable(map(batches, merge(runs[:taken]))))
            runs = runs[taken:] + file.runs()
        return _map(merge(runs), _spill_folder(folder))


def _map(run: Run, folder: Path) -> Counted:
    size = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(_NamelessFile(folder))) for _ in Counted._fields]
        files[1].write(np.zeros(1, dtype=np.int64).data)
        for data, offsets, counts in run:
            for file, array in zip(files, (data, offsets[1:] + size, counts), strict=True):
                file.write(array.data)
            size += len(data)
        kinds: tuple[type[np.generic], ...] = (np.uint8, np.int64, np.int64)
        return Counted(*(file.map(kind) for file, kind in zip(files, kinds, strict=True)))


def _page_out(counted: Counted) -> None:
    """Page out counts mapped from temporary files. Reading the counts loads them again."""
    for array in counted:
        mapped: object = array
        while isinstance(mapped, np.ndarray):
            mapped = mapped.base
        if isinstance(mapped, mmap.mmap) and sys.platform == "linux":
            with contextlib.suppress(OSError):  # Linux before 5.4 cannot
                mapped.madvise(_MADV_PAGEOUT)


def _spill_folder(folder: str | os.PathLike[str] | None) -> Path:
    return Path(folder if folder is not None else tempfile.gettempdir())
