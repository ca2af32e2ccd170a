"""Sets of characters that normalizers and pre-tokenizers of `tokenizers` distinguish.

They were probed from `tokenizers`, because they follow several Unicode versions, and committed as
`step_characters.bin`: JSON compressed by zlib. A test checks every code point.
`python -m tokenizer.splitting.step_characters` writes the file again; it needs tokenizers.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.splitting.unicode_properties import as_ranges, gaps_of, ranges_of

_FILE = Path(__file__).with_name("step_characters.bin")


class Tables(NamedTuple):
    """Sets of code points, stored as gaps between the ends of ranges."""

    accents: list[int]  # that StripAccents deletes
    words: list[int]  # that Whitespace joins to words
    scripts: list[list[int]]  # that UnicodeScripts distinguishes; other characters belong to any script


@cache
def tables() -> Tables:
    """Return the committed tables."""
    return Tables(**json.loads(zlib.decompress(_FILE.read_bytes())))


@cache
def table_digest() -> str:
    """Return the SHA-256 of the decompressed table in hexadecimal."""
    import hashlib

    return hashlib.sha256(zlib.decompress(_FILE.read_bytes())).hexdigest()


def character_class(gaps: list[int]) -> str:
    """Return a set as the content of a character class of `re`."""
    return "".join(f"\\U{first:08X}-\\U{last:08X}" for first, last in ranges_of(gaps))


# The rest of this module writes the table.


def probe_tokenizers() -> Tables:
    """Return the tables, built by passing every code point through `tokenizers`."""
    from tokenizers import normalizers, pre_tokenizers

    characters = [chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]
    strip, split = normalizers.StripAccents().normalize_str, pre_tokenizers.Whitespace().pre_tokenize_str
    return Tables(
        accents=_gaps([c for c in characters if strip(c) == ""]),
        words=_gaps([c for c in characters if len(split(f"a{c}a")) == 1]),
        scripts=_probe_scripts(characters),
    )


def _probe_scripts(characters: list[str]) -> list[list[int]]:
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    members: dict[str, list[str]] = {}  # by the first character of each script
    last = ""
    for c in characters:
        if len(split(f"a{c}")) == len(split(f"字{c}")) == 1:
            continue  # of any script
        if not last or len(split(last + c)) > 1:
            last = next((first for first in members if len(split(first + c)) == 1), c)
        members.setdefault(last, []).append(c)
    return [_gaps(found) for found in members.values()]


def _gaps(members: list[str]) -> list[int]:
    return gaps_of(as_ranges(map(ord, members)))


if __name__ == "__main__":
    _FILE.write_bytes(zlib.compress(json.dumps(probe_tokenizers()._asdict(), separators=(",", ":")).encode(), 9))
