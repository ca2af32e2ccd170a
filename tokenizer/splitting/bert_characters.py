"""Tables of what BERT's normalizer and pre-tokenizer in `tokenizers` do with each code point.

Their Unicode tables have several ages, and none is that of the installed Python. They were probed from `tokenizers` and
committed as `bert_characters.bin`: JSON compressed by zlib. A test checks every code point.
`python -m tokenizer.splitting.bert_characters` writes the file again; it needs tokenizers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.splitting.unicode_properties import Ranges, as_ranges, gaps_of, ranges_of

SURROGATES = range(0xD800, 0xE000)
_FILE = Path(__file__).with_name("bert_characters.bin")

# Hangul syllables decompose by a formula (Unicode Standard, section 3.12).
_SYLLABLES, _LEADING, _VOWELS, _TRAILING = 0xAC00, 0x1100, 0x1161, 0x11A7
_SYLLABLE_COUNT, _VOWEL_COUNT, _TRAILING_COUNT = 11172, 21, 28

# Classes of code points. WORD: part of a word. DELETED: dropped. SPACE: separates words. ALONE: a word by itself.
# REPLACED: replaced by others. MARK: a combining mark that stays. DIVIDER: dropped, but marks are not sorted across it.
WORD, DELETED, SPACE, ALONE, REPLACED, MARK, DIVIDER = range(7)


class Tables(NamedTuple):
    """The separate steps. Sets of code points are stored as gaps between the ends of ranges."""

    deleted: list[int]  # by clean_text
    cleaned_to_space: list[int]  # by clean_text
    chinese: list[int]  # a space on both sides
    accents: list[int]  # deleted after decomposition
    decompositions: dict[str, str]  # NFD, without Hangul
    combining_classes: dict[str, int]  # that NFD sorts by; 0 is left out
    lower: dict[str, str]
    white_space: list[int]  # removed by the pre-tokenizer
    punctuation: list[int]  # split off by the pre-tokenizer


class Characters(NamedTuple):
    """All steps combined, for one choice of options.

    classes: (CODE_POINTS,), the class of each code point. Surrogates encode invalid UTF-8 and have the class of U+FFFD.
    replacements: the replacement of each code point of class REPLACED, without deleted accents.
    combining_classes: the combining class of each code point of class MARK.
    """

    classes: bytes
    replacements: dict[int, str]
    combining_classes: dict[int, int]


@cache
def table_digest() -> str:
    """Return the SHA-256 of the decompressed table in hexadecimal."""
    import hashlib

    return hashlib.sha256(zlib.decompress(_FILE.read_bytes())).hexdigest()


def stored_tables() -> Tables:
    """Return the committed tables."""
    return Tables(**json.loads(zlib.decompress(_FILE.read_bytes())))


@cache
def characters(clean_text: bool, chinese: bool, strip_accents: bool, lowercase: bool) -> Characters:
    """Return the combined table for these options of BertNormalizer."""
    tables = stored_tables()
    classes = bytearray(CODE_POINTS)

    def mark(gaps: list[int], number: int) -> None:
        for first, last in ranges_of(gaps):
            classes[first : last + 1] = bytes([number]) * (last + 1 - first)

    combining = {ord(c): number for c, number in tables.combining_classes.items()} if strip_accents else {}
    for code_point in combining:
        classes[code_point] = MARK
    if strip_accents:
        mark(tables.accents, DELETED)
        for first, last in ranges_of(tables.accents):
            for code_point in range(first, last + 1):
                if code_point not in combining:
                    classes[code_point] = DIVIDER
    mark(tables.punctuation, ALONE)
    if chinese:
        mark(tables.chinese, ALONE)
    replacements = _replacements(tables, strip_accents, lowercase, classes)
    for code_point in replacements:
        classes[code_point] = REPLACED
    if chinese:  # a replaced ideograph stays a word by itself, because its replacement is an ideograph, too
        assert all(classes[c] != REPLACED or classes[ord(replacements[c])] == ALONE for c in _members(tables.chinese))
    mark(tables.white_space, SPACE)
    if clean_text:
        mark(tables.cleaned_to_space, SPACE)
        mark(tables.deleted, DELETED)
    classes[SURROGATES.start : SURROGATES.stop] = bytes([classes[0xFFFD]]) * len(SURROGATES)
    kept = {code_point: number for code_point, number in combining.items() if classes[code_point] == MARK}
    return Characters(bytes(classes), replacements, kept)


def _replacements(tables: Tables, strip_accents: bool, lowercase: bool, classes: bytearray) -> dict[int, str]:
    lower = tables.lower if lowercase else {}
    replacements: dict[int, str] = {}
    if strip_accents:
        for character, decomposed in [*tables.decompositions.items(), *_hangul()]:
            kept = "".join(lower.get(c, c) for c in decomposed if classes[ord(c)] != DELETED)
            replacements[ord(character)] = kept
    for character, lowered in lower.items():
        replacements.setdefault(ord(character), lowered)
    return replacements


def _hangul() -> Iterator[tuple[str, str]]:
    for number in range(_SYLLABLE_COUNT):
        rest, trailing = divmod(number, _TRAILING_COUNT)
        leading, vowel = divmod(rest, _VOWEL_COUNT)
        jamo = chr(_LEADING + leading) + chr(_VOWELS + vowel)
        yield chr(_SYLLABLES + number), jamo + chr(_TRAILING + trailing) * (trailing > 0)


def _members(gaps: list[int]) -> Iterator[int]:
    return (code_point for first, last in ranges_of(gaps) for code_point in range(first, last + 1))


# The rest of this module writes the table.


def probe_tokenizers() -> Tables:
    """Return the tables, built by normalizing and splitting every code point with `tokenizers`."""
    from tokenizers import normalizers, pre_tokenizers

    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}

    def step(**options: bool) -> dict[str, str]:
        return _changes(normalizers.BertNormalizer(**off | options).normalize_str)

    cleaned, stripped = step(clean_text=True), step(strip_accents=True)
    decompositions = _changes(normalizers.NFD().normalize_str)
    accents = {c for c, kept in stripped.items() if not kept and c not in decompositions}
    for c in decompositions.keys() | stripped.keys():
        kept = "".join(part for part in decompositions.get(c, c) if part not in accents)
        assert kept == stripped.get(c, c), f"{c!r} is not decomposed, then stripped of accents"
    hangul = dict(_hangul())
    assert hangul.items() <= decompositions.items()
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    pieces = {c: [piece for piece, _ in split(f"x{c}x")] for c in _all_characters()}
    return Tables(
        deleted=_gaps(c for c, kept in cleaned.items() if kept == ""),
        cleaned_to_space=_gaps(c for c, kept in cleaned.items() if kept == " "),
        chinese=_gaps(step(handle_chinese_chars=True)),
        accents=_gaps(sorted(accents)),
        decompositions={c: parts for c, parts in decompositions.items() if c not in hangul},
        combining_classes=_combining_classes(normalizers.NFD().normalize_str),
        lower=step(lowercase=True),
        white_space=_gaps(c for c, parts in pieces.items() if parts == ["x", "x"]),
        punctuation=_gaps(c for c, parts in pieces.items() if parts == ["x", c, "x"]),
    )


def _all_characters() -> Iterator[str]:
    return (chr(c) for c in range(CODE_POINTS) if c not in SURROGATES)


def _changes(normalize: Callable[[str], str]) -> dict[str, str]:
    """Return the normal form of every code point that changes between two letters."""
    forms = ((c, normalize(f"x{c}x")[1:-1]) for c in _all_characters())
    return {c: form for c, form in forms if form != c}


def _combining_classes(decompose: Callable[[str], str]) -> dict[str, int]:
    """Return the combining class of each code point that NFD reorders.

    Python's classes name the numbers; each is checked against the order of a code point and one mark of every class.
    """
    import unicodedata

    last, first = "\u0345", "\u0334"  # the classes 240 and 1, the highest and the lowest
    decomposed = {c for c in _all_characters() if decompose(c) != c}
    moved = {c for c in _all_characters() if decompose(last + c) == c + last or decompose(c + first) == first + c}
    classes = {c: unicodedata.combining(c) for c in sorted(moved - decomposed)}
    one_each = {number: c for c, number in classes.items()}
    for c, number in classes.items():
        for other, mark in one_each.items():
            moves = mark != c and decompose(mark + c) == c + mark
            assert moves == (number < other), f"{c!r} has not the class {number}"
    return classes


def _gaps(members: Iterator[str] | list[str] | dict[str, str]) -> list[int]:
    ranges: Ranges = as_ranges(map(ord, members))
    return gaps_of(ranges)


if __name__ == "__main__":
    _FILE.write_bytes(zlib.compress(json.dumps(probe_tokenizers()._asdict(), separators=(",", ":")).encode(), 9))
