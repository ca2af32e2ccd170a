"""Names of the special tokens that models of this project use, and checks of special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
MASK = "<|mask|>"
CLS = "<|cls|>"
SEP = "<|sep|>"
LONGEST_SPELLING = 4096  # characters
DEFAULT_SPECIAL_TOKENS = (END_OF_TEXT, PAD, MASK, CLS, SEP)


def sentinels(count: int) -> tuple[str, ...]:
    """Return the special tokens that replace spans in span corruption: <|sentinel_0|>, <|sentinel_1|>, ..."""
    return tuple(f"<|sentinel_{number}|>" for number in range(count))


def check_special_tokens(special_tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the spellings as a tuple. Raises ValueError for any other type, and for a spelling that is not allowed.

    Spellings must be distinct, neither empty nor too long, and without lone surrogates.
    """
    if isinstance(special_tokens, str):
        raise ValueError(f"special_tokens must be a sequence of strings, not the string {special_tokens!r}")
    if isinstance(special_tokens, (Mapping, Set)) or not isinstance(special_tokens, Iterable):
        raise ValueError(
            f"special_tokens must be a sequence of strings in the order of their ids, not a "
            f"{type(special_tokens).__name__}: training gives the first the id 0"
        )
    special_tokens = tuple(special_tokens)
    seen = set()
    for spelling in special_tokens:
        if not isinstance(spelling, str) or not spelling:
            raise ValueError(f"a special token must be a non-empty string, not {spelling!r}")
        if len(spelling) > LONGEST_SPELLING:
            raise ValueError(
                f"a special token has {len(spelling):,} characters; at most {LONGEST_SPELLING:,} are allowed"
            )
        if any(0xD800 <= ord(c) < 0xE000 for c in spelling):
            raise ValueError(f"the special token {spelling!r} has a lone surrogate")
        if spelling in seen:
            raise ValueError(f"the special token {spelling!r} is given twice")
        seen.add(spelling)
    return special_tokens
