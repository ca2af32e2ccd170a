"""Regexes that `tokenizers` reads differently from tiktoken, `regex` and this package.

`tokenizers` uses the engine Oniguruma. Loading translates its anchors `^`, `$` and `\\Z`; training and saving refuse
them. Training, loading and saving refuse all other differences.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.splitting.patterns import Pattern

_ESCAPE_OR_CLASS = r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\\\]])*\]"
_PARTS = re.compile(rf"{_ESCAPE_OR_CLASS}|[$^]", re.DOTALL)
_ANCHORS = {"^": r"(?:\A|(?<=\n)(?!\Z))", "$": r"(?=\n|\Z)", r"\Z": r"(?=\n?\Z)"}
_LEADING_FLAGS = re.compile(r"(^|\||\((?:\?(?:[:=!>]|<[=!]|<\w+>|[imx-]+:))?)(?:\(\?[imx-]+\))+")
_LETTERS = re.compile(r"\\(?:([pP][A-Za-z]|[mMU]|N\{)|.)", re.DOTALL)
# Outside escapes and character classes.
_OTHER_MEANINGS = {
    r"\{\d*,?\d*\}\+": "repeats a repetition in tokenizer.json and gives nothing back elsewhere: "
    "write (?>x{interval}) for x{interval}+",
    r"\{\d+\}\?": "is an optional repetition in tokenizer.json: write {interval}",
    r"\(\?[a-z-]*[msu][a-z-]*[:)]": "has another meaning or none in tokenizer.json: use only the flags i and x, and "
    "write [\\s\\S] for any character",
    r"\(\?(?:P[<=>]\w*>?|\|)": "tokenizer.json cannot hold: write (?:...), or (?<name>...) for a group with a name",
}
_MIDDLE_FLAGS = re.compile(r"\(\?[ix-]+\)(?=.*\|)", re.DOTALL)


def with_line_anchors(regex: str) -> str:
    """Return a regex whose `^`, `$` and `\\Z` match at the edges of lines, as they do in `tokenizers`."""
    edges = _ANCHORS | {r"\z": r"\Z"}
    return _PARTS.sub(lambda part: edges.get(part[0], part[0]), regex)


def anchor_in(regex: str) -> str | None:
    """Return the first `^`, `$` or `\\Z` of a regex, which `tokenizers` matches at the edges of lines."""
    return next((part[0] for part in _PARTS.finditer(regex) if part[0] in _ANCHORS), None)


def refuse_misread_by_tokenizers(pattern: Pattern) -> None:
    """Raise ValueError for a custom pattern that `tokenizers` reads differently, so tokenizer.json cannot hold it."""
    if pattern.name:
        return
    refuse_other_meanings(pattern.regex)
    if anchor := anchor_in(pattern.regex):
        raise ValueError(
            f"{_named(pattern.regex)} has {anchor}, which matches at the edges of lines in tokenizer.json: "
            "write \\A for the start of the text and (?![\\s\\S]) for its end"
        )


def refuse_other_meanings(regex: str) -> None:
    """Raise ValueError for a regex that `tokenizers` reads differently, except for its anchors.

    {1,3}+ is possessive in tiktoken and here, but a repeated repetition in `tokenizers`. \\pL is a property in tiktoken
    and here, but the letters pL in `tokenizers`. There, {3}? may match nothing, (?m) means (?s), (?s) is not valid, and
    a(?i)b|c means a(?i:b|c).
    """
    outside = re.sub(_ESCAPE_OR_CLASS, "x", regex, flags=re.DOTALL)
    for expression, meaning in _OTHER_MEANINGS.items():
        if found := re.search(expression, outside):
            explained = meaning.replace("{interval}", found[0][:-1])
            raise ValueError(f"{_named(regex)} has {found[0]!r}, which {explained}")
    if found := _MIDDLE_FLAGS.search(_LEADING_FLAGS.sub(r"\1", outside)):
        raise ValueError(
            f"{_named(regex)} has {found[0]!r}, which applies to more alternatives in tokenizer.json: "
            f"write {found[0][:-1]}:...) around the text that it applies to"
        )
    for found in _LETTERS.finditer(regex):
        if letters := found[1]:
            instead = {"m": r"\b(?=\w)", "M": r"\b(?<=\w)"}.get(letters, r"\x{...}")
            instead = rf"\{letters[0]}{{{letters[1]}}}" if letters[0] in "pP" else instead
            raise ValueError(
                f"{_named(regex)} has \\{letters}, which is plain letters in tokenizer.json: write {instead}"
            )


def _named(regex: str) -> str:
    return f"the split pattern {regex[:80]!r}"
