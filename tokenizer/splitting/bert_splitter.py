"""BERT's words: text split as by BertNormalizer and BertPreTokenizer of `tokenizers`, without white space.

This module holds the choice of options and the plain Python, which splits short texts and is the reference for the
kernel in `kernels/bert_words.py`.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator
from functools import cache, cached_property

from tokenizer.splitting.bert_characters import (
    ALONE,
    DELETED,
    DIVIDER,
    REPLACED,
    SPACE,
    Characters,
    characters,
    table_digest,
)
from tokenizer.splitting.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block

TAIL_BYTES = 1 << 10  # searched at once for the end of a word
# A code point that no text contains, because `text_bytes` refuses lone surrogates.
_DIVIDER = "\ud800"


class BertWords(namedtuple("_BertWords", ["lowercase", "strip_accents", "clean_text", "chinese"]), Splitter):
    """A splitter into normalized words, used in place of a `Pattern`. Its words do not join to the text again.

    The fields are the options of BertNormalizer: convert to lower case, delete accents, delete control characters, and
    put spaces around every ideograph. Each byte of invalid UTF-8 is read as U+FFFD, which clean_text deletes.
    """

    splits_at_spaces = True

    @property
    def name(self) -> str | None:
        """The name in `NAMED_WORDS`, None for other options."""
        return next((name for name, words in NAMED_WORDS.items() if words == self), None)

    @property
    def spelling(self) -> str:
        """The text that `words_of` parses: a name, or "bert:" and the options."""
        return self.name or "bert:" + ",".join(option for option in self._fields if getattr(self, option))

    def __str__(self) -> str:
        return self.spelling

    @property
    def identity(self) -> str:
        """Return the text that fingerprints hash: the options and the digest of the Unicode table."""
        return f"bert words {' '.join(str(int(option)) for option in self)}\n{table_digest()}"

    @cached_property
    def characters(self) -> Characters:
        """Return the table that says what becomes of each code point."""
        return characters(self.clean_text, self.chinese, self.strip_accents, self.lowercase)

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the words of one text in order."""
        decoded = text.decode(errors="surrogateescape").translate(self._translation)
        if self.strip_accents:
            decoded = self._unordered_marks.sub(lambda marks: self.in_order(marks[0]), decoded).replace(_DIVIDER, "")
        for word in decoded.split(" "):
            if word:
                yield word.encode()

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of joined words, and the end of each word, int64 (`kernels/bert_words.py`)."""
        from tokenizer.splitting.bert_blocks import words_of_block

        return words_of_block(block, self)

    def last_divider(self, data: bytes) -> int:
        """Return the start of the last character that ends a word, whatever surrounds it; 0 if there is none."""
        classes, end = self.characters.classes, len(data)
        while end:
            start = max(0, end - TAIL_BYTES)
            at = end
            for character in reversed(data[start:end].decode(errors="surrogateescape")):
                at -= len(character.encode(errors="surrogateescape"))
                if classes[ord(character)] in (SPACE, ALONE):
                    return at
            end = start
        return 0

    def aligned_words(self, text: str) -> Iterator[tuple[str, list[int]]]:
        """Yield the words of one text in order, each with the index in the text of each character's origin."""
        classes = self.characters.combining_classes if self.strip_accents else {}
        ordered: list[tuple[str, int]] = []
        marks: list[tuple[str, int]] = []
        for place, original in enumerate(f"{text} "):
            for character in self._translation[ord(original)]:
                if ord(character) in classes:
                    marks.append((character, place))
                    continue
                ordered += sorted(marks, key=lambda mark: classes[ord(mark[0])])
                marks = []
                if character == " ":
                    if ordered:
                        yield "".join(character for character, _ in ordered), [place for _, place in ordered]
                    ordered = []
                elif character != _DIVIDER or not self.strip_accents:
                    ordered.append((character, place))

    @cached_property
    def _translation(self) -> _Translation:
        return _Translation(self.characters)

    @cached_property
    def _unordered_marks(self) -> re.Pattern[str]:
        """The regex of two or more combining marks that stay."""
        return re.compile(f"[{''.join(map(chr, self.characters.combining_classes))}]{{2,}}")

    def in_order(self, marks: str) -> str:
        """Return combining marks in canonical order."""
        classes = self.characters.combining_classes
        return "".join(sorted(marks, key=lambda mark: classes[ord(mark)]))


class _Translation(dict[int, str]):
    """The text that replaces each code point, as `str.translate` reads it. Words are separated by spaces."""

    def __init__(self, characters: Characters):
        self._characters = characters

    def __missing__(self, code_point: int) -> str:
        kind = self._characters.classes[code_point]
        character = "\ufffd" if 0xD800 <= code_point < 0xE000 else chr(code_point)
        if kind == REPLACED:
            text = "".join(self[ord(part)] for part in self._characters.replacements[code_point])
        else:
            text = {DELETED: "", SPACE: " ", ALONE: f" {character} ", DIVIDER: _DIVIDER}.get(kind, character)
        self[code_point] = text
        return text


NAMED_WORDS = {
    "bert-uncased": BertWords(lowercase=True, strip_accents=True, clean_text=True, chinese=True),
    "bert-cased": BertWords(lowercase=False, strip_accents=False, clean_text=True, chinese=True),
}


@cache
def words_of(spelling: str) -> BertWords | None:
    """Return the `BertWords` with this `spelling`, or None for any other text."""
    if spelling in NAMED_WORDS:
        return NAMED_WORDS[spelling]
    if not spelling.startswith("bert:"):
        return None
    options = set(spelling.removeprefix("bert:").split(",")) - {""}
    if not options <= set(BertWords._fields):
        return None
    return BertWords(*(option in options for option in BertWords._fields))
