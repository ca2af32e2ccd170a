"""The masks of training: their share of the tokens, and their unit: single tokens, whole words or spans of words."""

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

import numpy as np

from lm.config import SELECTED
from lm.objectives import span_starts
from pipelines.recipes.config import MaskedUnit
from pipelines.training.batch import Array
from tokenizer import Tokenizer


class WordStarts:
    """Finds the tokens that begin a word.

    If the tokenizer marks tokens that continue a word, such as BERT's `##`, the mark decides. Otherwise a token
    continues a word if it begins with a letter or digit and the token before it ends with one. Combining marks and
    parts of a character count as letters. So `don't` is three words, and punctuation begins a word of its own.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        used = {*np.flatnonzero(tokenizer.ordinary).tolist(), *tokenizer.special_tokens.values()}
        spellings = [tokenizer.token_bytes(i) if i in used else b"" for i in range(tokenizer.vocab_size)]
        if tokenizer.vocabulary.starts_words:
            mark = tokenizer.vocabulary.prefix.encode()
            self._continues = np.array([bool(mark) and spelling.startswith(mark) for spelling in spellings])
            self._goes_on = np.ones(len(spellings), bool)
        else:
            ends = np.array([_letters_at_ends(spelling) for spelling in spellings])
            self._continues, self._goes_on = ends[:, 0], ends[:, 1]

    def __call__(self, ids: Array) -> Array:
        """Return where a word begins among ids (B, T): (B, T) bool. The first token of a row always begins one."""
        starts = np.ones(ids.shape, bool)
        starts[:, 1:] = ~(self._continues[ids[:, 1:]] & self._goes_on[ids[:, :-1]])
        return starts


def _letters_at_ends(spelling: bytes) -> tuple[bool, bool]:
    """Return whether a token begins and ends with a letter, mark or digit, or with a part of a character."""
    # An undecodable byte becomes a surrogate, of category Cs.
    text = spelling.decode(errors="surrogateescape") or " "
    first, last = (category(character) for character in (text[0], text[-1]))
    return first[0] in "LMN" or first == "Cs", last[0] in "LMN" or last == "Cs"


@dataclass(frozen=True)
class Masking:
    """How training selects tokens. The default is the rule that validates and evaluates every model."""

    share: float = SELECTED
    """Share of the tokens that is selected."""
    rows: float = 0.0
    """Share of a decoder's rows that predict masked tokens."""
    unit: MaskedUnit = "token"
    words: WordStarts | None = None
    """Needed for words and spans."""

    def starts(self, blocks: Array, generators: Sequence[np.random.Generator]) -> Array | None:
        """Return where a unit begins in blocks (B, T): (B, T) bool. None if every token is a unit."""
        if self.unit == "token":
            return None
        assert self.words is not None
        words = self.words(blocks)
        return words if self.unit == "word" else span_starts(words, generators)


STANDARD = Masking()
