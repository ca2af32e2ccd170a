"""Compilation of the kernels at first use on a machine, which takes seconds.

Texts of up to `encoding.short.FIRST_BYTES` are handled in plain Python instead. For larger texts two processes compile
in parallel and share the cache on disk.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from tokenizer.workers import thread_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.vocabulary import Vocabulary


def compiled(kernel) -> bool:
    """Return whether a kernel is compiled for this processor, in this process or in the cache on disk."""
    if kernel.overloads:
        return True
    cache = kernel._cache
    if not hasattr(cache, "_cache_file"):
        return False
    with suppress(OSError):
        here = kernel.targetctx.codegen().magic_tuple()
        return any(processor == here for _, processor, _ in cache._cache_file._load_index())
    return False


def begin(part: str) -> None:
    """Start compiling a part of the kernels (see `PARTS`) in another process.

    Does nothing if the part is already compiled, on a single core, or if no process can be started.
    """
    kernels, _ = PARTS[part]()
    if part in _running or not _may_start() or all(map(compiled, kernels)):
        return
    if not all(hasattr(kernel._cache, "_cache_file") for kernel in kernels):
        return  # the cache has no writable folder, so another process could not pass on its result
    code = f"import sys; sys.path[:] = {sys.path!r}; from tokenizer import first_use; first_use.compile_part({part!r})"
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        _running[part] = subprocess.Popen([sys.executable, "-c", code], stdin=quiet, stdout=quiet, stderr=quiet)


def wait(part: str) -> None:
    """Wait until the process from `begin` has compiled the part or failed, then end the process."""
    process = _running.pop(part, None)
    if process is None:
        return
    kernels, _ = PARTS[part]()
    while process.poll() is None and not all(map(compiled, kernels)):
        time.sleep(0.02)
    process.kill()
    process.wait()


_running: dict[str, subprocess.Popen] = {}


@atexit.register
def _end_all() -> None:
    for process in _running.values():
        process.kill()
        process.wait()


def _may_start() -> bool:
    return thread_count(None) > 1 and bool(sys.executable) and not getattr(sys, "frozen", False)


def compile_part(part: str) -> None:
    """Compile a part of the kernels by running it on a tiny input."""
    _, use = PARTS[part]()
    use()


def compile_kernels() -> None:
    """Compile all kernels for training and encoding, so that later calls need not wait."""
    for part in PARTS:
        compile_part(part)


def compile_elsewhere() -> None:
    """Compile all kernels in other processes, so that compiling takes no memory in this one."""
    for part in PARTS:
        begin(part)
    for part, process in [*_running.items()]:
        process.wait()
        del _running[part]


def _counting() -> tuple[list, Callable[[], None]]:
    from tokenizer.kernels.counts import count, export
    from tokenizer.kernels.scan import scan

    def use() -> None:
        from tokenizer.documents import single_block
        from tokenizer.splitting.patterns import resolve_pattern
        from tokenizer.splitting.pretokenize import pretoken_ends
        from tokenizer.training.count_table import CountTable

        block, table = single_block(b"a"), CountTable()
        for ends in pretoken_ends(block, resolve_pattern("gpt2")):
            table.add(block.data, 0, ends)
        table.export()

    return [scan, count, export], use


def _merging() -> tuple[list, Callable[[], None]]:
    from tokenizer.kernels import merge_loop as merge_kernel

    def use() -> None:
        import numpy as np

        from tokenizer.splitting.patterns import resolve_pattern
        from tokenizer.training.counting import PretokenCounts
        from tokenizer.training.merging import empty_training, learn_merges

        data, offsets, counts = np.full(3, 97, dtype=np.uint8), np.array([0, 3]), np.array([2])
        few = PretokenCounts(resolve_pattern("gpt2"), data, offsets, counts)
        # The merge loop comes first: the waiting process needs the other kernels earlier and compiles them itself.
        merge_kernel.merge(empty_training(few, 1), np.empty((1, 2), dtype=np.int32), 1, 2**62, 1)
        learn_merges(few, 1, byte_order=bytes(range(256)), min_frequency=1, max_token_length=None)

    return [merge_kernel.merge], use


def _spilling() -> tuple[list, Callable[[], None]]:
    from tokenizer.kernels import spill as spill_kernel

    def use() -> None:
        import numpy as np

        from tokenizer.training.spilling import Counted, batches, in_order, merge

        data, offsets = np.frombuffer(b"ba", dtype=np.uint8), np.arange(3)
        counted = in_order(Counted(data, offsets, np.ones(2, dtype=np.int64)))
        list(merge([batches(counted), batches(counted)]))

    return [spill_kernel.gather, spill_kernel.up_to], use


def _tables() -> tuple[list, Callable[[], None]]:
    from tokenizer.kernels import merges as apply_kernel
    from tokenizer.kernels import tables as table_kernel

    def use() -> None:
        from tokenizer.encoding.bulk import EncodingTables

        EncodingTables(_bytes_alone())

    kernels = [table_kernel.insert_tokens, table_kernel.insert_pairs, table_kernel.fill_byte_pairs]
    return [*kernels, apply_kernel.merge_tokens], use


def _encoding() -> tuple[list, Callable[[], None]]:
    from tokenizer.kernels import encode as encode_kernel

    def use() -> None:
        from tokenizer.documents import single_block
        from tokenizer.encoding.bulk import Encoder, EncodingTables

        Encoder(EncodingTables.without_entries(_bytes_alone())).encode(single_block(b""))

    return [encode_kernel.encode], use


def _bytes_alone() -> Vocabulary:
    """Return the vocabulary of the 256 bytes."""
    import numpy as np

    from tokenizer.byte_level import BYTE_ORDERS
    from tokenizer.splitting.patterns import resolve_pattern
    from tokenizer.vocabulary import trained_vocabulary

    return trained_vocabulary(np.empty((0, 2), dtype=np.int32), BYTE_ORDERS["gpt2"], (), resolve_pattern("gpt2"))


# Each part of the kernels: the kernels that show whether the part is compiled, and a function that runs them all.
PARTS: dict[str, Callable[[], tuple[list, Callable[[], None]]]] = {
    "counting": _counting,
    "merging": _merging,
    "spilling": _spilling,
    "tables": _tables,
    "encoding": _encoding,
}
