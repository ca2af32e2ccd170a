"""Probabilities of words from those of their tokens.

Tokens begin with the space before a word, so only the token after a word shows that the word has ended. A product of
the probabilities of a word's tokens leaves that out, and counts the end of the word before. The corrected probability
of Pimentel & Meister (2024, "How to compute the probability of a word") is

    p(word | context) = p(tokens | context) * p(a word ends here | context, tokens) / p(a word ends here | context)

A word ends where the next token begins with white space or is special. After white space or a special token, and at the
start of the text, a new word is certain. Tokens of white space alone count as words of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.scoring.windows import Array
from tokenizer import Tokenizer

WHITE_SPACE = b" \t\n\v\f\r"


@dataclass(frozen=True)
class Words:
    """W words of a text: stretches of tokens."""

    starts: Array
    """(W,) int64: index of the first token"""
    ends: Array
    """(W,) int64: index after the last token"""
    log_probabilities: Array
    """(W,) float64: ln p, corrected for a decoder's predictions; NaN if a token was not scored"""
    token_sums: Array
    """(W,) float64: the sum of ln p of the tokens"""


def certain_borders(pieces: Sequence[bytes], special: Array) -> Array:
    """Return (T + 1,) bool: whether a word is certain to begin before token t, and after the last, whatever follows.

    `pieces` are the bytes of the T tokens; `special` (T,) bool.
    """
    after = [ends_word or piece[-1:] in WHITE_SPACE for piece, ends_word in zip(pieces, special, strict=True)]
    return np.array([True, *after])


def word_starts(pieces: Sequence[bytes], special: Array) -> Array:
    """Return the indices (W,) of the tokens that begin a word."""
    begins = [new or piece[:1] in WHITE_SPACE for piece, new in zip(pieces, special, strict=True)]
    return np.flatnonzero(np.array(begins) | certain_borders(pieces, special)[:-1])


def ends_of_words(pieces: Sequence[bytes], special: Array) -> Array:
    """Return (T,) int64: the index after the last token of each token's word."""
    edges = np.append(word_starts(pieces, special), len(pieces))
    return edges[np.searchsorted(edges, np.arange(len(pieces)), side="right")]


def word_beginnings(tok: Tokenizer, entries: int, stops: Sequence[int]) -> Array:
    """Return (entries,) bool: whether a token ends the word before it; `entries` is the model's vocabulary size."""
    found = np.zeros(entries, bool)
    for token in np.flatnonzero(tok.token_byte_lengths > 0).tolist():
        found[token] = tok.token_bytes(token)[:1] in WHITE_SPACE
    found[[*tok.special_tokens.values(), *stops]] = True
    return found


def words_of(pieces: Sequence[bytes], special: Array, log_probabilities: Array, borders: Array | None) -> Words:
    """Return the words of T tokens with ln p `log_probabilities` (T,).

    `borders` (T + 1,) is ln of the probability that a word ends before token t, and after the last. Without it, as for
    an encoder, a word has the sum of its tokens.
    """
    starts = word_starts(pieces, special)
    ends = np.append(starts[1:], len(pieces))
    sums = np.add.reduceat(log_probabilities, starts)
    if borders is None:
        return Words(starts, ends, sums, sums)
    borders = np.where(certain_borders(pieces, special), 0.0, borders)
    return Words(starts, ends, sums + borders[ends] - borders[starts], sums)
