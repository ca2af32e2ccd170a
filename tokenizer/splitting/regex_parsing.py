"""The parser of split patterns. It returns a small tree.

`regex_compilation` makes an automaton from the tree, and `regex_translation` its text for the `regex` module. Classes
such as `\\p{L}`, `\\s` and `[:alpha:]` are the sets of `unicode_properties`, and case-insensitive letters are sets of
characters. The parser refuses patterns that take unbounded memory: recursion, deep nesting and nested counted
repetition.

If the engines disagree, Oniguruma decides, the engine of `tokenizers`: `(?i)` does not apply to a property outside a
character class. One exception follows tiktoken: `ß` does not match `ss`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tokenizer.splitting.unicode_properties import (
    Ranges,
    as_ranges,
    case_variants,
    complement,
    find_property,
    merged_ranges,
)

LONGEST_REGEX = 10_000  # characters
LARGEST_REGEX = 100_000  # elements, with counted repetitions expanded; about 64 MB when compiled
DEEPEST_REGEX = 100  # levels of nested groups

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


ALL = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # surrogates are no characters
# The text of a node for the `regex` module: literal text, and properties inside a set as (name, in_class). Their text
# takes long to make, and only `regex_translation` needs it.
Part = str | tuple[str, bool]
Parts = tuple[Part, ...]
_ALL_BUT_NEWLINE = ((0, 9), (11, 0xD7FF), (0xE000, 0x10FFFF))


class Set(NamedTuple):
    """One code point out of sorted, disjoint ranges."""

    ranges: Ranges
    parts: Parts


class Repeat(NamedTuple):
    """A repeated node. least, most: the counts, most None without a limit. mode: "" (greedy), "?" or "+"."""

    body: Node
    text: str
    least: int
    most: int | None
    mode: str


class Group(NamedTuple):
    """Alternatives in a group, each a list of nodes. opening: the text up to the first alternative, such as "(?:"."""

    opening: str
    branches: list[list[Node]]


class Text(NamedTuple):
    """Text that matches nothing, such as a flag or a comment, or else that only the `regex` module understands."""

    parts: Parts
    is_empty: bool = False


Node = Set | Repeat | Group | Text


def parse(pattern: str) -> Group:
    """Return the tree of a pattern.

    Raises ValueError, which names the pattern and the cause. The causes are an unknown property, a set inside a
    character class, a flag that other engines lack, recursion, and a pattern that is too long, too deeply nested or too
    large.
    """
    try:
        return _Parser(pattern).tree()
    except _RefusedError as refused:
        raise ValueError(f"the split pattern {pattern[:80]!r} {refused}") from None


class _RefusedError(Exception):
    """The reason why a pattern is refused, as the end of a sentence."""


class _Parser:
    """A one-pass parser. Its methods consume text at position `at`, and return its nodes and often its size."""

    def __init__(self, pattern: str):
        if len(pattern) > LONGEST_REGEX:
            raise _RefusedError(f"has {len(pattern):,} characters; at most {LONGEST_REGEX:,} are supported")
        self.pattern = pattern
        self.at = 0

    def tree(self) -> Group:
        branches, _ = self._alternatives("", 0)
        if self.at < len(self.pattern):
            raise _RefusedError("is not a valid regex: it has a ')' without a '('")
        return Group("", branches)

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self.pattern, self.at)
        if found:
            self.at = found.end()
        return found

    def _alternatives(self, flags: str, depth: int) -> tuple[list[list[Node]], int]:
        """Consume alternatives up to the end of their group. flags: the subset of "isx" that is active."""
        branches: list[list[Node]] = [[]]
        size = 0
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.pattern[self.at] == "|":
                self.at += 1
                branches.append([])
                while quantifier := self._take(_QUANTIFIER):  # repeats nothing, which `regex` refuses
                    branches[-1].append(Text((quantifier[0],)))
                continue
            flags_found = self._take(_FLAGS) if not _RECURSION.match(self.pattern, self.at) else None
            if flags_found and flags_found[3] == ")":
                flags, passed_on = _changed_flags(flags, flags_found)
                branches[-1].append(Text((f"(?{passed_on})" if passed_on else "",), is_empty=True))
                continue
            node: Node
            if flags_found:
                inner, passed_on = _changed_flags(flags, flags_found)
                node, item_size = self._group(f"(?{passed_on}:", inner, depth)
            else:
                node, item_size = self._item(flags, depth)
            while quantifier := self._take(_QUANTIFIER):
                node = _repeated(node, quantifier)
                item_size *= max(1, int(quantifier[3] or quantifier[2] or quantifier[1] or 1))
            branches[-1].append(node)
            size += item_size
            if size > LARGEST_REGEX:
                raise _RefusedError(
                    f"has more than {LARGEST_REGEX:,} elements once its counted repetitions are written out; "
                    "use smaller counts, or * and +"
                )
        return branches, size

    def _item(self, flags: str, depth: int) -> tuple[Node, int]:
        character = self.pattern[self.at]
        if self.pattern[self.at : self.at + 2] == "\\" or _RECURSION.match(self.pattern, self.at):
            self._refuse_escape_or_recursion()
        if character == "[":
            return self._character_class("i" in flags), 1
        if character == "\\":
            return self._escape("i" in flags), 1
        if character == "(":
            if found := self._take(_WHOLE_GROUP):
                return (Text((), is_empty=True) if found[0].startswith("(?#") else Text((found[0],))), 1
            if found := self._take(_GROUP):
                return self._group(found[0], flags, depth)
            raise _RefusedError(f"has the group {self.pattern[self.at : self.at + 6]!r}, which is not supported")
        self.at += 1
        if "x" in flags and (character.isspace() or character == "#"):
            if character == "#":
                end = self.pattern.find("\n", self.at)
                self.at = end + 1 if end >= 0 else len(self.pattern)
            return Text((), is_empty=True), 0
        if character == ".":
            return Set(ALL if "s" in flags else _ALL_BUT_NEWLINE, (".",)), 1
        if character in "^$":
            return Text((character,)), 1
        return _literal(character, "i" in flags), 1

    def _refuse_escape_or_recursion(self) -> None:
        if found := _RECURSION.match(self.pattern, self.at):
            raise _RefusedError(
                f"has {found[0]!r}: recursion and subroutine calls are not supported; repeat the called part instead"
            )
        raise _RefusedError("is not a valid regex: it ends in a backslash")

    def _group(self, opening: str, flags: str, depth: int) -> tuple[Node, int]:
        if depth == DEEPEST_REGEX:
            raise _RefusedError(f"has groups nested more than {DEEPEST_REGEX} deep")
        branches, size = self._alternatives(flags, depth + 1)
        if self.at == len(self.pattern):
            raise _RefusedError("is not a valid regex: it has a '(' without a ')'")
        self.at += 1
        return Group(opening, branches), size + 1

    def _escape(self, ignore_case: bool) -> Node:
        """Consume an escape outside a character class."""
        if found := self._take(_PROPERTY):
            return _set([_property(found, in_class=False)])
        if (character := self._escaped_character()) is not None:
            return _literal(character, ignore_case)
        if found := self._take(_RAW_ESCAPE):
            escape: str = found[0]
            if escape in (r"\b", r"\B"):
                word: Parts = ("[", (r"\w", False), "])")
                behind, ahead = ("(?<=", *word), ("(?=", *word)
                not_behind, not_ahead = ("(?<!", *word), ("(?!", *word)
                if escape == r"\B":
                    ahead, not_ahead = not_ahead, ahead
                return Text(("(?:", *behind, *not_ahead, "|", *not_behind, *ahead, ")"))
            if escape[1].isdigit() or escape[1] == "k":
                return Text((f"(?i:{escape})" if ignore_case else escape,))
            if escape == r"\N":
                return Set(_ALL_BUT_NEWLINE, (r"[^\n]",))
            return Set(ALL, ("(?s:.)",)) if escape == r"\O" else Text((escape,))
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

    def _character_class(self, ignore_case: bool) -> Set:
        start = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        items: list[Set] = []
        first = True
        while first or not self.pattern.startswith("]", self.at):
            if self.at >= len(self.pattern):
                raise _RefusedError(f"is not a valid regex: {self.pattern[start : start + 20]!r} has no ']'")
            items.append(self._class_item())
            first = False
        self.at += 1
        if ignore_case:
            items.append(_plain(_missing_variants([pair for item in items for pair in item.ranges])))
        return _set(items, negated)

    def _class_item(self) -> Set:
        """Consume one item of a character class, whose text is that inside a set."""
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
        return _plain(((ord(first), ord(last)),))

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
    """Return the subset of "isx" that is active after an inline flag group, and the flags to pass on to `regex`."""
    on, off = found[1], (found[2] or "")[1:]
    if unknown := (set(on) - set("imsux")) | (set(off) - set("imsx")):
        raise _RefusedError(f"has the flag {min(unknown)!r}; supported are i, m, s and x")
    flags = "".join(flag for flag in "isx" if (flag in flags or flag in on) and flag not in off)
    switched_off = "".join(flag for flag in "ms" if flag in off)
    return flags, "".join(flag for flag in "ms" if flag in on) + (f"-{switched_off}" if switched_off else "")


def _repeated(body: Node, quantifier: re.Match[str]) -> Repeat:
    text, (exact, limit, only_limit) = quantifier[0], quantifier.groups()
    least, most = int(exact or text[0] == "+"), 1 if text[0] == "?" else None
    if text[0] == "{":
        limit = only_limit or (exact if limit is None else limit)
        most = int(limit) if limit else None
    mode = text[-1] if text[-1] != "}" and len(text) > 1 else ""
    return Repeat(body, text, least, most, mode)


def _literal(character: str, ignore_case: bool) -> Set:
    variants = case_variants().get(character, character) if ignore_case else character
    text = re.escape(character) if len(variants) < 2 else f"[{''.join(map(re.escape, variants))}]"
    return Set(as_ranges(sorted(map(ord, variants))), (text,))


def _plain(ranges: Ranges) -> Set:
    """Return ranges as an item of a set."""
    return Set(ranges, (spell(ranges),))


def _set(items: list[Set], negated: bool = False) -> Set:
    """Return the set of these items."""
    ranges = merged_ranges(pair for item in items for pair in item.ranges)
    parts = (part for item in items for part in item.parts)
    return Set(complement(ranges) if negated else ranges, (f"[{'^' * negated}", *parts, "]"))


def _property(found: re.Match[str], in_class: bool) -> Set:
    if found[5]:
        return _one_property(f"\\{found[5].lower()}", found[0], found[5].isupper(), in_class)
    negated = (found[1] == "P") != (found[2] == "^")
    return _one_property(found[3] or found[4] or "", found[0], negated, in_class)


def _one_property(name: str, spelling: str, negated: bool, in_class: bool) -> Set:
    """Return a property as an item of a set."""
    ranges = find_property(name, in_class)
    if ranges is None:
        raise _RefusedError(f"has the unknown property {spelling}")
    item = Set(ranges, ((name, in_class),))
    return _set([item], negated=True) if negated else item


def spell(ranges: Ranges) -> str:
    """Return ranges as text inside a set."""
    ends = [[f"\\U{end:08x}" if end > 0x7E else re.escape(chr(end)) for end in pair] for pair in ranges]
    return "".join(first if first == last else f"{first}-{last}" for first, last in ends)


def _missing_variants(members: Iterable[tuple[int, int]]) -> Ranges:
    """Return the case variants of the members that are no members."""
    ranges = merged_ranges(members)
    firsts = [first for first, _ in ranges]

    def is_member(character: str) -> bool:
        place = bisect_right(firsts, ord(character)) - 1
        return place >= 0 and ord(character) <= ranges[place][1]

    added = {v for c, variants in case_variants().items() if is_member(c) for v in variants if not is_member(v)}
    return as_ranges(sorted(map(ord, added)))
