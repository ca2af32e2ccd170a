"""The character maps `nfkc` and `nmt_nfkc` of sentencepiece, made from the tables of Unicode.

A map has the characters that NFKC changes, and the sequences that NFKC composes to one character, in every spelling:
`e` or any character that NFKC makes an `e`, then an accent. Other sequences follow from these, because the longest key
at a position is replaced. `nmt_nfkc` also drops control characters and makes spaces of other characters, and keeps the
fullwidth tilde.

The maps replace the same texts as the ones in the files of T5, ALBERT, XLNet and XLM-R, which know Unicode 11. Newer
characters are left as they are, so that the maps do not depend on the version of Python.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import product
from unicodedata import normalize

from tokenizer.splitting.double_array import compile_map
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.splitting.unicode_classes import CODE_POINTS

# Ranges of the characters after Unicode 3.2 and up to Unicode 11 that NFKC changes or composes.
_LATER = """
237 3F9 10FC 1B05-1B43 1D02-1DBF 2090-209C 213B-2152 2189 2C7C-2C7D 2D61-2D6F 321D-3250 327C-327E 32CC-32CF 3377-337A
33DE-33FF A69C-A69D A727 A76F-A770 A7F8-A7F9 AB37-AB5F FA2E-FA2F FA6B-FAD9 FE10-FE19 FE47-FE48 11099-110BA 11127-11132
1133E-11357 114B0-114BE 115AF-115BB 1D4C1 1D6A4-1D6A5 1D7CA-1D7CB 1EE00-1EEBB 1F100-1F16B 1F190 1F200-1F23A 1F240-1F251
"""
# What nmt_nfkc drops and makes spaces of: control and format characters, white space, U+2581, U+FEFF and U+FFFD.
_DROPPED = [*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F]
_SPACES = [0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]
_KEPT = "\uff5e"


def nfkc_replacements() -> dict[str, str]:
    """Return the map `nfkc`: from characters and sequences to the text that replaces them."""
    changed = [c for c in _known_characters() if normalize("NFKC", c) != c or normalize("NFKD", c) != c]
    replacements = {c: text for c in changed if (text := normalize("NFKC", c)) != c}
    spellings: dict[str, list[str]] = {}
    for c, text in replacements.items():
        spellings.setdefault(text, [text]).append(c)
    for parts in {normalize("NFKD", c) for c in changed}:
        composed = normalize("NFC", parts)
        if len(parts) > 1 == len(composed):
            for spelled in product(*(spellings.get(part, part) for part in parts)):
                replacements["".join(spelled)] = composed
    return replacements


def _known_characters() -> list[str]:
    """Return the characters of Unicode 3.2 but surrogates, and those of _LATER."""
    category = unicodedata.ucd_3_2_0.category
    known = [chr(c) for c in range(1, CODE_POINTS) if category(chr(c)) not in ("Cn", "Cs", "Co")]
    for span in _LATER.split():
        first, _, last = span.partition("-")
        known += map(chr, range(int(first, 16), int(last or first, 16) + 1))
    return known


@cache
def named_map(name: str) -> CharacterMap:
    """Return the map `nfkc` or `nmt_nfkc`. Building it takes seconds."""
    replacements = nfkc_replacements()
    if name == "nmt_nfkc":
        replacements |= {chr(c): "" for c in _DROPPED} | {chr(c): " " for c in _SPACES}
        del replacements[_KEPT]
    return CharacterMap(compile_map({key.encode(): text.encode() for key, text in replacements.items()}))
