"""Positions at which two tokenizations of a text end at the same byte. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array
from tokenizer import Tokenizer

NO_BYTE = 256
"""Symbol of the tokens without text, as in `lm.byte_distributions`"""


@dataclass(frozen=True)
class Reading:
    """A text as a decoder reads it: N tokens, from the start token to the end token, if it has them."""

    ids: Array
    """(N,) int64"""
    ends: Array
    """(N,) int64, increasing: bytes of the text up to the end of each token. The end token counts as one byte"""

    @classmethod
    def of(cls, reader: TextReader, ids: Sequence[int]) -> "Reading":
        """Return the text of `ids` between the special tokens that a decoder reads around it."""
        before, after = list(reader.around.before), list(reader.around.stops[:1])
        sizes = reader.tokenizer.token_byte_lengths[np.array(ids, np.int64)]
        read = np.cumsum([*sizes, *[1] * len(after)], dtype=np.int64)
        ends = np.concatenate((np.arange(1 - len(before), 1), read))
        return cls(np.array([*before, *ids, *after], np.int64), ends)

    def last_within(self, end: int) -> int:
        """Return the index of the last token that ends at or before byte `end`; -1 if there is none."""
        return int(np.searchsorted(self.ends, end, "right")) - 1


def with_teacher(windows: Sequence[Encoded], own: Reading, teacher: Reading, context: int) -> list[Encoded]:
    """Return the windows of a text with the same bytes as the teacher reads them.

    `windows` are consecutive and have the inputs `own.ids[:-1]` in order. `other` (S + 1,) are the S tokens that the
    teacher reads and the token after them: from the token that ends at the start of the window or last before it, to
    the last token that ends in the window, at most `context` + 1. `places` (T,) are the teacher's positions that have
    read the same bytes as a position of the window, ABSENT where there is none.
    """
    found, start = [], 0
    for window in windows:
        stop = start + len(window.ids)
        first = max(0, teacher.last_within(own.ends[start]))
        last = max(first, min(teacher.last_within(own.ends[stop]), first + context))
        read = own.ends[start:stop]
        _, ours, theirs = np.intersect1d(read, teacher.ends[first:last], assume_unique=True, return_indices=True)
        places = np.full(len(read), ABSENT, np.int64)
        text = read[ours] >= 0  # not within several start tokens
        places[ours[text]] = theirs[text]
        found.append(replace(window, other=teacher.ids[first : last + 1], places=places))
        start = stop
    return found


def first_bytes(tok: Tokenizer, vocab_size: int) -> Array:
    """Return the first byte of each of a model's tokens, (vocab_size,) int64; NO_BYTE for a token without text."""
    firsts = np.full(vocab_size, NO_BYTE, np.int64)
    for i in np.flatnonzero(tok.ordinary):
        firsts[i] = tok.token_bytes(int(i))[0]
    return firsts


def comparable_by_bytes(*tokenizers: Tokenizer) -> bool:
    """Return whether the tokens of all tokenizers are bytes of the text, and every byte value begins some token."""
    every = set(range(NO_BYTE + 1))
    return all(tok.is_lossless and every == set(first_bytes(tok, tok.vocab_size).tolist()) for tok in tokenizers)
