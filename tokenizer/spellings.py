"""Special tokens in a text: where their spellings stand, and tiktoken's rule for what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Literal

    SpecialSet = Literal["all"] | Collection[str]


class SpecialTokens:
    """A vocabulary's special tokens, by their spelling, and what to do about them in a text."""

    def __init__(self, ids: Mapping[str, int]):
        self._ids = ids
        self._all = frozenset(ids)

    def allowed_in(self, data: bytes, allowed: SpecialSet, disallowed: SpecialSet) -> frozenset[str]:
        """ValueError for a disallowed spelling in the text; the allowed ones where it may have one of these."""
        allowed = self._all if isinstance(allowed, str) and allowed == "all" else _as_set("allowed_special", allowed)
        if isinstance(disallowed, str) and disallowed == "all":
            disallowed = self._all - allowed if allowed else self._all
        else:
            disallowed = _as_set("disallowed_special", disallowed)
        if disallowed and (match := _spellings(disallowed).search(data)):
            spelling = match.group().decode()
            raise ValueError(
                f"the text has the special token {spelling!r} at byte {match.start()}: to encode it as the "
                f"special token pass allowed_special={{{spelling!r}}}, to encode it as text disallowed_special=()"
            )
        if allowed and (allowed := allowed & self._all) and _spellings(allowed).search(data):
            return allowed
        return frozenset()

    def parts(self, data: bytes, allowed: frozenset[str]) -> Iterator[tuple[int, bytes | int]]:
        """The text cut at the special tokens that are allowed: offsets, with bytes of text or a token's id."""
        start = 0
        for match in _spellings(allowed).regex.finditer(data):
            yield start, data[start : match.start()]
            yield match.start(), self._ids[match.group().decode()]
            start = match.end()
        yield start, data[start:]


class _Spellings:
    """Finds the first of several spellings, the longest of those that start there."""

    def __init__(self, spellings: frozenset[str]):
        encoded = sorted((spelling.encode() for spelling in spellings), key=lambda spelling: (-len(spelling), spelling))
        self._encoded = encoded
        # Where no spelling's first two bytes are, no spelling is; and most texts do not even have the first.
        self._beginnings = [(spelling[0], spelling) for spelling in sorted({spelling[:2] for spelling in encoded})]

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        import re

        return re.compile(b"|".join(map(re.escape, self._encoded)))

    def search(self, data: bytes) -> re.Match[bytes] | None:
        for first, beginning in self._beginnings:
            if first in data and beginning in data:
                return self.regex.search(data)
        return None


_spellings = lru_cache(maxsize=32)(_Spellings)


def _as_set(name: str, value: Collection[str]) -> frozenset[str]:
    if isinstance(value, str):
        raise ValueError(f'{name} must be "all" or a collection of special tokens, not the string {value!r}')
    spellings = frozenset(value)
    for spelling in spellings:
        if not isinstance(spelling, str) or not spelling:
            raise ValueError(f"{name} must hold special tokens, not {spelling!r}")
    return spellings
