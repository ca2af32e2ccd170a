"""The vocabularies of SentencePiece models, Unigram or BPE. They encode whole texts, as sentencepiece 0.2.3 does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.encoding.unigram_lattice import nearest_float32
from tokenizer.unigram_vocabulary import UNKNOWN_PENALTY, UnigramVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.text_decoding import TextDecoding
    from tokenizer.splitting.whole_text import SentencePieceText
    from tokenizer.vocabulary import Part

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
USER_DEFINED_SCORE = 0.1  # per byte after the first


class ModelPieces:
    """The pieces of a model, which decode as sentencepiece decodes them.

    types: the type of each piece. Texts can become pieces of the types NORMAL and USER_DEFINED. Control pieces and the
    unknown piece are special tokens. unknown_surface: the text of a decoded unknown id. source: the bytes of the file.
    """

    pieces: Sequence[str]
    types: Sequence[int]
    unknown_surface: str
    source: bytes | None
    pattern: SentencePieceText

    def decoding(self) -> TextDecoding:
        from tokenizer.encoding.text_decoding import SentencePieceDecoding

        return SentencePieceDecoding(self)  # type: ignore[arg-type]  # mixed into vocabularies

    @property
    def control_ids(self) -> list[int]:
        """The ids of control pieces, which decode to nothing."""
        return [i for i, kind in enumerate(self.types) if kind == CONTROL]

    @cached_property
    def bytes_of_pieces(self) -> dict[int, bytes]:
        """The byte of each byte piece, by id."""
        return {i: bytes.fromhex(self.pieces[i][3:5]) for i, kind in enumerate(self.types) if kind == BYTE}


class SentencePieceVocabulary(ModelPieces, UnigramVocabulary):
    """An immutable vocabulary of a Unigram model, which encodes in float32."""

    sums_are_float32 = True
    pattern: SentencePieceText

    def __init__(self, *, types: Sequence[int], unknown_surface: str, source: bytes, **fields: Any):
        """fields: as in `UnigramVocabulary`, without a decoder."""
        super().__init__(decoder=[], **fields)
        self.types = types
        self.unknown_surface = unknown_surface
        self.source = source

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

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids."""
        from tokenizer.vocabulary import digest_of

        return digest_of([("unigram", [super().fingerprint]), ("types", [bytes(self.types)])])


class SentencePiecePairs(ModelPieces, CharacterPairVocabulary):
    """An immutable vocabulary of a BPE model.

    Two neighbours merge if they spell a normal piece together: the piece of the highest score first, among equal
    scores the leftmost. User-defined pieces are matched before merging and never merge.

    The caller has checked that there are no unused pieces, and that every character of a normal piece is a piece.
    """

    pattern: SentencePieceText

    def __init__(
        self,
        *,
        pieces: Sequence[str],
        scores: Sequence[float],
        types: Sequence[int],
        unknown: int,
        unknown_surface: str,
        source: bytes,
        byte_fallback: bool,
        special_tokens: dict[str, int],
        pattern: SentencePieceText,
    ):
        super().__init__(
            ids={piece: i for i, piece in enumerate(pieces)},
            pairs=(),
            unknown=pieces[unknown],
            fuse_unknown=True,
            byte_fallback=byte_fallback,
            decoder=[],
            special_tokens=special_tokens,
            pattern=pattern,
        )
        self.pieces = pieces
        self.scores = scores
        self.types = types
        self.unknown_surface = unknown_surface
        self.source = source

    @cached_property
    def frozen(self) -> dict[str, int]:
        return {
            piece: i
            for i, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True))
            if kind == USER_DEFINED
        }

    @cached_property
    def characters(self) -> tuple[dict[str, int], ...]:
        texts = (NORMAL, USER_DEFINED)
        return tuple({c: i for c, i in known.items() if self.types[i] in texts} for known in super().characters)

    @cached_property
    def _rank_of(self) -> Mapping[int, int]:
        """The rank of each normal piece."""
        normal = [i for i, kind in enumerate(self.types) if kind == NORMAL]
        order = {score: rank for rank, score in enumerate(sorted({self.scores[i] for i in normal}, reverse=True))}
        return {i: order[self.scores[i]] for i in normal}

    def merge_of(self, left: int, right: int) -> tuple[int, int] | None:
        if left not in self._rank_of or right not in self._rank_of:
            return None
        merged = self.ids.get(self.pieces[left] + self.pieces[right], -1)
        return (self._rank_of[merged], merged) if merged in self._rank_of else None

    @cached_property
    def merges(self) -> npt.NDArray[np.int32]:
        from tokenizer.encoding.merge_tables import all_merges_of_ranks

        return all_merges_of_ranks([p.encode() if i in self._rank_of else None for i, p in enumerate(self.pieces)])

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        import numpy as np

        return np.array([self._rank_of[i] for i in self.merges[:, 2].tolist()], dtype=np.int64)

    @property
    def merge_pairs(self) -> Sequence[tuple[bytes, bytes]]:
        return [(self.pieces[a].encode(), self.pieces[b].encode()) for a, b, _ in self.merges.tolist()]

    @property
    def fingerprint_parts(self) -> list[Part]:
        ranks = [str(self._rank_of.get(i, "")) for i in range(len(self.pieces))]
        rules = [str(self.unknown_id), str(self.byte_fallback)]
        return [("tokens", self.pieces), ("ranks", ranks), ("types", [bytes(self.types)]), ("rules", rules)]
