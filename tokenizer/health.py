"""Tokens of a vocabulary that texts hardly need. This describes a vocabulary; few such tokens do not make it better."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizer.vocabulary import Vocabulary


def unmerged_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of byte-level BPE that no text becomes, because the token's own bytes merge into other tokens.

    In a text, the same merges would apply to these bytes, or one that crosses their ends, which makes another token.
    Not all tokens that no text becomes are found: a normalizer or the split can also rule one out, and vocabularies
    that look up whole pretokens before merging have none here.
    """
    encode = vocabulary.pretoken_encoder()
    return [i for i, token in _ordinary(vocabulary) if encode(token) != [i]]


def split_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of tokens of UTF-8 that the split pattern cuts when they stand alone.

    Few texts become such a token, if any: only those in which its characters are in one pretoken.
    """
    pattern, found = vocabulary.pattern, []
    for i, token in _ordinary(vocabulary):
        try:
            token.decode()
        except UnicodeDecodeError:  # a part of a character
            continue
        if len([*pattern.pretokens(token)]) > 1:  # a single one can have a space before the token
            found.append(i)
    return found


def _ordinary(vocabulary: Vocabulary) -> Iterator[tuple[int, bytes]]:
    """Yield the ids and bytes of all tokens that are not special."""
    special = {*vocabulary.special_tokens.values(), *vocabulary.unreachable.values()}
    yield from ((i, token) for i, token in enumerate(vocabulary.tokens) if token and i not in special)
