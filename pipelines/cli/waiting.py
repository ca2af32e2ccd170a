"""Lines on standard error that say what a command does until its first output, and later what it imports or compiles.

The first line comes after PATIENCE seconds, the next ones INTERVAL apart, and later further apart. On a terminal one
line is updated in place.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

PATIENCE = 1.0  # seconds; less than two together with the imports before it
INTERVAL = 2.0  # seconds, as long as the wait is below 20
NAMES = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
OURS = ("__main__", "bytelm", "pipelines", "lm", "tokenizer", "corpora")

_step = "working"
_command: str | None = None  # whose lines are written; None: nobody's
_lines: "_Lines | None" = None


def doing(step: str) -> None:
    """Name the step that the command begins, such as "drawing the figures"."""
    global _step
    _step = step
    _begin(preparation)


def _begin(what: Callable[[], str | None]) -> None:
    """Write lines that say `what`, unless there are some already."""
    global _lines
    if _command is not None and _lines is None:
        with suppress(RuntimeError):  # a process at its limit of memory or threads works without the lines
            _lines = _Lines(_command, what)


def activity() -> str:
    """Return what this process is doing: importing, compiling, or else the step last named."""
    return preparation() or _step


def preparation() -> str | None:
    """Return what this process is importing or compiling, if anything."""
    kernels = sys.modules.get("tokenizer.first_use")
    for name, module in [*sys.modules.items()]:  # the outermost import comes first
        package = name.partition(".")[0]
        if package not in OURS and _is_being_imported(module):
            return f"importing {NAMES.get(package, package)}"
    if _is_numba_compiling() or (kernels and kernels.is_compiling()):
        return "compiling kernels, once"
    return None


def _is_numba_compiling() -> bool:
    """Return whether another thread compiles a kernel: it holds numba's lock."""
    compiler = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(
        getattr(compiler, "global_compiler_lock", None), "_lock", None
    )  # its is_locked sees this thread only
    if lock is None or not lock.acquire(blocking=False):
        return lock is not None
    lock.release()
    return False


def _is_being_imported(module: ModuleType) -> bool:
    # Any other way to read an attribute of a lazy module would import the module.
    spec = object.__getattribute__(module, "__dict__").get("__spec__") if isinstance(module, ModuleType) else None
    return bool(getattr(spec, "_initializing", False))


@contextmanager
def explain(command: str, quiet: bool) -> Iterator[None]:
    """Say on standard error what the command is doing until `end`, then what its steps import or compile.

    Says nothing if `quiet`.

    If torchrun started this process, only rank 0 says anything.
    """
    global _command, _step
    _command = None if quiet or not is_first_process() else command
    _step = "working"
    _begin(activity)
    try:
        yield
    finally:
        _command = None
        end()


def is_first_process() -> bool:
    """Return whether this process is the only one, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def end() -> None:
    """End the lines of this step: the command prints something else."""
    global _lines
    lines, _lines = _lines, None
    if lines is not None:
        lines.end()


@contextmanager
def pause_line() -> Iterator[None]:
    """Erase the line on a terminal and write none, while somebody types or another line is printed."""
    lines = _lines
    if lines is None:
        yield
        return
    with lines.lock:
        lines.erase()
        yield


class _Lines:
    """A thread that writes the lines."""

    def __init__(self, command: str, what: Callable[[], str | None]) -> None:
        from threading import Event, RLock, Thread  # slow to import for --help

        self._command, self._what = command, what
        self._in_place = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self.lock, self._ended = RLock(), Event()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        started, pause = time.monotonic(), PATIENCE
        while not self._ended.wait(pause):
            seconds = time.monotonic() - started
            with suppress(MemoryError):
                if what := self._what():
                    self._write(f"bytelm {self._command}: {what}, {seconds:.0f} s ...")
            if not self._in_place:
                pause = max(INTERVAL, seconds / 10)

    def _write(self, line: str) -> None:
        with self.lock, suppress(OSError):
            if self._ended.is_set():
                return
            if self._in_place:
                self._shown = True
                line = "\r\x1b[K" + line[: (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1]
            print(line, end="" if self._in_place else "\n", file=sys.stderr, flush=True)

    def erase(self) -> None:
        with self.lock, suppress(OSError):
            if self._shown:
                self._shown = False
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self._ended.set()
        self.erase()
