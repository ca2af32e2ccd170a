"""Offsets of tokens in characters: where each byte of a text is among its characters."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

_MARKED = "bytelm.invalid-utf8"
_MARK = 0xD800  # plus the number of invalid bytes that become one U+FFFD; valid UTF-8 has no surrogates


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return chr(_MARK + error.end - error.start), error.end


codecs.register_error(_MARKED, _mark)


def decoded_with_starts(data: bytes, errors: str = "strict") -> tuple[str, list[int] | range]:
    """Return the text of UTF-8, and the byte offset of each character and of the text's end.

    errors: "replace" writes U+FFFD for invalid UTF-8, as `bytes.decode` does; "strict" raises ValueError.
    """
    if errors not in ("replace", "strict"):
        raise ValueError(f"errors must be 'replace' or 'strict', not {errors!r}")
    text = data.decode("utf-8", _MARKED if errors == "replace" else errors)
    if len(text) == len(data) and text.isascii():
        return text, range(len(text) + 1)
    return text.translate(_REPLACED), list(accumulate(map(_byte_length, text), initial=0))


_REPLACED = {_MARK + length: "\ufffd" for length in range(1, 5)}


def _byte_length(character: str) -> int:
    code_point = ord(character)
    if _MARK <= code_point < 0xE000:
        return code_point - _MARK
    return 1 if code_point < 0x80 else 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4


def offsets_of(byte_offsets: Iterable[int], starts: list[int] | range) -> list[int]:
    """Return the index of the character that each byte offset is in. starts: as from `decoded_with_starts`."""
    if isinstance(starts, range):
        return list(byte_offsets)
    return [bisect_right(starts, offset) - 1 for offset in byte_offsets]
