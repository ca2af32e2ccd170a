"""Grapheme clusters as `tokenizers` cuts them: the class of each code point, and the automaton over classes.

`tokenizers` replaces short clusters as a whole (see `character_map`). The classes were probed from `tokenizers` and
committed as `graphemes.bin`: JSON compressed by zlib. Regional indicators are ordinary characters here: a pair has
eight bytes, so it is never a short cluster. `python -m tokenizer.splitting.graphemes` writes the file again; it needs
tokenizers. Source: Unicode Standard Annex #29, rules GB3 to GB11.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.splitting.unicode_properties import as_ranges, gaps_of, ranges_of

_FILE = Path(__file__).with_name("graphemes.bin")

# Classes of code points. JOINED: Extend, also between the consonants of a conjunct. LINKER: the viramas among them.
# LV, LVT: Hangul syllables without and with a final consonant. PICTURE: Extended_Pictographic.
OTHER, CONTROL, CR, LF, EXTEND, JOINED, LINKER, ZWJ, SPACING_MARK, PREPEND, L, V, T, LV, LVT, PICTURE, CONSONANT = (
    range(17)
)
CLASSES = range(17)
BOUNDARY = 128  # set in a transition if a cluster ends before the code point
_SYLLABLES, _FINALS, _SYLLABLE_COUNT = 0xAC00, 28, 11172


class _State(NamedTuple):
    """What the rules need to know of the code points before a place."""

    last: int  # class of the last code point
    picture: int = 0  # 1 after a picture and Extends; 2 if a ZWJ follows them
    conjunct: int = 0  # 1 after a consonant and JOINED; 2 if a LINKER is among them


START = 0  # the state at the beginning of a text


@cache
def table_digest() -> str:
    """Return the SHA-256 of the decompressed table in hexadecimal."""
    import hashlib

    return hashlib.sha256(zlib.decompress(_FILE.read_bytes())).hexdigest()


@cache
def code_point_classes() -> bytes:
    """Return the class of each code point, (CODE_POINTS,). Surrogates, which stand for invalid UTF-8, are OTHER."""
    classes = bytearray(CODE_POINTS)
    for number, gaps in enumerate(json.loads(zlib.decompress(_FILE.read_bytes()))):
        for first, last in ranges_of(gaps):
            classes[first : last + 1] = bytes([number]) * (last + 1 - first)
    syllables = bytes([LV] + [LVT] * (_FINALS - 1)) * (_SYLLABLE_COUNT // _FINALS)
    classes[_SYLLABLES : _SYLLABLES + _SYLLABLE_COUNT] = syllables
    return bytes(classes)


@cache
def transitions() -> bytes:
    """Return the next state, with BOUNDARY, for each state and class: index state * len(CLASSES) + class."""
    states = [_State(CONTROL)]
    table = bytearray()
    for state in states:  # grows
        for kind in range(len(CLASSES)):
            following = _next(state, kind)
            if following not in states:
                states.append(following)
            table.append(states.index(following) | (BOUNDARY if _is_boundary(state, kind) else 0))
    assert len(states) < BOUNDARY
    return bytes(table)


def _is_boundary(state: _State, kind: int) -> bool:
    """Return whether a cluster ends before a code point of a class. The rules are tried in the order of the annex."""
    last, breaks = state.last, (CONTROL, CR, LF)
    if last in breaks or kind in breaks:
        return (last, kind) != (CR, LF)
    if kind in {L: (L, V, LV, LVT), LV: (V, T), V: (V, T), LVT: (T,), T: (T,)}.get(last, ()):
        return False
    if kind in (EXTEND, JOINED, LINKER, ZWJ, SPACING_MARK) or last == PREPEND:
        return False
    return not ((kind == CONSONANT and state.conjunct == 2) or (kind == PICTURE and state.picture == 2))


def _next(state: _State, kind: int) -> _State:
    picture = conjunct = 0
    if kind == PICTURE or (state.picture == 1 and kind in (EXTEND, JOINED, LINKER)):
        picture = 1
    elif state.picture == 1 and kind == ZWJ:
        picture = 2
    if kind == CONSONANT:
        conjunct = 1
    elif state.conjunct and kind in (JOINED, ZWJ):
        conjunct = state.conjunct
    elif state.conjunct and kind == LINKER:
        conjunct = 2
    same = {EXTEND: SPACING_MARK, JOINED: SPACING_MARK, LINKER: SPACING_MARK, ZWJ: SPACING_MARK, OTHER: SPACING_MARK}
    same |= {PICTURE: SPACING_MARK, CONSONANT: SPACING_MARK, LF: CONTROL, LV: V, LVT: T}
    return _State(same.get(kind, kind), picture, conjunct)


# The rest of this module writes the table.


def probe_tokenizers() -> list[list[int]]:
    """Return the code points of each class without Hangul syllables, as gaps between the ends of ranges.

    Each code point is put between code points of known classes. A map replaces these. A short cluster is replaced as a
    whole, so the text that is left shows where clusters end.
    """
    from tokenizers import normalizers

    from tokenizer.splitting.double_array import compile_map

    known = {"a": OTHER, "©": PICTURE, "क": CONSONANT, "\u0600": PREPEND, "ᄀ": L, "ᅡ": V, "ᆨ": T}
    compiled = compile_map({c.encode(): b"!" for c in known})
    normalize = normalizers.Precompiled(compiled).normalize_str
    mark, joiner, virama = "\u0301", "\u200d", "\u094d"

    def joins(before: str, last: str) -> bool:
        """Return whether `last` continues the cluster of `before`, which has no prefix in the map."""
        return normalize(before + last + mark).endswith(mark)

    def class_of(c: str) -> int:
        hangul = (joins(c, "\u1100"), joins(c, "\u1161"), joins(c, "\u11a8"))
        if joins(c, "a"):
            return PREPEND
        if normalize("a" + c) == "!":  # continues any cluster
            if c == joiner:
                return ZWJ
            if joins("x©" + c + joiner, "©"):
                between = joins("xक" + c + virama, "क")
                return LINKER if joins("xक" + c, "क") else JOINED if between else EXTEND
            return SPACING_MARK
        if any(hangul):
            return {(True, True, False): L, (False, True, True): V, (False, False, True): T}[hangul]
        if joins(c + joiner, "©"):
            return PICTURE
        if joins(c + virama, "क"):
            return CONSONANT
        is_break = len(c.encode()) < 4 and normalize("\u0600" + c) != "!"
        return {"\r": CR, "\n": LF}.get(c, CONTROL) if is_break else OTHER

    found: list[list[int]] = [[] for _ in CLASSES]
    for code_point in range(CODE_POINTS):
        c = chr(code_point)
        if not 0xD800 <= code_point < 0xE000 and not 0 <= code_point - _SYLLABLES < _SYLLABLE_COUNT:
            kind = known[c] if c in known else class_of(c)
            if kind != OTHER:
                found[kind].append(code_point)
    return [gaps_of(as_ranges(members)) for members in found]


if __name__ == "__main__":
    _FILE.write_bytes(zlib.compress(json.dumps(probe_tokenizers(), separators=(",", ":")).encode(), 9))
