"""Encoding by BPE over characters in plain Python: the reference of the kernels, and the encoder of short texts."""

from __future__ import annotations

import re

from tokenizer.encoding.python_encoder import DropoutEncoder, merge_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary

_INVALID = re.compile("[\udc80-\udcff]")


class CharacterMerging:
    """Encoder of pretokens."""

    def __init__(self, vocabulary: CharacterPairVocabulary):
        self._vocabulary = vocabulary
        self._special = frozenset(vocabulary.special_tokens)

    def encode(self, pretoken: bytes) -> list[int]:
        """Return the ids of a pretoken. Each byte of invalid UTF-8 is read as U+FFFD."""
        vocabulary, word = self._vocabulary, decoded(self._vocabulary, pretoken)
        if vocabulary.whole_first and word not in self._special and (whole := vocabulary.ids.get(word)) is not None:
            return [whole]
        return merge_ids(vocabulary.symbols(word), vocabulary.merge_of)


class CharacterDropout(DropoutEncoder):
    """Encodes texts by merges, some of which are dropped at random, in plain Python."""

    _vocabulary: CharacterPairVocabulary

    def encode(self, text: bytes, dropout: float, random: Random) -> list[int]:
        """Return the ids of a text. dropout: the probability that a possible merge is dropped in a step."""
        ids: list[int] = []
        for pretoken in self._vocabulary.pattern.pretokens(text):
            symbols = self._vocabulary.symbols(decoded(self._vocabulary, pretoken))
            ids += merge_ids(symbols, self._vocabulary.merge_of, lambda: random.random() < dropout)
        return ids


def decoded(vocabulary: CharacterPairVocabulary, pretoken: bytes) -> str:
    """Return a pretoken as tokens spell it."""
    word = pretoken.decode(errors="surrogateescape")
    return vocabulary.spelled(word if pretoken.isascii() else _INVALID.sub("\ufffd", word))
