"""Which code points are letters, numbers, marks and white space, as tiktoken and tokenizers see them.

The classes follow the Unicode version compiled into tiktoken's regex engine, not the one of the installed
Python or `regex` (they differ on thousands of code points). They are probed from tiktoken once, committed as
`unicode_classes.npz` (runs of equal class) and proved by a test over every code point.
Write the file anew with `python -m tokenizer.unicode_classes` (needs tiktoken).
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np

CODE_POINTS = 0x110000
# Disjoint properties, in the order of their class numbers; class 0 is everything else.
PROPERTIES = (r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\s")
OTHER, UPPER, LOWER, TITLE, MODIFIER, LETTER_OTHER, MARK, NUMBER, SPACE = range(9)
LETTERS = (UPPER, LOWER, TITLE, MODIFIER, LETTER_OTHER)

_FILE = Path(__file__).with_name("unicode_classes.npz")


@cache
def code_point_classes() -> np.ndarray:
    """The class of every code point: uint8 of shape (0x110000,), read-only."""
    with np.load(_FILE) as runs:
        table = np.repeat(runs["classes"], runs["lengths"])
    assert table.dtype == np.uint8
    assert table.shape == (CODE_POINTS,)
    table.flags.writeable = False
    return table


@cache
def classes_digest() -> str:
    """SHA-256 of the table, in hexadecimal; part of every fingerprint whose pattern reads the table."""
    return hashlib.sha256(code_point_classes().tobytes()).hexdigest()


def probe_tiktoken() -> np.ndarray:
    """Build the table by asking tiktoken's regex engine about every code point."""
    import tiktoken

    single_bytes = {bytes([byte]): byte for byte in range(256)}
    everything = "".join(chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000)
    table = np.zeros(CODE_POINTS, dtype=np.uint8)
    for number, prop in enumerate(PROPERTIES, start=1):
        # tiktoken drops the text that its pattern does not match, so what is left are the members.
        probe = tiktoken.Encoding("probe", pat_str=prop, mergeable_ranks=single_bytes, special_tokens={})
        members = np.array([ord(c) for c in bytes(probe.encode_ordinary(everything)).decode()])
        assert not table[members].any(), f"{prop} overlaps another property"
        table[members] = number
    return table


def write_table(table: np.ndarray) -> None:
    """Write the table as runs of equal class."""
    starts = np.flatnonzero(np.diff(table, prepend=table[0] + 1))
    lengths = np.diff(starts, append=len(table)).astype(np.uint32)
    np.savez_compressed(_FILE, classes=table[starts], lengths=lengths)


if __name__ == "__main__":
    write_table(probe_tiktoken())
