"""The process of a command line: its standard streams and Ctrl-C."""

import io
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from pipelines.cli import waiting
from pipelines.cli.stdout import Stdout

# Standard streams in the order of their descriptors. A closed stream is opened in the opposite mode: its use fails.
_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))

REPEAT_SECONDS = 0.01

interrupts: list[int] = []
"""An entry for each Ctrl-C since `prepare`, until a verb handles the signal itself."""


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

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = _repeat_ignored_interrupt


def _repeat_ignored_interrupt(ignored: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that arrived in a destructor or a callback, where Python prints an exception and goes on."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(REPEAT_SECONDS, _interrupt_main).start()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_main() -> None:
    """Send Ctrl-C to the main thread, unless `finish` has restored Python's handling."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # wakes a thread that sleeps or waits


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C has come: a library that was being imported may have swallowed the first."""
    if interrupts:
        raise KeyboardInterrupt


def read_standard_input() -> bytes:
    """Return the bytes of standard input; an OSError names it."""
    try:
        with waiting.paused():
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
