"""Standard output whose errors name it."""

import io
import os
import sys
from collections.abc import Callable
from typing import TextIO, TypeVar

from pipelines.cli import waiting

T = TypeVar("T")
# The `filename` of an OSError about standard output.
STDOUT = "standard output"


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
