"""Unicode properties as the regex engines of tokenizers and tiktoken define them, for custom split patterns.

The installed `regex` module follows a newer Unicode version than both engines, and the versions differ on thousands of
code points. The sets were probed from the engines and committed as `unicode_properties.bin`: JSON compressed by zlib.
If the engines disagree, Oniguruma decides: it is the engine of `tokenizers`, and custom patterns are stored in
tokenizer.json. The engines disagree on `\\w` (8 code points), POSIX classes such as `[:alpha:]` (ASCII only in
tiktoken), `\\p{Graph}` and `\\p{Print}`. `python -m tokenizer.splitting.unicode_properties` writes the file again; it
needs tokenizers, tiktoken and regex.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]  # sorted, disjoint, both ends included

_FILE = Path(__file__).with_name("unicode_properties.bin")
_PREFIXES = ("script=", "sc=", "generalcategory=", "gc=", "is")
_POSIX = ["alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper"]
_POSIX += ["word", "xdigit"]
_ESCAPES = (r"\d", r"\h", r"\s", r"\w")
# Ranges of code points with equal properties. Only the first code point of each range is probed.
_UNIFORM = [(0x34000, 0x3FFFD), *((plane << 16, (plane << 16) + 0xFFFD) for plane in range(4, 14))]
_UNIFORM += [(0xE1000, 0xEFFFD), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]


class _Table(NamedTuple):
    names: dict[str, int]
    sets: list[list[int]]  # gaps between the ends of ranges
    case_variants: list[str]  # characters that match each other when case is ignored


@cache
def _table() -> _Table:
    return _Table(**json.loads(zlib.decompress(_FILE.read_bytes())))


@cache
def table_digest() -> str:
    """Return the SHA-256 of the decompressed table in hexadecimal."""
    import hashlib

    return hashlib.sha256(zlib.decompress(_FILE.read_bytes())).hexdigest()


def find_property(name: str, in_class: bool = False) -> Ranges | None:
    """Return the code points of a property, or None for an unknown name.

    name: the text between the braces of `\\p{...}`, an escape such as `\\w`, or `[:alpha:]`. Case, spaces, hyphens
    and underscores do not matter. in_class: whether the name is inside a character class, where a few properties mean
    something else in Oniguruma.
    """
    names = _table().names
    wanted = _normalize(name) if name[:1] not in ("\\", "[") else name
    for spelling in (wanted, *(wanted.removeprefix(prefix) for prefix in _PREFIXES)):
        number = names.get(f"[{spelling}]") if in_class else None
        number = names.get(spelling) if number is None else number
        if number is not None:
            return _ranges(number)
    return None


def scripts() -> dict[str, Ranges]:
    """Return the code points of each script by its long name, such as "latin". Scripts are disjoint."""
    names = _table().names
    found: dict[int, str] = {}
    for name, number in names.items():
        if f"scx={name}" in names:
            found.setdefault(number, name)
    return {name: _ranges(number) for number, name in found.items()}


@cache
def _ranges(number: int) -> Ranges:
    return ranges_of(_table().sets[number])


@cache
def case_variants() -> dict[str, str]:
    """Return a map from each cased character to all characters that it matches when case is ignored."""
    return {character: orbit for orbit in _table().case_variants for character in orbit}


def _normalize(name: str) -> str:
    return name.lower().translate({ord(separator): None for separator in " _-"})


def as_ranges(code_points: Iterable[int]) -> Ranges:
    """Return sorted code points as ranges."""
    ranges: list[list[int]] = []
    for code_point in code_points:
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return tuple((first, last) for first, last in ranges)


def complement(ranges: Ranges) -> Ranges:
    """Return all code points outside the ranges, except surrogates."""
    places = [-1, *(end for pair in merged_ranges([*ranges, (0xD800, 0xDFFF)]) for end in pair), 0x110000]
    gaps = ((before + 1, after - 1) for before, after in zip(places[::2], places[1::2], strict=True))
    return tuple(gap for gap in gaps if gap[0] <= gap[1])


def intersection(some: Ranges, others: Ranges) -> Ranges:
    """Return the code points that both have."""
    result, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        first, last = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if first <= last:
            result.append((first, last))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return pairs in any order as sorted, disjoint ranges."""
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return tuple((first, last) for first, last in merged)


def gaps_of(ranges: Ranges) -> list[int]:
    """Return the gaps between the ends of ranges, which are small numbers, for storage."""
    ends = [end for pair in ranges for end in pair]
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


def ranges_of(gaps: list[int]) -> Ranges:
    """Return the ranges with these gaps between their ends."""
    ends = list(accumulate(gaps))
    return tuple(zip(ends[::2], ends[1::2], strict=True))


# The rest of this module writes the table.

Engine = Callable[[str, str], str | None]  # (regex, text) -> matching characters, or None for an invalid regex


def _oniguruma(pattern: str, text: str) -> str | None:
    from tokenizers import Regex, pre_tokenizers

    try:
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    except Exception:
        return None
    return "".join(run for run, _ in split.pre_tokenize_str(text))


def _tiktoken(pattern: str, text: str) -> str | None:
    import tiktoken

    single_bytes = {bytes([byte]): byte for byte in range(256)}
    try:
        probe = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
    except ValueError:
        return None
    return bytes(probe.encode_ordinary(text)).decode()


def _probe_text() -> str:
    uniform = chain.from_iterable(range(first + 1, last + 1) for first, last in _UNIFORM)
    left_out = {*range(0xD800, 0xE000), *uniform}
    return "".join(chr(c) for c in range(0x110000) if c not in left_out)


def _expand(members: str) -> Ranges:
    """Return the ranges of the matching characters of the probe text, with uniform ranges completed."""
    uniform = dict(_UNIFORM)
    return as_ranges(c for member in map(ord, members) for c in range(member, uniform.get(member, member) + 1))


def _known_names() -> Iterator[tuple[str, ...]]:
    """Yield the aliases of each property that `regex` knows and the engines may."""
    from regex._regex_core import PROPERTIES

    for prefix, of in (("", "GC"), ("", "SCRIPT"), ("in", "BLOCK"), ("scx=", "SCX")):
        aliases: dict[int, list[str]] = {}
        for name, number in PROPERTIES[of][1].items():
            aliases.setdefault(number, []).append(prefix + name.lower())
        yield from map(tuple, aliases.values())
    binary: dict[int, list[str]] = {}
    for name, (number, values) in PROPERTIES.items():
        if values.get("YES") == 1 and "MAYBE" not in values:
            binary.setdefault(number, []).append(name.lower())
    yield from map(tuple, binary.values())
    yield ("lc", "casedletter")
    yield ("any",)
    yield ("ascii",)


def probe_engines() -> _Table:
    """Return the table, built by matching with the engines. Oniguruma decides about every name that it knows."""
    text = _probe_text()
    names: dict[str, int] = {}
    numbers: dict[Ranges, int] = {}

    def record(aliases: Iterable[str], members: str | None) -> None:
        assert members is not None, f"no engine knows {aliases}"
        number = numbers.setdefault(_expand(members), len(numbers))
        names.update(dict.fromkeys(aliases, number))

    def probe(aliases: tuple[str, ...], pattern: str, engines: tuple[Engine, ...]) -> None:
        for engine in engines:
            if (members := engine(f"(?:{pattern})+", text)) is not None:
                record(aliases, members)
                in_class = engine(f"[{pattern}]+", text)
                if in_class != members:
                    record([f"[{alias}]" for alias in aliases], in_class)
                return

    for aliases in _known_names():
        known = [n for n in aliases if any(e(rf"\p{{{n}}}", "a") is not None for e in (_oniguruma, _tiktoken))]
        if known:
            # An alias that only the other engine knows means the same.
            first = next((n for n in known if _oniguruma(rf"\p{{{n}}}", "a") is not None), known[0])
            probe(tuple(known), rf"\p{{{first}}}", (_oniguruma, _tiktoken))
    for escape in _ESCAPES:
        probe((escape,), escape, (_oniguruma,))
    for name in _POSIX:
        record([f"[:{name}:]"], _oniguruma(f"[[:{name}:]]+", text))
    gaps = [gaps_of(ranges) for ranges in numbers]
    return _Table(names, gaps, _probe_case_variants(names, list(numbers)))


def _probe_case_variants(names: dict[str, int], sets: list[Ranges]) -> list[str]:
    cased = {chr(c) for n in ("cwcf", "cwcm", "cased") for a, b in sets[names[n]] for c in range(a, b + 1)}
    text = "\n".join(sorted(cased))
    orbits: set[str] = set()
    for character in sorted(cased):
        orbit = _oniguruma(f"(?i){character}", text)
        assert orbit is not None
        assert orbit == _oniguruma(f"(?i)[{character}]", text) == _tiktoken(f"(?i){character}", text), character
        if len(orbit) > 1:
            orbits.add(orbit)
    return sorted(orbits)


if __name__ == "__main__":
    _FILE.write_bytes(zlib.compress(json.dumps(probe_engines()._asdict(), separators=(",", ":")).encode(), 9))
