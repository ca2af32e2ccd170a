"""The normalizers before SentencePiece's words in tokenizer.json: Precompiled, Replace and Strip."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import cache

from tokenizer.encoding.special_spellings import WHITE_SPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.precompiled_map import CharacterMap

MARK = "▁"  # U+2581
# The regular expressions of Replace in published files, as `re` spells them.
REGEXES = {
    " {2,}": " {2,}",
    r"\n": "\n",
    r"\s{2,}|[\n\r\t]": f"[{WHITE_SPACE}]{{2,}}|[\n\r\t]",
}


_GROWTH, _ROOM = 100, 10_000


def most_characters(count: int) -> int:
    """Return the most characters that a text of `count` characters may have after replacements.

    A damaged file could otherwise make a short text fill the memory.
    """
    return _GROWTH * count + _ROOM


class Replace(namedtuple("_Replace", ["find", "is_regex", "content"])):
    """A normalizer that replaces every match of a text, or of one of `REGEXES`."""

    def check_growth(self, texts: Sequence[str], most: int) -> None:
        """Raise ValueError if replacing makes the texts longer than `most` characters in total."""
        added = len(self.content) - (1 if self.is_regex else len(self.find))  # upper bound for each match
        if added <= 0:
            return
        if self.is_regex:
            matches = sum(sum(1 for _ in _compiled(self.find).finditer(text)) for text in texts)
        else:
            matches = sum(text.count(self.find) for text in texts)
        if sum(map(len, texts)) + added * matches > most:
            raise ValueError(
                f"the tokenizer's replacement of {self.find[:20]!r} by {len(self.content):,} characters makes a text "
                f"more than {_GROWTH} times as long: tokenizer.json is damaged, use the published file"
            )

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        if not self.is_regex:
            return text.replace(self.find, self.content)
        return _compiled(self.find).sub(lambda match: self.content, text)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each match."""
        regex = _compiled(self.find) if self.is_regex else re.compile(re.escape(self.find))
        return (match.span() for match in regex.finditer(text))

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {
            "type": "Replace",
            "pattern": {"Regex" if self.is_regex else "String": self.find},
            "content": self.content,
        }


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(REGEXES[regex])


class Strip(namedtuple("_Strip", ["left", "right"])):
    """A normalizer that drops white space at the beginning or end of a text."""

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        text = text.lstrip(WHITE_SPACE) if self.left else text
        return text.rstrip(WHITE_SPACE) if self.right else text

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {"type": "Strip", "strip_left": self.left, "strip_right": self.right}


class Precompiled(namedtuple("_Precompiled", ["characters"])):
    """A normalizer that applies a `CharacterMap`."""

    characters: CharacterMap

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        return self.characters.normalize(text)

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        from base64 import b64encode

        return {"type": "Precompiled", "precompiled_charsmap": b64encode(self.characters.compiled).decode()}


Normalizer = Precompiled | Replace | Strip


def normalizer_of(field: dict[str, Any]) -> Normalizer:
    """Return the normalizer with this `field`."""
    from base64 import b64decode

    from tokenizer.splitting.precompiled_map import CharacterMap

    if field["type"] == "Strip":
        return Strip(field["strip_left"], field["strip_right"])
    if field["type"] == "Replace":
        ((kind, find),) = field["pattern"].items()
        return Replace(find, kind == "Regex", field["content"])
    return Precompiled(CharacterMap(b64decode(field["precompiled_charsmap"])))
