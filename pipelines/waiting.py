"""A line for people who wait: that a command is at work although it has printed nothing yet."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from pipelines.errors import complain
from pipelines.stdout import Stdout

PATIENCE = 1.0  # seconds; together with the imports before it less than two


@contextmanager
def explained(command: str, quiet: bool) -> Iterator[None]:
    """Say on standard error that the work has begun, unless it prints something within a second or `quiet` is set."""

    def explain() -> None:
        if not Stdout.used:
            complain(command, "loading PyTorch ..." if "torch" in sys.modules else "working ...")

    timer = Timer(PATIENCE, explain)
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
