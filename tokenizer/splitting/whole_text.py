"""SentencePiece's normalization of a whole text, which is not cut into words: its rules, in plain Python."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator
from functools import cached_property

from tokenizer.splitting.normalizers import MARK
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.splitting.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block

_MARK = MARK.encode()


class SentencePieceText(
    namedtuple(
        "_SentencePieceText",
        ["characters", "user_defined", "add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces", "suffix"],
    ),
    Splitter,
):
    """A normalizer in place of a `Pattern`; the whole text is one pretoken.

    characters: the map, or None. user_defined: pieces that the map does not change. The other fields are those of
    sentencepiece: put a mark before the text, or after it if `suffix`; drop spaces at both ends and all but one of each
    run; and write spaces as marks. Each byte of invalid UTF-8 is read as U+FFFD.
    """

    characters: CharacterMap | None
    user_defined: tuple[str, ...]

    @property
    def marks_spaces(self) -> bool:  # type: ignore[override]  # an option
        return bool(self.escape_whitespaces)

    @property
    def keeps_characters(self) -> bool:
        """Whether only spaces change, and at most one mark is added before the text."""
        return self.characters is None and not self.remove_extra_whitespaces and not self.suffix

    def __str__(self) -> str:
        options = [name for name in self._fields[2:] if getattr(self, name)]
        return f"sentencepiece({', '.join(options)})"

    @property
    def identity(self) -> str:
        """The text that fingerprints hash."""
        compiled = self.characters.compiled.hex() if self.characters else None
        return f"sentencepiece {compiled} {self.user_defined!r} {self[2:]}"

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the normalized text, if it is not empty."""
        normalized = self.normalize(text)
        if normalized:
            yield normalized

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of normalized documents, and the ends of the non-empty ones, int64, by a kernel."""
        from tokenizer.splitting.sentencepiece_blocks import has_kernel, normalized_block

        return normalized_block(block, self) if has_kernel(self) else super().rewrite(block)

    def normalize(self, text: bytes) -> bytes:
        """Return the normalized text."""
        place = 0
        if self.remove_extra_whitespaces:
            while place < len(text):
                replaced, end = self._prefix(text, place)
                if replaced != b" ":
                    break
                place = end
        if place == len(text):
            return b""
        space = _MARK if self.escape_whitespaces else b" "
        parts = [space] if self.add_dummy_prefix and not self.suffix else []
        after_space = self.remove_extra_whitespaces
        while place < len(text):
            replaced, place = self._prefix(text, place)
            if after_space:
                replaced = replaced.lstrip(b" ")
            if replaced:
                after_space = self.remove_extra_whitespaces and replaced.endswith(b" ")
                parts.append(replaced.replace(b" ", space))
        normalized = b"".join(parts)
        if self.remove_extra_whitespaces:
            while normalized.endswith(space):
                normalized = normalized.removesuffix(space)
        return normalized + space if self.add_dummy_prefix and self.suffix else normalized

    def _prefix(self, text: bytes, place: int) -> tuple[bytes, int]:
        """Return the replacement of the characters at `place`, and the place after them."""
        if run := self._unchanged.match(text, place):
            return run[0], run.end()
        if self.user_defined and (found := self._user_defined.match(text, place)):
            return found[0], found.end()
        longest = self.characters.longest(text, place) if self.characters else None
        if longest is not None:
            return longest
        if character := _CHARACTER.match(text, place):
            return character[0], character.end()
        return "\ufffd".encode(), place + 1

    @cached_property
    def _user_defined(self) -> re.Pattern[bytes]:
        spelled = sorted((piece.encode() for piece in self.user_defined), key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, spelled)))

    @cached_property
    def _unchanged(self) -> re.Pattern[bytes]:
        """The regex of visible ASCII characters that stay, whatever follows; it matches nothing if some change."""
        return re.compile(rb"[!-~]+(?![\x80-\xff])" if self.visible_ascii_stays else b"(?!)")

    @cached_property
    def visible_ascii_stays(self) -> bool:
        """Whether visible ASCII characters are unchanged unless a byte that is not ASCII follows."""
        visible = bytes(range(0x21, 0x7F))
        pairs = (bytes([first, second]) for first in visible for second in range(0x80))
        return not (self.user_defined or (self.characters and any(self.characters.longest(pair, 0) for pair in pairs)))


# One character of valid UTF-8.
_CHARACTER = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
