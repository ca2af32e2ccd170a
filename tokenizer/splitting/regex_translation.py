"""Translation of custom split patterns, so that the `regex` module reads them as `tokenizers` does.

The `regex` module uses another Unicode version. So classes such as `\\p{L}`, `\\s` and `[:alpha:]` become explicit sets
from `unicode_properties`, and case-insensitive letters become sets of characters. The parser also refuses patterns that
take unbounded memory: recursion, deep nesting and nested counted repetition.

If the engines disagree, Oniguruma decides, the engine of `tokenizers`: `(?i)` does not apply to a property outside a
character class. One exception follows tiktoken: `ß` does not match `ss`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache, lru_cache

from tokenizer.splitting.unicode_properties import Ranges, as_ranges, case_variants, find_property

TYPE_CHECKING = False
if TYPE_CHECKING:
    import regex

LONGEST_REGEX = 10_000  # characters
LARGEST_REGEX = 100_000  # elements, with counted repetitions expanded; about 64 MB when compiled
DEEPEST_REGEX = 100  # levels of nested groups
_FEW_RANGES = 16  # a set with at most this many ranges is written out

_RECURSION = re.compile(r"\(\?(?:R|[+-]?\d+|&\w+|P>\w+)\)|\\g[<'{]")
_FLAGS = re.compile(r"\(\?([a-zA-Z0-9]*)(-[a-zA-Z]+)?([:)])")
_GROUP = re.compile(r"\((?:\?(?:[=!>|]|<[=!]|P?<\w+>|\(\w+\)))?(?!\?)")
_WHOLE_GROUP = re.compile(r"\(\?#[^)]*\)|\(\*[A-Z]+\)|\(\?P=\w+\)")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d+)(?:,(\d*))?\}|\{,(\d+)\})[?+]?")
_PROPERTY = re.compile(r"\\([pP])(?:\{(\^?)([^{}]*)\}|([A-Za-z]))|\\([sSdDwWhH])")
_POSIX = re.compile(r"\[:(\^?)(\w+):\]")
_CODE_POINT = re.compile(r"\\(?:x\{([0-9a-fA-F]{1,8})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_RAW_ESCAPE = re.compile(r"\\(?:[1-9]\d*|0[0-7]*|k<\w+>|N\{[^}]*\}|[A-Za-z])", re.DOTALL)
_SET_OPERATION = re.compile(r"\[|&&|--|~~")
_CONTROLS = {"a": "\a", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def translate(pattern: str) -> str:
    """Return the pattern in the syntax of `regex`, independent of that module's Unicode tables.

    Raises ValueError, which names the pattern and the cause, for an unknown property, a set inside a character class, a
    flag that other engines lack, recursion, and a pattern that is too long, too deeply nested or too large.
    """
    try:
        return "(?V1)" + _Parser(pattern).translation()
    except _RefusedError as refused:
        raise ValueError(f"the split pattern {pattern[:80]!r} {refused}") from None


class _RefusedError(Exception):
    """The reason why a pattern is refused, as the end of a sentence."""


class _Parser:
    """A one-pass parser. Its methods consume text at position `at`, and return its translation and often its size."""

    def __init__(self, pattern: str):
        if len(pattern) > LONGEST_REGEX:
            raise _RefusedError(f"has {len(pattern):,} characters; at most {LONGEST_REGEX:,} are supported")
        self.pattern = pattern
        self.at = 0

    def translation(self) -> str:
        text, _ = self._alternatives("", 0)
        if self.at < len(self.pattern):
            raise _RefusedError("is not a valid regex: it has a ')' without a '('")
        return text

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self.pattern, self.at)
        if found:
            self.at = found.end()
        return found

    def _alternatives(self, flags: str, depth: int) -> tuple[str, int]:
        """Consume alternatives up to the end of their group. flags: the subset of "ix" that is active."""
        parts, size = [], 0
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            flags_found = self._take(_FLAGS) if not _RECURSION.match(self.pattern, self.at) else None
            if flags_found and flags_found[3] == ")":
                flags, passed_on = _changed_flags(flags, flags_found)
                parts.append(f"(?{passed_on})" if passed_on else "")
                continue
            if flags_found:
                inner, passed_on = _changed_flags(flags, flags_found)
                text, item_size = self._group(f"(?{passed_on}:", inner, depth)
            else:
                text, item_size = self._item(flags, depth)
            while quantifier := self._take(_QUANTIFIER):
                text += quantifier[0]
                item_size *= max(1, int(quantifier[3] or quantifier[2] or quantifier[1] or 1))
            parts.append(text)
            size += item_size
            if size > LARGEST_REGEX:
                raise _RefusedError(
                    f"has more than {LARGEST_REGEX:,} elements once its counted repetitions are written out; "
                    "use smaller counts, or * and +"
                )
        return "".join(parts), size

    def _item(self, flags: str, depth: int) -> tuple[str, int]:
        character = self.pattern[self.at]
        if self.pattern[self.at : self.at + 2] == "\\" or _RECURSION.match(self.pattern, self.at):
            self._refuse_escape_or_recursion()
        if character == "[":
            return self._character_class("i" in flags), 1
        if character == "\\":
            return self._escape("i" in flags), 1
        if character == "(":
            if found := self._take(_WHOLE_GROUP):
                return ("" if found[0].startswith("(?#") else found[0]), 1
            if found := self._take(_GROUP):
                return self._group(found[0], flags, depth)
            raise _RefusedError(f"has the group {self.pattern[self.at : self.at + 6]!r}, which is not supported")
        self.at += 1
        if "x" in flags and (character.isspace() or character == "#"):
            if character == "#":
                end = self.pattern.find("\n", self.at)
                self.at = end + 1 if end >= 0 else len(self.pattern)
            return "", 0
        if character in ".^$|":
            return character, 1
        return _literal(character, "i" in flags), 1

    def _refuse_escape_or_recursion(self) -> None:
        if found := _RECURSION.match(self.pattern, self.at):
            raise _RefusedError(
                f"has {found[0]!r}: recursion and subroutine calls are not supported; repeat the called part instead"
            )
        raise _RefusedError("is not a valid regex: it ends in a backslash")

    def _group(self, opening: str, flags: str, depth: int) -> tuple[str, int]:
        if depth == DEEPEST_REGEX:
            raise _RefusedError(f"has groups nested more than {DEEPEST_REGEX} deep")
        text, size = self._alternatives(flags, depth + 1)
        if self.at == len(self.pattern):
            raise _RefusedError("is not a valid regex: it has a '(' without a ')'")
        self.at += 1
        return f"{opening}{text})", size + 1

    def _escape(self, ignore_case: bool) -> str:
        """Consume an escape outside a character class."""
        if found := self._take(_PROPERTY):
            return f"[{_property(found, in_class=False)[0]}]"
        if (character := self._escaped_character()) is not None:
            return _literal(character, ignore_case)
        if found := self._take(_RAW_ESCAPE):
            escape: str = found[0]
            if escape in (r"\b", r"\B"):
                word = f"[{_set_text(chr(92) + 'w', False)}]"
                inside = f"(?<={word})(?={word})|(?<!{word})(?!{word})"
                at_edge = f"(?<={word})(?!{word})|(?<!{word})(?={word})"
                return f"(?:{at_edge if escape == chr(92) + 'b' else inside})"
            if escape[1].isdigit() or escape[1] == "k":
                return f"(?i:{escape})" if ignore_case else escape
            return {r"\N": r"[^\n]", r"\O": "(?s:.)"}.get(escape, escape)
        self.at += 2
        return _literal(self.pattern[self.at - 1], ignore_case)

    def _escaped_character(self) -> str | None:
        """Consume an escape for one character and return the character; None for any other escape."""
        if found := self._take(_CODE_POINT):
            code_point = int(next(filter(None, found.groups())), 16)
            if code_point > 0x10FFFF:
                raise _RefusedError(f"has {found[0]!r}, which is not a code point")
            return chr(code_point)
        if control := _CONTROLS.get(self.pattern[self.at + 1]):
            self.at += 2
            return control
        return None

    def _character_class(self, ignore_case: bool) -> str:
        start = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        parts: list[str] = []
        members: list[tuple[int, int]] = []
        first = True
        while first or not self.pattern.startswith("]", self.at):
            if self.at >= len(self.pattern):
                raise _RefusedError(f"is not a valid regex: {self.pattern[start : start + 20]!r} has no ']'")
            text, ranges = self._class_item()
            parts.append(text)
            members += ranges
            first = False
        self.at += 1
        if ignore_case:
            parts.append(_missing_variants(members))
        return f"[{'^' * negated}{''.join(parts)}]"

    def _class_item(self) -> tuple[str, Ranges]:
        """Consume one item of a character class. Return its text inside a set, and its code points."""
        if found := self._take(_POSIX):
            return _one_property(f"[:{found[2]}:]", found[0], found[1] == "^", in_class=True)
        if found := self._take(_PROPERTY):
            return _property(found, in_class=True)
        self._refuse_set_operation()
        first = last = self._class_character()
        if self.pattern[self.at : self.at + 1] == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
            self._refuse_set_operation()
            before = self.at
            self.at += 1
            if _PROPERTY.match(self.pattern, self.at) or self.pattern[self.at] == "[":
                self.at = before  # the hyphen is a character
            else:
                last = self._class_character()
        if last < first:
            raise _RefusedError(f"is not a valid regex: it has the range {first}-{last}, which is out of order")
        ranges = ((ord(first), ord(last)),)
        return _spelled(ranges), ranges

    def _refuse_set_operation(self) -> None:
        if found := _SET_OPERATION.match(self.pattern, self.at):
            raise _RefusedError(
                f"has {found[0]!r} inside a character class: other engines read it as a set operation, this one as "
                "characters; write the class without it, or escape the characters"
            )

    def _class_character(self) -> str:
        if self.pattern[self.at] != "\\":
            self.at += 1
            return self.pattern[self.at - 1]
        if self.at + 1 == len(self.pattern):
            raise _RefusedError("is not a valid regex: it ends in a backslash")
        if (character := self._escaped_character()) is not None:
            return character
        if found := self._take(re.compile(r"\\([0-7]{1,3})")):
            return chr(int(found[1], 8))
        escaped = self.pattern[self.at + 1]
        if escaped.isalnum() and escaped != "b":
            raise _RefusedError(f"has \\{escaped} inside a character class, which is not supported")
        self.at += 2
        return "\b" if escaped == "b" else escaped


def _changed_flags(flags: str, found: re.Match[str]) -> tuple[str, str]:
    """Return the subset of "ix" that is active after an inline flag group, and the flags to pass on to `regex`."""
    on, off = found[1], (found[2] or "")[1:]
    if unknown := (set(on) - set("imsux")) | (set(off) - set("imsx")):
        raise _RefusedError(f"has the flag {min(unknown)!r}; supported are i, m, s and x")
    flags = "".join(flag for flag in "ix" if (flag in flags or flag in on) and flag not in off)
    switched_off = "".join(flag for flag in "ms" if flag in off)
    return flags, "".join(flag for flag in "ms" if flag in on) + (f"-{switched_off}" if switched_off else "")


def _literal(character: str, ignore_case: bool) -> str:
    variants = case_variants().get(character, character) if ignore_case else character
    return re.escape(character) if len(variants) < 2 else f"[{''.join(map(re.escape, variants))}]"


def _property(found: re.Match[str], in_class: bool) -> tuple[str, Ranges]:
    if found[5]:
        return _one_property(f"\\{found[5].lower()}", found[0], found[5].isupper(), in_class)
    negated = (found[1] == "P") != (found[2] == "^")
    return _one_property(found[3] or found[4] or "", found[0], negated, in_class)


def _one_property(name: str, spelling: str, negated: bool, in_class: bool) -> tuple[str, Ranges]:
    """Return a property as text inside a set, and its code points."""
    ranges = find_property(name, in_class)
    if ranges is None:
        raise _RefusedError(f"has the unknown property {spelling}")
    text = _set_text(name, in_class)
    return (f"[^{text}]", _complement(ranges)) if negated else (text, ranges)


@cache
def _set_text(name: str, in_class: bool) -> str:
    """Return the text of a known property inside a set of `regex`.

    Matching a set of hundreds of ranges is slow. So a large property uses the property of the installed `regex`, and
    adds or removes the few ranges that differ. ASCII members come first, because `regex` tests them fastest.
    """
    import regex

    ranges = find_property(name, in_class)
    assert ranges is not None
    native = name if name[0] in "\\[" else rf"\p{{{name}}}"
    try:
        expression = regex.compile(f"[{native}]+")
    except regex.error:
        return _spelled(ranges)
    found = _matched(expression) if len(ranges) > _FEW_RANGES else ()
    extra, missing = _intersection(found, _complement(ranges)), _intersection(ranges, _complement(found))
    if len(ranges) <= _FEW_RANGES or len(extra) + len(missing) >= len(ranges):
        return _spelled(ranges)
    ascii_members = _spelled(_intersection(ranges, ((0, 0x7F),)))
    return ascii_members + (f"[{native}--[{_spelled(extra)}]]" if extra else native) + _spelled(missing)


def _matched(expression: regex.Pattern[str]) -> Ranges:
    """Return the code points that match a compiled, repeated set."""
    spans = ((match.start(), match.end() - 1) for match in expression.finditer(_every_character()))
    return tuple((first + 0x800 * (first >= 0xD800), last + 0x800 * (last >= 0xD800)) for first, last in spans)


@cache
def _every_character() -> str:
    return "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))


def _spelled(ranges: Ranges) -> str:
    """Return ranges as text inside a set."""
    ends = [[f"\\U{end:08x}" if end > 0x7E else re.escape(chr(end)) for end in pair] for pair in ranges]
    return "".join(first if first == last else f"{first}-{last}" for first, last in ends)


def _complement(ranges: Ranges) -> Ranges:
    """Return all code points outside the ranges, except surrogates."""
    places = [-1, *(end for pair in _merged([*ranges, (0xD800, 0xDFFF)]) for end in pair), 0x110000]
    gaps = ((before + 1, after - 1) for before, after in zip(places[::2], places[1::2], strict=True))
    return tuple(gap for gap in gaps if gap[0] <= gap[1])


def _intersection(some: Ranges, others: Ranges) -> Ranges:
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


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return tuple((first, last) for first, last in merged)


def _missing_variants(members: Iterable[tuple[int, int]]) -> str:
    """Return the case variants of the members that are no members, as text inside a set."""
    ranges = _merged(members)
    firsts = [first for first, _ in ranges]

    def is_member(character: str) -> bool:
        place = bisect_right(firsts, ord(character)) - 1
        return place >= 0 and ord(character) <= ranges[place][1]

    added = {v for c, variants in case_variants().items() if is_member(c) for v in variants if not is_member(v)}
    return _spelled(as_ranges(sorted(map(ord, added))))


@lru_cache(maxsize=64)
def compile_regex(pattern: str) -> regex.Pattern[str]:
    """Return the `regex.Pattern` of a custom pattern, with the Unicode classes of this module.

    Raises ValueError for a pattern that is not valid or that `translate` refuses.
    """
    import regex

    translated = translate(pattern)
    try:
        return regex.compile(translated)
    except regex.error as error:
        raise ValueError(f"the split pattern {pattern[:80]!r} is not a valid regex: {error.msg}") from None
