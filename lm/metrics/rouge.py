"""ROUGE: words that a text shares with a reference (Lin 2004)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import regex

# Scripts without spaces between words: each character counts as a word.
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]|[[\p{L}\p{M}\p{N}_]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]]+",
    regex.VERSION1,
)
_ENGLISH = regex.compile("[a-z0-9]+")

Words = Callable[[str], list[str]]
"""A text to its words"""


class Rouge(NamedTuple):
    """F1 of a text against a reference, each from 0 to 1."""

    rouge_1: float
    """Of single words"""
    rouge_2: float
    """Of pairs of consecutive words"""
    rouge_l: float
    """Of the longest common subsequence of words"""
    rouge_lsum: float
    """Of the union of such subsequences, between each line of the reference and all lines of the text"""


def unicode_words(text: str) -> list[str]:
    """Return the words of a text in any script, in lower case. Chinese, Japanese and Thai characters are words."""
    return [str(word) for word in _WORD.findall(text.lower())]


def english_words(text: str) -> list[str]:
    """Return the runs of a-z and 0-9 in lower case, as the package rouge-score does without its stemmer."""
    return [str(word) for word in _ENGLISH.findall(text.lower())]


def rouge(text: str, reference: str, words: Words = unicode_words) -> Rouge:
    """Return the ROUGE scores of a text; 0 if it shares no word with the reference."""
    own, wanted = words(text), words(reference)
    numbers = {word: number for number, word in enumerate(dict.fromkeys((*own, *wanted)))}
    longest = int(_subsequence_lengths(_ids(wanted, numbers), _ids(own, numbers))[-1, -1])
    lines, wanted_lines = ([words(line) for line in each.split("\n") if line] for each in (text, reference))
    return Rouge(
        _overlap(own, wanted, 1),
        _overlap(own, wanted, 2),
        _f1(longest, len(own), len(wanted)),
        _summary_level(lines, wanted_lines, numbers),
    )


def mean_rouge(texts: Sequence[str], references: Sequence[str], words: Words = unicode_words) -> Rouge:
    """Return the mean scores of N texts, at least one."""
    scores = [rouge(text, reference, words) for text, reference in zip(texts, references, strict=True)]
    return Rouge(*(float(mean) for mean in np.mean(scores, axis=0)))


def _overlap(own: list[str], wanted: list[str], size: int) -> float:
    """Return the F1 of n-grams: each counts at most as often as the other side has it."""
    ours, theirs = (Counter(zip(*(side[i:] for i in range(size)), strict=False)) for side in (own, wanted))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _f1(shared: int, own: int, wanted: int) -> float:
    return 2 * shared / (own + wanted) if shared else 0.0


def _summary_level(lines: list[list[str]], wanted: list[list[str]], numbers: dict[str, int]) -> float:
    """Return the F1 of the union of subsequences. A word counts at most as often as each side has it."""
    left, left_wanted = (Counter(word for line in side for word in line) for side in (lines, wanted))
    sizes, shared = (left.total(), left_wanted.total()), 0
    coded = [_ids(line, numbers) for line in lines]
    for line in wanted:
        ids = _ids(line, numbers)
        common = set().union(*(_subsequence(ids, other) for other in coded))
        for word in (line[place] for place in sorted(common)):
            if left[word] > 0 and left_wanted[word] > 0:
                left[word] -= 1
                left_wanted[word] -= 1
                shared += 1
    return _f1(shared, *sizes)


def _ids(words: list[str], numbers: dict[str, int]) -> np.ndarray:
    return np.array([numbers[word] for word in words], np.int64)


def _subsequence_lengths(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the lengths of the longest common subsequences of all beginnings: (N,), (M,) to (N + 1, M + 1) int64.

    A row grows from the one above by one word of `first`: it is the running maximum of the row above, and of the same
    one place earlier plus 1 where the words agree.
    """
    table = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    for above, row, word in zip(table[:-1], table[1:], first, strict=True):
        np.maximum.accumulate(np.where(second == word, above[:-1] + 1, above[1:]), out=row[1:])
    return table


def _subsequence(first: np.ndarray, second: np.ndarray) -> list[int]:
    """Return the places in `first` of a longest common subsequence.

    There may be several. Ties are broken as in rouge-score: of equal lengths, the last word of `first` is left out.
    """
    table, places = _subsequence_lengths(first, second), []
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            places.append(i)
        elif table[i, j - 1] > table[i - 1, j]:
            j -= 1
        else:
            i -= 1
    return places


ROUGE_WORDS: dict[str, Words] = {"unicode": unicode_words, "english": english_words}
