"""SentencePiece's words: text normalized, then cut before each `▁`, which stands for a space.

The steps are those of `tokenizers`: normalizers, WhitespaceSplit and Metaspace. Pretokens have a space for each `▁`,
which saves two bytes; they have no other spaces. This plain Python splits short texts and is the reference for the
kernel in `kernels/metaspace.py`.
"""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from tokenizer.encoding.special_spellings import WHITE_SPACE
from tokenizer.splitting.patterns import METASPACE_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.character_map import CharacterMap

MARK = "▁"  # U+2581
ALWAYS, FIRST, NEVER = "always", "first", "never"
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


class MetaspaceWords(namedtuple("_MetaspaceWords", ["normalizers", "whitespace_split", "prepend", "cuts"])):
    """A splitter into normalized words, used in place of a `Pattern`. Its words, joined, are not the text.

    normalizers: steps, in order. whitespace_split: whether to cut at white space first, which is dropped.
    prepend: ALWAYS: `▁` goes before each of these parts; FIRST: before a part at the start of the text; NEVER.
    cuts: whether to cut before each `▁`. Each byte of invalid UTF-8 is read as U+FFFD.
    """

    normalizers: tuple[Normalizer, ...]
    prepend: str
    automaton: None = None

    @property
    def name(self) -> str | None:
        """The name of the words without normalizers, None for others."""
        return _NAME if self == PLAIN_WORDS else None

    @property
    def spelling(self) -> str:
        """The text that `metaspace_of` parses."""
        return self.name or f"{_NAME}:{json.dumps([[step.field for step in self.normalizers], *self[1:]])}"

    @property
    def field(self) -> dict[str, object]:
        """The Metaspace step, pre-tokenizer or decoder, as tokenizer.json writes it."""
        return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": self.prepend, "split": self.cuts}

    def __str__(self) -> str:
        kinds = [type(step).__name__.lower() for step in self.normalizers]
        split = ["whitespace"] if self.whitespace_split else []
        metaspace = f"metaspace({self.prepend}{'' if self.cuts else ', whole'})"
        return " + ".join([*kinds, *split, metaspace])

    @property
    def identity(self) -> str:
        """The text that fingerprints hash: all options and the digest of the table of grapheme clusters."""
        from tokenizer.splitting.graphemes import table_digest

        steps = json.dumps([step.field for step in self.normalizers], sort_keys=True)
        return f"metaspace {steps} {self.whitespace_split} {self.prepend} {self.cuts}\n{table_digest()}"

    @cached_property
    def splits_at_spaces(self) -> bool:
        """Whether a text can be cut between an ASCII letter and white space without changing its words."""
        harmless = (Precompiled, Replace) if self.whitespace_split else Precompiled
        steps = [step for step in self.normalizers if not isinstance(step, harmless)]
        # A line feed that does not become a space would get a mark before it at the start of a part.
        spaces = all(self.normalize(f"a{c}a") == "a a" for c in " \n")
        return self.cuts and not steps and (self.whitespace_split or (spaces and self.prepend == ALWAYS))

    def normalize(self, text: str) -> str:
        """Return the normalized text. Raises ValueError if replacements make it far longer."""
        most = most_characters(len(text))
        for step in self.normalizers:
            if isinstance(step, Replace):
                step.check_growth([text], most)
            text = step.normalize(text)
        return text

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the words of one text in order."""
        decoded = text.decode(errors="surrogateescape")
        if not text.isascii():
            decoded = _INVALID.sub("\ufffd", decoded)
        normalized = self.normalize(decoded)
        for part in _WHITE_SPACE.split(normalized) if self.whitespace_split else [normalized]:
            if not part:
                continue
            part = part.replace(" ", MARK)
            if self.prepend != NEVER and not part.startswith(MARK):
                part = MARK + part
            for word in _BEFORE_MARK.split(part) if self.cuts else [part]:
                if word:
                    yield word.replace(MARK, " ").encode()


_NAME = "metaspace"
PLAIN_WORDS = MetaspaceWords((), True, ALWAYS, True)


def metaspace_of(spelling: str) -> MetaspaceWords | None:
    """Return the words with this name or `spelling`, None if it is that of another splitter.

    The names are those of `patterns.METASPACE_NAMES`. Raises ValueError for a damaged spelling.
    """
    if spelling == _NAME:
        return PLAIN_WORDS
    if spelling in METASPACE_NAMES:
        from tokenizer.splitting.nfkc import named_map

        return PLAIN_WORDS._replace(normalizers=(Precompiled(named_map(spelling)),))
    if not spelling.startswith(f"{_NAME}:"):
        return None
    try:
        steps, whitespace_split, prepend, cuts = json.loads(spelling.removeprefix(f"{_NAME}:"))
        return MetaspaceWords(tuple(map(_normalizer_of, steps)), bool(whitespace_split), str(prepend), bool(cuts))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{spelling[:80]!r} does not spell words of Metaspace: {error!r}") from None


def _normalizer_of(field: dict[str, Any]) -> Normalizer:
    """Return the normalizer with this `field`."""
    from base64 import b64decode

    from tokenizer.splitting.character_map import CharacterMap

    if field["type"] == "Strip":
        return Strip(field["strip_left"], field["strip_right"])
    if field["type"] == "Replace":
        ((kind, find),) = field["pattern"].items()
        return Replace(find, kind == "Regex", field["content"])
    return Precompiled(CharacterMap(b64decode(field["precompiled_charsmap"])))


_INVALID = re.compile("[\udc80-\udcff]")
_WHITE_SPACE = re.compile(f"[{WHITE_SPACE}]+")
_BEFORE_MARK = re.compile(f"(?={MARK})")
