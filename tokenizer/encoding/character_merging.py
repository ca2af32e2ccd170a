"""BPE over characters in plain Python: the reference of the kernels, the encoder of short texts, and offsets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

from tokenizer.encoding.python_encoder import DropoutEncoder, merge_ids
from tokenizer.text import character_starts, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary


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
    return vocabulary.spelled(read_text(pretoken))


class CharacterSpans:
    """Maps a text to its ids and the bytes that each stands for, if only spaces change before merging."""

    def __init__(self, vocabulary: CharacterPairVocabulary, encode: Callable[[bytes], list[int]]):
        """encode: from a text to its ids."""
        affixes = vocabulary.prefix or vocabulary.suffix
        if affixes or vocabulary.normalizer is not None or not vocabulary.pattern.keeps_characters:
            raise ValueError(
                f"offsets of {vocabulary.units} are not supported, because {vocabulary.pattern} changes more than "
                "spaces, or tokens mark their place in a word: use encode"
            )
        self._vocabulary = vocabulary
        self._encode = encode
        self._bytes = frozenset((vocabulary.byte_ids or {}).values())
        self._spellings = {i: token for token, i in vocabulary.ids.items()}

    def __call__(self, data: bytes) -> tuple[list[int], list[tuple[int, int]]]:
        vocabulary, ids = self._vocabulary, self._encode(data)
        places = list(pairwise(character_starts(data)))
        pretokens = [decoded(vocabulary, pretoken) for pretoken in vocabulary.pattern.pretokens(data)]
        normalized, ends = "".join(pretokens), frozenset(accumulate(map(len, pretokens)))
        places = places[: len(normalized) - len(places)] + places  # a mark before the text has the first character's
        spans = []
        place = of_character = 0
        for i in ids:
            if vocabulary.unknown is None and vocabulary.byte_ids is None:  # unknown characters have no ids
                place = self._after_unknown(normalized, place, frozenset())
            first = last = place
            spelling = self._spellings[i]
            is_whole = (
                (place == 0 or place in ends)
                and place + len(spelling) in ends
                and normalized.startswith(spelling, place)
            )
            if i in self._bytes and not (vocabulary.whole_first and is_whole):
                of_character += 1
                if of_character == len(normalized[place].encode()):
                    place, of_character = place + 1, 0
            elif i == vocabulary.unknown_id:
                place = self._after_unknown(normalized, place + 1, ends) if vocabulary.fuse_unknown else place + 1
                last = place - 1
            else:
                place += len(spelling)
                last = place - 1
            spans.append((places[first][0], places[last][1]))
        return ids, spans

    def _after_unknown(self, normalized: str, place: int, ends: frozenset[int]) -> int:
        known = self._vocabulary.characters[0]
        while place < len(normalized) and place not in ends and normalized[place] not in known:
            place += 1
        return place
