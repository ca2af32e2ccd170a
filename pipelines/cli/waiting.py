"""A line on standard error while a command works and has printed nothing yet."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from pipelines.cli.errors import complain
from pipelines.cli.stdout import Stdout

PATIENCE = 1.0  # seconds; less than two together with the imports before it


@contextmanager
def explained(command: str, quiet: bool) -> Iterator[None]:
    """Say on standard error that the command works, unless it prints within PATIENCE or `quiet` is set."""

    def explain() -> None:
        if not Stdout.used:
            complain(command, "loading PyTorch ..." if "torch" in sys.modules else "working ...")

    timer = Timer(PATIENCE, explain)
    timer.daemon = True
    if not quiet:
        with suppress(RuntimeError):  # a process at its limit of memory or threads works without this line
            timer.start()
    try:
        yield
    finally:
        timer.cancel()
