"""Orders of the single bytes' ids, rules of encoding, and ByteLevel's alphabet, which spells tokens in files.

The alphabet maps each byte to one printable character: its Latin-1 character if that is printable, otherwise the next
unused character from U+0100 on.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

# Printable characters first, then the others. Only ties in training depend on the order.
GPT2_BYTE_ORDER = bytes([*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173])
RAW_BYTE_ORDER = bytes(range(256))
BYTE_ORDERS = {"gpt2": GPT2_BYTE_ORDER, "raw": RAW_BYTE_ORDER}

# Rules that turn a pretoken into ids.
BY_MERGES = "merges"  # apply the listed merge of lowest rank, leftmost first
WHOLE_FIRST = "whole pretoken, then merges"  # Hugging Face's ignore_merges
BY_RANKS = "whole pretoken, then ranks"  # tiktoken: join any two neighbours that form a token, lowest id first

_PRINTABLE = 188
_BATCH_CHARACTERS = 1 << 22
BYTE_TO_CHARACTER = {
    byte: chr(byte) if i < _PRINTABLE else chr(256 + i - _PRINTABLE) for i, byte in enumerate(GPT2_BYTE_ORDER)
}
_CHARACTERS = "".join(BYTE_TO_CHARACTER[byte] for byte in range(256))
# The fast codec needs NUL for byte 0, which the alphabet spells U+0100.
_NUL = BYTE_TO_CHARACTER[0]
_BYTES = codecs.charmap_build("\0" + _CHARACTERS[1:])


def spell(token: bytes) -> str:
    """Return a token spelled in ByteLevel's alphabet."""
    return codecs.charmap_decode(token, "strict", _CHARACTERS)[0]


def unspell(spelling: str) -> bytes:
    """Return the bytes of a token spelled in ByteLevel's alphabet. Raises KeyError for any other character."""
    if "\0" in spelling:
        raise KeyError("\0")
    try:
        return codecs.charmap_encode(spelling.replace(_NUL, "\0"), "strict", _BYTES)[0]
    except UnicodeEncodeError as error:
        raise KeyError(spelling[error.start]) from None


def unspell_all(spellings: Sequence[str]) -> list[bytes]:
    """Return the bytes of many spelled tokens. Raises KeyError as `unspell` does."""
    tokens: list[bytes] = []
    for batch in batches(spellings):
        joined = unspell("".join(batch))
        tokens += [joined[start:end] for start, end in pairwise(accumulate(map(len, batch), initial=0))]
    return tokens


def batches(spellings: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield spellings in batches that take little memory when joined: tokens of a long run can have megabytes."""
    ends = list(accumulate(map(len, spellings), initial=0))
    first = 0
    while first < len(spellings):
        last = max(first + 1, bisect_right(ends, ends[first] + _BATCH_CHARACTERS) - 1)
        yield spellings[first:last]
        first = last
