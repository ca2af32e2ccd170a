"""Errors and warnings as one line on standard error."""

import sys
from contextlib import suppress

from pipelines.cli import waiting
from pipelines.cli.escapes import as_options, safe


class UsageError(ValueError):
    """A mistake in a command line; the exit status is 2."""


def complain(command: str, text: str) -> None:
    """Print one line about the `bytelm` command `command` to standard error."""
    text = safe(as_options(text))
    with waiting.pause_line(), suppress(OSError):
        print(f"bytelm {command}: {text}" if command else f"bytelm: {text}", file=sys.stderr)


def one_sentence(error: BaseException) -> str:
    """Return `error` as one line; for a failed system call, the reason and the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
