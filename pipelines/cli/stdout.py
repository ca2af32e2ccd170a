"""Standard output, with errors that name it."""

import io
import os
import sys
from typing import Any

from pipelines.cli import waiting

# The `filename` of an OSError about it.
STDOUT = "standard output"


class Stdout(io.TextIOBase):
    """The current sys.stdout; an OSError names it."""

    @property
    def stream(self) -> Any:
        return sys.stdout

    def write(self, text: str) -> int:
        waiting.end()
        return self._do("write", text)

    def flush(self) -> None:
        self._do("flush")

    def _do(self, method: str, *arguments: str) -> Any:
        try:
            # While a progress bar runs, rich replaces sys.stdout with a proxy that would print through us again.
            return getattr(getattr(self.stream, "rich_proxied_file", self.stream), method)(*arguments)
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None

    def isatty(self) -> bool:
        return self.stream.isatty()

    @property
    def encoding(self) -> str:
        return getattr(self.stream, "encoding", None) or "utf-8"

    def discard(self) -> None:
        """Drop unwritten output and all later output."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
