"""Which code points are letters, numbers, marks and white space, as tiktoken and tokenizers see them.

The classes follow the Unicode version compiled into tiktoken's regex engine, not the one of the installed
Python or `regex` (they differ on thousands of code points). They are probed from tiktoken once, committed as
`unicode_classes.bin` (runs of equal class) and proved by a test over every code point.
Write the file anew with `python -m tokenizer.splitting.unicode_classes` (needs tiktoken).
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import groupby
from pathlib import Path

CODE_POINTS = 0x110000
# Disjoint properties, in the order of their class numbers; class 0 is everything else.
PROPERTIES = (r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\s")
OTHER, UPPER, LOWER, TITLE, MODIFIER, LETTER_OTHER, MARK, NUMBER, SPACE = range(9)

# Little-endian 32-bit numbers, one a run: its class in the low four bits, above them its length.
_FILE = Path(__file__).with_name("unicode_classes.bin")


@cache
def code_point_classes() -> bytes:
    """The class of every code point, a byte each."""
    runs = _FILE.read_bytes()
    single = [bytes([number]) for number in range(16)]
    table = b"".join([single[run & 15] * (run >> 4) for (run,) in struct.iter_unpack("<I", runs)])
    assert len(table) == CODE_POINTS
    return table


@cache
def classes_digest() -> str:
    """SHA-256 of the table, in hexadecimal; part of every fingerprint whose pattern reads the table."""
    import hashlib

    return hashlib.sha256(code_point_classes()).hexdigest()


def probe_tiktoken() -> bytes:
    """Build the table by asking tiktoken's regex engine about every code point."""
    import tiktoken

    single_bytes = {bytes([byte]): byte for byte in range(256)}
    everything = "".join(chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000)
    table = bytearray(CODE_POINTS)
    for number, prop in enumerate(PROPERTIES, start=1):
        # tiktoken drops the text that its pattern does not match, so what is left are the members.
        probe = tiktoken.Encoding("probe", pat_str=prop, mergeable_ranks=single_bytes, special_tokens={})
        for member in bytes(probe.encode_ordinary(everything)).decode():
            assert not table[ord(member)], f"{prop} overlaps another property"
            table[ord(member)] = number
    return bytes(table)


def write_table(table: bytes) -> None:
    """Write the table as runs of equal class."""
    runs = [len(list(run)) << 4 | number for number, run in groupby(table)]
    _FILE.write_bytes(struct.pack(f"<{len(runs)}I", *runs))


if __name__ == "__main__":
    write_table(probe_tiktoken())
