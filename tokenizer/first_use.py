"""Compilation of the kernels in other processes at first use on a machine, which takes seconds.

Plain Python handles texts of up to `encoding.python_encoder.FIRST_BYTES` instead. For larger texts two processes
compile in parallel and share the cache on disk.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module

from tokenizer.workers import thread_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

# The kernels that show whether a part of the kernels is compiled, as module and function.
PARTS = {
    "counting": ("scan.scan", "counts.count", "counts.export"),
    "words": ("bert_words.split_words", "trie.build", "trie_words.encode_long_word"),
    "metaspace": ("metaspace_words.fill_kinds", "metaspace_words.split_metaspace"),
    "word pieces": ("piece_merges.count_characters", "piece_merges.merge_and_find", "likelihood.merge_and_find"),
    "merging": ("merge_loop.merge",),
    "unigram": ("substrings.grow_tree", "lattice.expect", "lattice.find_losses"),
    "spilling": ("spill.gather", "spill.up_to"),
    "tables": (
        "hash_tables.insert_tokens",
        "hash_tables.insert_pairs",
        "hash_tables.fill_byte_pairs",
        "merges.merge_tokens",
    ),
    "encoding": ("encode.encode",),
}
_running: dict[str, subprocess.Popen[bytes]] = {}


def is_compiled(kernel: Dispatcher) -> bool:
    """Return whether a kernel is compiled for this processor, in this process or in the cache on disk.

    Also true if this version of numba does not show it; then this process loads or compiles the kernel.
    """
    if kernel.overloads:
        return True
    try:
        cache = kernel._cache  # type: ignore[attr-defined]  # missing from numba's types
        if cache.cache_path is None:  # no writable folder
            return False
        here = kernel.targetctx.codegen().magic_tuple()
        return any(processor == here for _, processor, _ in cache._cache_file._load_index())
    except (OSError, ImportError):  # ImportError: its file names a module that has moved
        return False
    except (AttributeError, TypeError, ValueError):
        return True


def begin(part: str) -> None:
    """Start compiling a part of the kernels (see `PARTS`) in another process.

    Does nothing if the part is already compiled, on a single core, or if no process can be started.
    """
    kernels = _kernels(part)
    if part in _running or not _may_start() or all(map(is_compiled, kernels)):
        return
    if not all(hasattr(kernel._cache, "_cache_file") for kernel in kernels):  # type: ignore[attr-defined]  # as above
        return  # the cache has no writable folder, so another process could not pass on its result
    code = f"import sys; sys.path[:] = {sys.path!r}; from tokenizer.compilation import compile_part; "
    code += f"compile_part({part!r})"
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        _running[part] = subprocess.Popen([sys.executable, "-c", code], stdin=quiet, stdout=quiet, stderr=quiet)


def wait(part: str) -> None:
    """Wait until the process from `begin` has compiled the part or failed, then end the process."""
    process = _running.get(part)
    if process is None:
        return
    kernels = _kernels(part)
    while process.poll() is None and not all(map(is_compiled, kernels)):
        time.sleep(0.02)
    process.kill()
    process.wait()
    _running.pop(part, None)


def is_compiling() -> bool:
    """Return whether another process is compiling kernels for this one."""
    return any(process.poll() is None for process in [*_running.values()])


@atexit.register
def _end_all() -> None:
    for process in _running.values():
        process.kill()
        process.wait()


def _may_start() -> bool:
    return thread_count(None) > 1 and bool(sys.executable) and not getattr(sys, "frozen", False)


def _kernels(part: str) -> list[Dispatcher]:
    places = (place.split(".") for place in PARTS[part])
    return [getattr(import_module(f"tokenizer.kernels.{module}"), name) for module, name in places]


def compile_elsewhere() -> None:
    """Compile all kernels in other processes, so that compiling takes no memory in this one."""
    for part in PARTS:
        begin(part)
    for part, process in [*_running.items()]:
        process.wait()
        del _running[part]
