"""Spans of characters in a text as tags of its words, and back."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from corpora.rows import Row

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese and Japanese, without blanks between words
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


class Span(NamedTuple):
    """Characters `start` to `end - 1` of a text, with a label."""

    start: int
    end: int
    label: str


def words_of(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each word of a text: a run of letters and digits, or any other character but a blank."""
    return [match.span() for match in _WORD.finditer(text)]


def spans_in(row: Row, name: str, text: str) -> list[Span]:
    """Return the spans in a field of a row, by their start: lists [start, end, label], or objects with these keys.

    Raises ValueError for a span outside the text, and for two that overlap.
    """
    spans = [_span(one, name, row, text) for one in row.value(name, "a list of spans", list, type(None)) or ()]
    spans.sort()
    for before, after in pairwise(spans):
        if after.start < before.end:
            raise ValueError(
                f'"{name}" in {row.place} has spans that overlap, {list(before)} and {list(after)}: remove one of them'
            )
    return spans


def tags_of(spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> list[str]:
    """Return a tag in IOB2 for each word. A word belongs to a span if they overlap; of two spans the first has it."""
    tags = ["O"] * len(words)
    for span in reversed(spans):
        inside = _words_in(span, words)
        tags[inside.start : inside.stop] = [f"{'I' if place else 'B'}-{span.label}" for place in range(len(inside))]
    return tags


def splits_word(span: Span, words: Sequence[tuple[int, int]]) -> bool:
    """Return whether a span begins or ends within a word."""
    inside = [words[place] for place in _words_in(span, words)]
    return bool(inside) and (inside[0][0] < span.start or span.end < inside[-1][1])


def _words_in(span: Span, words: Sequence[tuple[int, int]]) -> range:
    """Return the numbers of the words that overlap a span."""
    first = bisect_right(words, span.start, key=itemgetter(1))
    return range(first, bisect_left(words, span.end, key=itemgetter(0)))


def _span(value: Any, name: str, row: Row, text: str) -> Span:
    parts = [value.get(key) for key in Span._fields] if isinstance(value, dict) else value
    place = f'"{name}" in {row.place}'
    match parts:
        case [int(start), int(end), str(label)] if label:
            if 0 <= start < end <= len(text):
                return Span(start, end, label)
            raise ValueError(f"{place} has the span {start} to {end} in a text of {len(text):,} characters: fix it")
    raise ValueError(f"{place} has {value!r:.60}, not [start, end, label]: give numbers of characters and a label")
