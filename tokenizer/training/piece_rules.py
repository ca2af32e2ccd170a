"""The rules of Unigram training, without numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PieceRules:
    """The pieces that Unigram training may make. The names are those of sentencepiece."""

    max_piece_length: int = 16
    """Maximum length of a piece in characters"""
    character_coverage: float = 0.9995
    """Share of the text's characters that the vocabulary covers, most frequent first"""
    required_chars: str = ""
    """Characters that the vocabulary always covers, besides the space"""
    seed_size: int = 1_000_000
    """Number of seed substrings, those that cover most text"""
    split_by_unicode_script: bool = True
    """No piece mixes scripts; Han and kana count as one, digits and punctuation as another"""
    split_by_number: bool = True
    """Digits do not join letters"""
    split_digits: bool = False
    """Each digit is a piece"""
    byte_fallback: bool = False
    """Spell characters that are not covered with 256 byte entries; otherwise they are unknown"""

    def __post_init__(self) -> None:
        for name, least, most in (("max_piece_length", 1, 64), ("seed_size", 1, 1 << 24)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        for name in ("split_by_unicode_script", "split_by_number", "split_digits", "byte_fallback"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if not isinstance(self.required_chars, str):
            raise ValueError(f"required_chars must be a string, not {self.required_chars!r}")
        if not isinstance(self.character_coverage, (int, float)) or not 0 < self.character_coverage <= 1:
            raise ValueError(f"character_coverage must be above 0 and at most 1, not {self.character_coverage!r}")
