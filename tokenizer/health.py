"""Tokens of a vocabulary that texts hardly need. A vocabulary with fewer such tokens is not always better."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from tokenizer.vocabulary import Vocabulary


def unmerged_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of byte-level BPE that merges never make, because the token's own bytes merge into other tokens.

    In a text, the same merges would apply to these bytes, or one that crosses their ends, which makes another token.
    Other tokens may be in no text either, because of a normalizer or the split. Vocabularies that look up whole
    pretokens before merging have none here.
    """
    encode = vocabulary.pretoken_encoder()
    return [i for i, token in _ordinary(vocabulary) if encode(token) != [i]]


def split_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of tokens of UTF-8 that the split pattern cuts, alone and after a letter.

    Only texts in which all characters of the token are in one pretoken can produce it.
    """
    pattern, found = vocabulary.pattern, []
    for i, token in _ordinary(vocabulary):
        try:
            token.decode()
        except UnicodeDecodeError:  # a part of a character
            continue
        # A splitter that puts a space before the text cuts 'll there, but not in "we'll".
        if not any(token in pretoken for text in (token, b"a" + token) for pretoken in pattern.pretokens(text)):
            found.append(i)
    return found


def longest_tokens(vocabulary: Vocabulary, most: int) -> list[int]:
    """Return the ids of up to `most` tokens with the most bytes, the longest first."""
    ordinary = sorted(_ordinary(vocabulary), key=lambda each: -len(each[1]))
    return [i for i, _ in ordinary[:most]]


def odd_tokens(vocabulary: Vocabulary, most: int) -> list[int]:
    """Return the ids of up to `most` tokens whose characters change most often between kinds, the oddest first.

    The kinds are the letters of one script, marks, digits, white space, punctuation with symbols, and all others.
    Tokens with fewer than two changes are not odd: most words begin with a space.
    """
    changes = {}
    for i, token in _ordinary(vocabulary):
        kinds = [_kind(character) for character in token.decode(errors="ignore")]
        changes[i] = sum(one != other for one, other in pairwise(kinds))
    return [i for i in sorted(changes, key=lambda i: -changes[i])[:most] if changes[i] > 1]


def _kind(character: str) -> str:
    if character.isspace():
        return "white space"
    category = unicodedata.category(character)[0]
    if category == "L":  # KATAKANA-HIRAGANA is the mark of long vowels
        return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
    return {"M": "mark", "N": "digit", "P": "punctuation", "S": "punctuation"}.get(category, "other")


def _ordinary(vocabulary: Vocabulary) -> Iterator[tuple[int, bytes]]:
    """Yield the ids and bytes of all tokens that are not special."""
    special = {*vocabulary.special_tokens.values(), *vocabulary.unreachable.values()}
    yield from ((i, token) for i, token in enumerate(vocabulary.tokens) if token and i not in special)
