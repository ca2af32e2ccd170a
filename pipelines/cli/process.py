"""The process of a command line: its standard streams and Ctrl-C."""

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeVar

from pipelines.cli import waiting

T = TypeVar("T")
# The `filename` of an OSError about standard output.
STDOUT = "standard output"
# Standard streams in the order of their descriptors. A closed stream is opened in the opposite mode: its use fails.
_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))

REPEAT_SECONDS = 0.01
PARENT_SECONDS = 0.2
# OpenMP threads that spin while they wait waste CPU time when other processes share the cores. Verbs that compute for
# seconds on all cores let them sleep. OpenMP reads this when torch loads.
PASSIVE_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}

interrupts: list[int] = []
"""The number of each signal, such as Ctrl-C, that raised KeyboardInterrupt since `prepare`"""


class StoppedBySignal(KeyboardInterrupt):
    """The signal `number` has stopped a training."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stdout(io.TextIOBase):
    """The current sys.stdout, with OSErrors that name it."""

    def stream(self) -> TextIO:
        """Return the stream to write to."""
        return sys.stdout

    def write(self, text: str) -> int:
        waiting.end()
        return self._do(lambda stream: stream.write(text))

    def flush(self) -> None:
        self._do(lambda stream: stream.flush())

    def _do(self, action: Callable[[TextIO], T]) -> T:
        stream = self.stream()
        try:
            # During a progress bar sys.stdout is rich's proxy, which prints through this class again.
            return action(getattr(stream, "rich_proxied_file", stream))
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None

    def isatty(self) -> bool:
        return self.stream().isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed declares an attribute
        return getattr(self.stream(), "encoding", None) or "utf-8"

    def discard(self) -> None:
        """Drop unwritten output and all later output."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def prepare() -> None:
    """Prepare the process to run a verb: record each Ctrl-C in `interrupts`.

    Output streams print characters that their encoding lacks as escapes.
    """
    for name, mode, flags in _STREAMS:
        if getattr(sys, name) is None:
            # Takes the lowest free descriptor, which is that of the closed stream. Otherwise a file opened later would
            # take it, and libraries that write to the stream would write to that file.
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL):  # a shell may ignore it
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = _repeat_ignored_interrupt


def interrupt(number: int, frame: FrameType | None) -> None:
    """Record a signal and raise KeyboardInterrupt: a handler of signals.

    While PyTorch's own modules are executed, it waits: their C++ code may call Python, and aborts if that raises. It
    also waits while Python reports an exception that it ignores, because an interrupt would be ignored, too.
    """
    if _is_within(_start_repeating, frame):  # an exception there is ignored, too; `_repeat` sends it again
        return
    in_torch = (
        frame is not None and frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith("torch.")
    )
    if in_torch or _is_within(_repeat_ignored_interrupt, frame):
        threading.Timer(REPEAT_SECONDS, _send_to_main, (number,)).start()
        return
    interrupts.append(number)
    raise KeyboardInterrupt


@contextmanager
def handle(number: int, handler: Any) -> Iterator[None]:
    """Handle a signal with `handler` inside the block. Has no effect outside the main thread."""
    try:
        before = signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def resumable(folder: Path, finished: str) -> Iterator[None]:
    """Say after an interrupt that `folder` keeps the `finished` work, such as "ranges", and that it is reused."""
    try:
        yield
    except KeyboardInterrupt as error:
        if folder.is_dir() and any(not path.name.endswith(".partial") for path in folder.iterdir()):
            error.add_note(f"{folder} keeps the finished {finished}, and the same command resumes from them")
        raise


def _repeat_ignored_interrupt(ignored: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that arrived in a destructor or a callback, where Python prints an exception and goes on."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        _start_repeating(signal.SIGINT)
    else:
        sys.__unraisablehook__(ignored)


def _start_repeating(number: int) -> None:
    """Start a thread that repeats a signal until it is recorded."""
    threading.Thread(target=_repeat, args=(number, len(interrupts)), daemon=True).start()


def _repeat(number: int, recorded: int) -> None:
    """Send a signal to the main thread, until `interrupt` has recorded more than `recorded` signals.

    Another handler gets the signal once.
    """
    while True:
        time.sleep(REPEAT_SECONDS)
        if len(interrupts) > recorded:
            return
        _send_to_main(number)
        if signal.getsignal(number) is not interrupt:
            return


def _is_within(function: Callable[..., Any], frame: FrameType | None) -> bool:
    """Return whether `frame` belongs to a call of `function`, directly or through other calls."""
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


def _send_to_main(number: int) -> None:
    """Send a signal to the main thread, unless `finish` has restored the system's handling."""
    if callable(signal.getsignal(number)):
        signal.pthread_kill(threading.main_thread().ident or 0, number)  # wakes a thread that sleeps or waits


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C has come: a library that was being imported may have swallowed the first.

    Has no effect where Python handles Ctrl-C itself, as in a notebook: there the signal may have ended an earlier call.
    """
    if interrupts and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        raise KeyboardInterrupt


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, even by SIGKILL. Its files are whole at any moment.

    Has no effect on Windows, where the id of a parent stays the same.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def read_standard_input() -> bytes:
    """Return the bytes of standard input; an OSError names it."""
    try:
        with waiting.pause_line():
            return sys.stdin.buffer.read()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard input") from None


def finish() -> None:
    """Flush standard output and restore Ctrl-C after a verb, so that Python exits without printing an error.

    Output that is still unwritten is messages, not results; an error in writing them is ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(OSError):
        Stdout().flush()
        return
    Stdout().discard()


def end_at_once(status: int) -> NoReturn:
    """End the process with `status`, without the usual shutdown of Python."""
    finish()
    sys.stderr.flush()
    os._exit(status)
