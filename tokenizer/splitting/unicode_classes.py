"""The class of each code point (letter, number, mark or white space) as tiktoken and tokenizers define it.

The classes follow the Unicode version of tiktoken's regex engine. The installed Python and `regex` differ from it on
thousands of code points. The classes were probed from tiktoken and committed as `unicode_classes.bin`, in runs of equal
class. A test checks every code point. `python -m tokenizer.splitting.unicode_classes` writes the file again; it needs
tiktoken.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import groupby
from pathlib import Path

CODE_POINTS = 0x110000
# Disjoint properties. The class of the first is 1; class 0 holds all other code points.
PROPERTIES = (r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\s")
OTHER, UPPER, LOWER, TITLE, MODIFIER, LETTER_OTHER, MARK, NUMBER, SPACE = range(9)

# One little-endian uint32 per run: the class in the low four bits, the length above them.
_FILE = Path(__file__).with_name("unicode_classes.bin")


@cache
def code_point_classes() -> bytes:
    """Return the class of each code point, one byte each."""
    runs = _FILE.read_bytes()
    single = [bytes([number]) for number in range(16)]
    table = b"".join([single[run & 15] * (run >> 4) for (run,) in struct.iter_unpack("<I", runs)])
    assert len(table) == CODE_POINTS
    return table


@cache
def classes_digest() -> str:
    """Return the SHA-256 of the table in hexadecimal. Fingerprints of patterns that read the table include it."""
    import hashlib

    return hashlib.sha256(code_point_classes()).hexdigest()


def probe_tiktoken() -> bytes:
    """Return the table, built by matching every code point with tiktoken's regex engine."""
    import tiktoken

    single_bytes = {bytes([byte]): byte for byte in range(256)}
    everything = "".join(chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000)
    table = bytearray(CODE_POINTS)
    for number, prop in enumerate(PROPERTIES, start=1):
        # tiktoken drops text that its pattern does not match, so only members are left.
        probe = tiktoken.Encoding("probe", pat_str=prop, mergeable_ranks=single_bytes, special_tokens={})
        for member in bytes(probe.encode_ordinary(everything)).decode():
            assert not table[ord(member)], f"{prop} overlaps another property"
            table[ord(member)] = number
    return bytes(table)


def write_table(table: bytes) -> None:
    """Write the table to `unicode_classes.bin` as runs of equal class."""
    runs = [len(list(run)) << 4 | number for number, run in groupby(table)]
    _FILE.write_bytes(struct.pack(f"<{len(runs)}I", *runs))


if __name__ == "__main__":
    write_table(probe_tiktoken())
