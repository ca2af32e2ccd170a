"""Single bytes: the order of their ids, and ByteLevel's alphabet, in which Hugging Face's files spell tokens.

The alphabet writes every byte as one printable character: itself where it is printable in Latin-1, else the next
character from U+0100 on.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

# Printable characters first, the rest behind. Only ties in training depend on the order.
GPT2_BYTE_ORDER = bytes([*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173])
RAW_BYTE_ORDER = bytes(range(256))
BYTE_ORDERS = {"gpt2": GPT2_BYTE_ORDER, "raw": RAW_BYTE_ORDER}

_PRINTABLE = 188
_BATCH_CHARACTERS = 1 << 22
BYTE_TO_CHARACTER = {
    byte: chr(byte) if i < _PRINTABLE else chr(256 + i - _PRINTABLE) for i, byte in enumerate(GPT2_BYTE_ORDER)
}
_CHARACTERS = "".join(BYTE_TO_CHARACTER[byte] for byte in range(256))
# The codec that is fast needs NUL for the byte 0, which is spelled U+0100.
_NUL = BYTE_TO_CHARACTER[0]
_BYTES = codecs.charmap_build("\0" + _CHARACTERS[1:])


def spell(token: bytes) -> str:
    """A token in ByteLevel's alphabet."""
    return codecs.charmap_decode(token, "strict", _CHARACTERS)[0]


def unspell(spelling: str) -> bytes:
    """The bytes of a token in ByteLevel's alphabet; KeyError for a character that is not in it."""
    if "\0" in spelling:
        raise KeyError("\0")
    try:
        return codecs.charmap_encode(spelling.replace(_NUL, "\0"), "strict", _BYTES)[0]
    except UnicodeEncodeError as error:
        raise KeyError(spelling[error.start]) from None


def unspell_all(spellings: Sequence[str]) -> list[bytes]:
    """The same for many tokens at once."""
    tokens: list[bytes] = []
    for batch in batches(spellings):
        together = unspell("".join(batch))
        tokens += [together[start:end] for start, end in pairwise(accumulate(map(len, batch), initial=0))]
    return tokens


def batches(spellings: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield spellings in batches that are joined in little memory: tokens of a long run have megabytes."""
    ends = list(accumulate(map(len, spellings), initial=0))
    first = 0
    while first < len(spellings):
        last = max(first + 1, bisect_right(ends, ends[first] + _BATCH_CHARACTERS) - 1)
        yield spellings[first:last]
        first = last
