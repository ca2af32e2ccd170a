"""Tokens of a vocabulary that texts hardly need. A vocabulary with fewer such tokens is not always better."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizer.vocabulary import Vocabulary


def unmerged_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of byte-level BPE tokens that no text produces, because their bytes merge into other tokens.

    Within a longer text, the same merges apply, or a merge across an end of these bytes makes another token. The result
    is not complete: a normalizer or the split can also rule out a token. In vocabularies that look up whole pretokens
    before merging, every token is its own pretoken, so the result is empty.
    """
    encode = vocabulary.pretoken_encoder()
    return [i for i, token in _ordinary(vocabulary) if encode(token) != [i]]


def split_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of tokens in valid UTF-8 that the split pattern cuts when they stand alone.

    Only texts in which all characters of the token are in one pretoken can produce it.
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
