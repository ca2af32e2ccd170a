"""Text from generated tokens: complete characters only, without anything that may belong to a stop string."""

import codecs
from collections.abc import Sequence


class GrowingText:
    """A text to which tokens are added. It releases only text that later tokens cannot change.

    A character or a stop string may span several tokens. The text ends before the first stop string that is complete;
    if several end at the same place, before the longest.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = stops
        self.stopped = False
        """Whether a stop string ended the text"""
        self.characters = 0
        """Characters decoded so far, including those held back"""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def prompt(self, piece: bytes) -> str:
        """Add bytes in which stop strings do not count, and return the complete characters."""
        return self._decode(piece)

    def add(self, piece: bytes) -> str:
        """Add bytes and return the text that can no longer change."""
        return self._release(self._decode(piece))

    def end(self) -> str:
        """Return the rest of the text. An incomplete character becomes U+FFFD."""
        text = self._release(self._decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _decode(self, piece: bytes, final: bool = False) -> str:
        text = self._decoder.decode(piece, final)
        self.characters += len(text)
        return text

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
