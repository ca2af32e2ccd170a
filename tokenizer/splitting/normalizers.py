"""The normalizers of tokenizer.json, which change a text before it is split. Each gives the text of `tokenizers`."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property

from tokenizer.text import WHITE_SPACE, nfc, normal_form

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.precompiled_map import CharacterMap

MARK = "▁"  # U+2581
# The usual regular expressions of Replace, as `re` spells them. The `regex` module runs all others.
REGEXES = {
    " {2,}": " {2,}",
    r"\n": "\n",
    r"\s+": f"[{WHITE_SPACE}]+",
    r"\s{2,}|[\n\r\t]": f"[{WHITE_SPACE}]{{2,}}|[\n\r\t]",
}
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_DROPPED_BY_NMT = (*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F)
_SPACES_OF_NMT = (0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD)

_END_OF_CASE = 0x20000  # no character from here on has a case
_GROWTH, _ROOM = 100, 10_000


def most_characters(count: int) -> int:
    """Return the most characters that a text of `count` characters may have after replacements.

    A damaged file could otherwise make a short text fill the memory.
    """
    return _GROWTH * count + _ROOM


class Replace(namedtuple("_Replace", ["find", "is_regex", "content"])):
    """A normalizer that replaces every match of a text or of a regular expression."""

    def check_growth(self, texts: Sequence[str], most: int) -> None:
        """Raise ValueError if replacing makes the texts longer than `most` characters in total."""
        added = len(self.content) - (0 if self.is_regex else len(self.find))  # upper bound for each match
        if added <= 0:
            return
        size = sum(map(len, texts))
        # A regular expression can match between all characters.
        if self.is_regex and size + added * (size + len(texts)) <= most:
            return
        matches = sum(map(self._count, texts))
        if size + added * matches > most:
            raise ValueError(
                f"the tokenizer's replacement of {self.find[:20]!r} by {len(self.content):,} characters makes a text "
                f"more than {_GROWTH} times as long: tokenizer.json is damaged, use the published file"
            )

    def _count(self, text: str) -> int:
        if not self.is_regex:
            return text.count(self.find)
        return sum(1 for _ in (_compiled(self.find).finditer(text) if self.find in REGEXES else self.spans(text)))

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        if not self.is_regex:
            return text.replace(self.find, self.content)
        if self.find in REGEXES:
            if self.content == " " and self.find == r"\s+":
                return _unusual_space().sub(" ", text)
            return _compiled(self.find).sub(self.content.replace("\\", r"\\"), text)
        parts, done = [], 0
        for start, end in self.spans(text):
            parts += [text[done:start], self.content]
            done = end
        return "".join([*parts, text[done:]])

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each match, as `tokenizers` finds them: none in an empty text."""
        if not self.is_regex or self.find in REGEXES:
            regex = _compiled(self.find) if self.is_regex else re.compile(re.escape(self.find))
            yield from (match.span() for match in regex.finditer(text))
        elif text:
            from tokenizer.splitting.regex_differences import with_line_anchors
            from tokenizer.splitting.scanner import match_spans

            yield from match_spans(text, with_line_anchors(self.find))

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {
            "type": "Replace",
            "pattern": {"Regex" if self.is_regex else "String": self.find},
            "content": self.content,
        }


@cache
def _unusual_space() -> re.Pattern[str]:
    """Return the regex of white space that is not one space."""
    return re.compile(f" [{WHITE_SPACE}]+|[{WHITE_SPACE.replace(' ', '')}][{WHITE_SPACE}]*")


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


class Prepend(namedtuple("_Prepend", ["prepend"])):
    """A normalizer that puts a text before every text that is not empty."""

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        return self.prepend + text if text else text

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {"type": "Prepend", "prepend": self.prepend}


class BertText(namedtuple("_BertText", ["clean_text", "chinese", "strip_accents", "lowercase"])):
    """BertNormalizer: deletes control characters, puts spaces around ideographs, deletes accents, lowers the case.

    strip_accents: None for the value of `lowercase`.
    """

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        if self.clean_text or self.chinese:
            text = text.translate(_bert_map(self.clean_text, self.chinese))
        if self.lowercase if self.strip_accents is None else self.strip_accents:
            text = normal_form(text, "NFD").translate(_bert_accents())
        return _lowered(text) if self.lowercase else text

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {
            "type": "BertNormalizer",
            "clean_text": self.clean_text,
            "handle_chinese_chars": self.chinese,
            "strip_accents": self.strip_accents,
            "lowercase": self.lowercase,
        }


class Named(namedtuple("_Named", ["kind"])):
    """A normalizer without options: a form of Unicode, Lowercase, StripAccents, Nmt or ByteLevel."""

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        return _NAMED[self.kind](text)

    @property
    def field(self) -> dict[str, object]:
        """The normalizer as tokenizer.json writes it."""
        return {"type": self.kind}


class _Map(dict[int, str]):
    """A map for `str.translate`, which is slow for characters that are missing in it."""

    def __missing__(self, code_point: int) -> str:
        character = self[code_point] = chr(code_point)
        return character


@cache
def _lower_map() -> _Map:
    from tokenizer.splitting.bert_characters import stored_tables

    return _Map({ord(c): lower for c, lower in stored_tables().lower.items()})


def _lowered(text: str) -> str:
    return text.lower() if text.isascii() or not _odd_case().search(text) else text.translate(_lower_map())


@cache
def _odd_case() -> re.Pattern[str]:
    """Return the regex of characters that `str.lower` maps otherwise: a sigma at the end of a word, and new letters."""
    table = _lower_map()
    cased = (chr(c) for c in range(_END_OF_CASE))
    odd = [c for c in cased if c == "Σ" or c.lower() != table.get(ord(c), c)]
    return re.compile(f"[{''.join(map(re.escape, odd))}]")


@cache
def _accents() -> _Map:
    from tokenizer.splitting.step_characters import tables

    return _Map(dict.fromkeys(_members(tables().accents), ""))


@cache
def _bert_accents() -> _Map:
    from tokenizer.splitting.bert_characters import stored_tables

    return _Map(dict.fromkeys(_members(stored_tables().accents), ""))


@cache
def _bert_map(clean_text: bool, chinese: bool) -> _Map:
    from tokenizer.splitting.bert_characters import stored_tables

    tables, replaced = stored_tables(), _Map()
    if chinese:
        replaced.update({c: f" {chr(c)} " for c in _members(tables.chinese)})
    if clean_text:
        replaced.update(dict.fromkeys(_members(tables.cleaned_to_space), " "))
        replaced.update(dict.fromkeys(_members(tables.deleted), ""))
    return replaced


@cache
def _nmt() -> _Map:
    return _Map(dict.fromkeys(_DROPPED_BY_NMT, "") | dict.fromkeys(_SPACES_OF_NMT, " "))


def _members(gaps: list[int]) -> Iterator[int]:
    from tokenizer.splitting.unicode_properties import ranges_of

    return (code_point for first, last in ranges_of(gaps) for code_point in range(first, last + 1))


def _spelled(text: str) -> str:
    from tokenizer.byte_level import spell

    return spell(text.encode(errors="surrogateescape"))


_NAMED: dict[str, Callable[[str], str]] = {
    "NFC": lambda text: normal_form(text, "NFC"),
    "NFD": lambda text: normal_form(text, "NFD"),
    "NFKC": lambda text: normal_form(text, "NFKC"),
    "NFKD": lambda text: normal_form(text, "NFKD"),
    "Lowercase": _lowered,
    "StripAccents": lambda text: text if text.isascii() else text.translate(_accents()),
    "Nmt": lambda text: text.translate(_nmt()),
    "ByteLevel": _spelled,
}
NAMED_STEPS = tuple(_NAMED)

Normalizer = Precompiled | Replace | Strip | Prepend | BertText | Named


def normalize_by(steps: Iterable[Normalizer], text: str) -> str:
    """Return a text after several normalizers. Raises ValueError if replacements make it far longer."""
    most = most_characters(len(text))
    for step in steps:
        if isinstance(step, Replace):
            step.check_growth([text], most)
        text = step.normalize(text)
        if len(text) > most:
            raise ValueError(
                f"the tokenizer's normalizer {type(step).__name__} makes a text more than {_GROWTH} times as long: "
                "tokenizer.json is damaged, use the published file"
            )
    return text


SPACES_TO_MARKS = Replace(" ", False, MARK)


def decoder_of_marks(drops_first: bool) -> list[dict[str, Any]]:
    """Return the steps of the decoder of tokens with bytes. drops_first: whether to drop a space before the text."""
    return [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if drops_first else []),
    ]


class Normalization(namedtuple("_Normalization", ["steps"])):
    """The normalizers of a vocabulary, in order."""

    steps: tuple[Normalizer, ...]

    def __str__(self) -> str:
        """Return "NFC" for this form alone, otherwise the steps as tokenizer.json writes them."""
        if len(self.steps) == 1 and isinstance(self.steps[0], Named):
            return str(self.steps[0].kind)
        return json.dumps([step.field for step in self.steps], ensure_ascii=False, sort_keys=True)

    @cached_property
    def is_nfc(self) -> bool:
        """Whether this is the form NFC alone, which keeps the meaning of a text."""
        return str(self) == "NFC"

    @cached_property
    def identity(self) -> str:
        """The text that fingerprints hash: the steps, and the digests of their tables unless it is NFC alone."""
        from tokenizer.splitting import bert_characters, step_characters

        return (
            str(self) if self.is_nfc else f"{self}\n{bert_characters.table_digest()}\n{step_characters.table_digest()}"
        )

    @cached_property
    def cuts_at_ascii(self) -> bool:
        """Whether parts of a text that begin with an ASCII character can be normalized separately."""
        local = {*FORMS, "Lowercase", "StripAccents"}
        return all(isinstance(step, Named) and step.kind in local for step in self.steps)

    def apply(self, data: bytes) -> bytes:
        """Return normalized text; the same object if nothing changes. Bytes of invalid UTF-8 stay."""
        if self.is_nfc:
            return nfc(data)
        text = data.decode(errors="surrogateescape")
        normalized = normalize_by(self.steps, text)
        return data if normalized == text else normalized.encode(errors="surrogateescape")


NFC = Normalization((Named("NFC"),))


def normalizer_of(field: dict[str, Any]) -> Normalizer:
    """Return the normalizer with this `field`."""
    from base64 import b64decode

    from tokenizer.splitting.precompiled_map import CharacterMap

    match field["type"]:
        case "Strip":
            return Strip(field["strip_left"], field["strip_right"])
        case "Replace":
            ((kind, find),) = field["pattern"].items()
            return Replace(find, kind == "Regex", field["content"])
        case "Prepend":
            return Prepend(field["prepend"])
        case "Precompiled":
            return Precompiled(CharacterMap(b64decode(field["precompiled_charsmap"])))
        case "BertNormalizer":
            names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
            return BertText(*(field[name] for name in names))
        case kind:
            return Named(kind)
