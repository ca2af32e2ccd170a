"""The Unigram vocabulary of a SentencePiece model. It encodes whole texts in float32, as sentencepiece 0.2.3 does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tokenizer.encoding.unigram_lattice import nearest_float32
from tokenizer.unigram_vocabulary import UNKNOWN_PENALTY, UnigramVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.encoding.metaspace_decoding import UnigramDecoding
    from tokenizer.splitting.whole_text import SentencePieceText

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
USER_DEFINED_SCORE = 0.1  # per byte after the first


class SentencePieceVocabulary(UnigramVocabulary):
    """An immutable vocabulary of a SentencePiece model.

    types: the type of each piece. Texts can become pieces of the types NORMAL and USER_DEFINED. Control pieces and the
    unknown piece are special tokens. unknown_surface: the text of a decoded unknown id. source: the bytes of the file.
    """

    sums_are_float32 = True
    source: bytes
    pattern: SentencePieceText

    def __init__(self, *, types: Sequence[int], unknown_surface: str, source: bytes, **fields: Any):
        """fields: as in `UnigramVocabulary`, without a decoder."""
        super().__init__(decoder=[], **fields)
        self.types = types
        self.unknown_surface = unknown_surface
        self.source = source

    def decoding(self) -> UnigramDecoding:
        from tokenizer.encoding.metaspace_decoding import SentencePieceDecoding

        return SentencePieceDecoding(self)

    @cached_property
    def matches(self) -> dict[str, int]:
        return {
            piece: i
            for i, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True))
            if kind in (NORMAL, USER_DEFINED)
        }

    @cached_property
    def edge_scores(self) -> Sequence[float]:
        return [
            nearest_float32(USER_DEFINED_SCORE * (len(piece.encode()) - 1)) if kind == USER_DEFINED else score
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
        ]

    @cached_property
    def unknown_score(self) -> float:
        normal = [score for score, kind in zip(self.scores, self.types, strict=True) if kind == NORMAL]
        return nearest_float32(min(normal) - UNKNOWN_PENALTY)

    def unknown_ids(self, text: str) -> list[int]:
        return self._fallback(text)

    @property
    def control_ids(self) -> list[int]:
        """The ids of control pieces, which decode to nothing."""
        return [i for i, kind in enumerate(self.types) if kind == CONTROL]

    @cached_property
    def bytes_of_pieces(self) -> dict[int, bytes]:
        """The byte of each byte piece, by id."""
        return {i: bytes.fromhex(self.pieces[i][3:5]) for i, kind in enumerate(self.types) if kind == BYTE}

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids."""
        from tokenizer.vocabulary import digest_of

        return digest_of([("unigram", [super().fingerprint]), ("types", [bytes(self.types)])])
