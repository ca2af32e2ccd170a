"""Compute the probabilities of words from the probabilities of their tokens.

The space before a word belongs to its first token, so only the token after a word shows that the word has ended. The
product of the probabilities of a word's tokens leaves out this end, and includes the end of the previous word. Pimentel
& Meister (2024, "How to compute the probability of a word") correct it:

    p(word | context) = p(tokens | context) * p(a word ends here | context, tokens) / p(a word ends here | context)

A word ends where the next token begins with white space or is special. A new word certainly begins at the start of the
text, after white space and after a special token. Tokens that are only white space count as words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.decoded_text import WHITE_SPACE
from pipelines.training.batch import Array
from tokenizer import Tokenizer


@dataclass(frozen=True)
class Words:
    """The W words of a text, each a range of tokens."""

    starts: Array
    """(W,) int64: index of the first token"""
    ends: Array
    """(W,) int64: index after the last token"""
    log_probabilities: Array
    """(W,) float64: ln p, corrected except for an encoder; NaN if a token was not scored"""
    token_sums: Array
    """(W,) float64: sum of ln p of the tokens"""
    end: float
    """ln p that the last word ends after the last token: ln p of all words is that of all tokens plus this"""


def pieces_of(tok: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """Return the bytes that each token adds to the decoded text; the spelling of a special token."""
    return [tok.added_bytes(i) if place else tok.decode_bytes([i]) for place, i in enumerate(ids)]


def certain_borders(pieces: Sequence[bytes], special: Array) -> Array:
    """Return whether a new word certainly begins at each token, and after the last one: (T + 1,) bool.

    `pieces` are the bytes of the T tokens; `special` (T,) bool marks special tokens.
    """
    ends = [not piece or piece.endswith(WHITE_SPACE) for piece in pieces]
    return np.array([True, *(np.array(ends, bool) | special)])


def word_starts(pieces: Sequence[bytes], special: Array) -> Array:
    """Return the indices (W,) of the tokens that begin a word."""
    begins = [not piece or piece.startswith(WHITE_SPACE) for piece in pieces]
    return np.flatnonzero(np.array(begins, bool) | special | certain_borders(pieces, special)[:-1])


def ends_of_words(pieces: Sequence[bytes], special: Array) -> Array:
    """Return the end of each token's word, as the index after its last token: (T,) int64."""
    edges = np.append(word_starts(pieces, special), len(pieces))
    return edges[np.searchsorted(edges, np.arange(len(pieces)), side="right")]


def word_beginnings(tok: Tokenizer, entries: int, stops: Sequence[int]) -> Array:
    """Return whether each token ends the word before it: (entries,) bool. `entries` is the model's vocabulary size."""
    begins = np.zeros(entries, bool)
    for token in np.flatnonzero(tok.ordinary).tolist():
        begins[token] = not (added := tok.added_bytes(token)) or added.startswith(WHITE_SPACE)
    begins[[*tok.special_tokens.values(), *stops]] = True
    return begins


def words_of(pieces: Sequence[bytes], special: Array, log_probabilities: Array, borders: Array | None) -> Words:
    """Return the words of T tokens with ln p `log_probabilities` (T,).

    `borders` (T + 1,) is ln of the probability that a word ends before each token, and after the last one. Without
    borders, as for an encoder, the ln p of a word is the sum over its tokens.
    """
    starts = word_starts(pieces, special)
    ends = np.append(starts[1:], len(pieces))
    sums = np.add.reduceat(log_probabilities, starts)
    if borders is None:
        return Words(starts, ends, sums, sums, 0.0)
    borders = np.where(certain_borders(pieces, special), 0.0, borders)
    return Words(starts, ends, sums + borders[ends] - borders[starts], sums, float(borders[-1]))
