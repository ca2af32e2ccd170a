"""Errors and warnings as one line on standard error."""

import sys
from contextlib import suppress

from pipelines.escapes import safe


def complain(command: str, text: str) -> None:
    """Print one line about the `bytelm` command `command` to standard error."""
    with suppress(OSError):
        print(f"bytelm {command}: {safe(text)}" if command else f"bytelm: {safe(text)}", file=sys.stderr)


def one_sentence(error: BaseException) -> str:
    """Return `error` as a line for a person; a failed system call names what failed and where."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
