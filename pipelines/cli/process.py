"""The process of a command line: its standard streams and Ctrl-C."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from pipelines.cli import waiting
from pipelines.cli.stdout import Stdout

# Standard streams, in the order of their descriptors. A closed stream is opened in the opposite mode, so that its use
# fails.
_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))


def prepare() -> list[int]:
    """Prepare the process to run a verb; return a list that gets an entry for each Ctrl-C.

    Characters that the encoding of an output stream lacks are printed as escapes.
    """
    for name, mode, flags in _STREAMS:
        if getattr(sys, name) is None:
            # This takes the lowest free descriptor, the closed stream's. A file opened later would take it otherwise,
            # and libraries that write to the stream would write to that file.
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    interrupts: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, interrupt)
    return interrupts


def read_standard_input() -> bytes:
    """Return all of standard input; an OSError names it."""
    try:
        with waiting.paused():
            return sys.stdin.buffer.read()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard input") from None


def finish() -> None:
    """Flush standard output and restore Ctrl-C, so that Python exits without a message of its own.

    The verb is done: Ctrl-C only ends the process, and any unwritten output is messages.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(OSError):
        Stdout().flush()
        return
    Stdout().discard()


def end_at_once(status: int) -> NoReturn:
    """End the process with `status`, without the work that Python does at the end of a process."""
    finish()
    sys.stderr.flush()
    os._exit(status)
